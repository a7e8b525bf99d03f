// Fused ops against their definitions to third order, and checkpoint against the function itself.
#include <tapedeck/ops/ops.h>

#include <functional>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr DType F32 = DType::f32, F64 = DType::f64;

// Of values, gradients and higher derivatives, all of order 1. Single precision loses a digit an order.
constexpr double exact = 1e-12;
constexpr double single[] = {1e-6, 1e-6, 1e-5, 1e-4};

using In = std::span<const Var>;
using Function = std::function<Var(In)>;

// By order: f(x); dL1/dx by the kernels; and dL1/dx, dL2/dx, dL3/dx by recorded passes, where L1 = <w, f(x)> and
// L(k+1) = <w_k, dLk/dx> with random weights.
struct Derivatives {
  Tensor y;
  std::vector<Tensor> kernel;
  std::vector<std::vector<Tensor>> recorded;
};

Tensor of(const Var& g, const Var& x) { return g.defined() ? g.value() : Tensor::zeros(x.shape(), x.dtype()); }

Derivatives differentiate(const Function& f, const std::vector<Tensor>& inputs, int order = 3) {
  Tape tape;
  std::vector<Var> xs, leaves;
  for (const Tensor& x : inputs) {
    xs.push_back(is_floating(x.dtype()) ? tape.leaf(x) : Var(x));
    if (xs.back().tracked()) leaves.push_back(xs.back());
  }
  Var y = f(xs);
  Derivatives result{y.value(), {}, {}};
  Var loss = sum(y * normal(y.shape(), y.dtype(), 1));
  const Gradients grads = tape.backward(loss, Keep::tape);
  for (const Var& x : leaves) {
    const Tensor* g = grads.find(x);
    result.kernel.push_back(g ? *g : of({}, x));
  }
  for (int k = 1; k <= order; ++k) {
    std::vector<Var> gradients(leaves.size());
    if (loss.tracked()) gradients = grad(loss, leaves, {.create_graph = true, .allow_unused = true});
    loss = Tensor::zeros({}, y.dtype());
    result.recorded.emplace_back();
    for (size_t i = 0; i < leaves.size(); ++i) {
      const Tensor g = of(gradients[i], leaves[i]);
      result.recorded.back().push_back(g);
      if (gradients[i].defined()) {
        loss = loss + sum(gradients[i] * normal(g.shape(), g.dtype(), static_cast<uint64_t>(k) * 10 + i));
      }
    }
  }
  return result;
}

// All orders of `fused` agree with those of `composed`.
void check_equal(const Function& fused, const Function& composed, const std::vector<Tensor>& inputs) {
  for (DType dtype : {F64, F32}) {
    CAPTURE(name(dtype));
    std::vector<Tensor> xs;
    for (const Tensor& x : inputs) xs.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
    const Derivatives a = differentiate(fused, xs), b = differentiate(composed, xs);
    auto bound = [&](size_t order) { return dtype == F64 ? exact : single[order]; };
    CHECK(close(a.y, b.y, bound(0)));
    for (size_t i = 0; i < b.kernel.size(); ++i) {
      CAPTURE(i);
      CHECK(close(a.kernel[i], b.kernel[i], bound(1)));
      for (size_t k = 0; k < b.recorded.size(); ++k) {
        CAPTURE(k);
        CHECK(close(a.recorded[k][i], b.recorded[k][i], bound(k + 1)));
      }
    }
  }
}

// cross_entropy by small ops, every row computed and the ignored ones masked.
Var cross_entropy_of_ops(const Var& logits, const Var& targets, const CrossEntropyOptions& options) {
  const double e = options.label_smoothing, classes = static_cast<double>(logits.size(-1));
  const Var ignored = targets == (options.ignore_index ? *options.ignore_index : -1);
  Var log_p = log_softmax(logits);
  Var picked = squeeze(gather(log_p, -1, unsqueeze(masked_fill(targets, ignored, 0), -1)), -1);
  Var losses = masked_fill(-((1 - e) * picked) - (e / classes) * sum(log_p, -1), ignored, 0);
  if (options.reduction == Reduction::none) return losses;
  double counted = 0;
  for (bool skip : ignored.value().to_vector<bool>()) counted += skip ? 0 : 1;
  return options.reduction == Reduction::sum || counted == 0 ? sum(losses) : sum(losses) * (1 / counted);
}

// Ids 0 to classes - 1 in a fixed disorder.
Tensor some_ids(const Shape& shape, int64_t classes) {
  Tensor ids = Tensor::empty(shape, DType::i64);
  int64_t* p = ids.mutable_data<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) p[i] = (7 * i + 3) % classes;
  return ids;
}

void check_cross_entropy(
    const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options,
    const Function& view = [](In x) { return x[0]; }) {
  check_equal([&](In x) { return cross_entropy(view(x), x[1], options); },
              [&](In x) { return cross_entropy_of_ops(view(x), x[1], options); }, {logits, targets});
}

// y = a tanh(b), fused; the definition is given, so that it can be wrong.
Var fused_product(Operand a, Operand b, const Function& definition) {
  const Tensor y = (a.value() * tanh(b.value())).value();
  auto vjp = [](const FusedPass& pass) {
    const Var g = pass.g, a = pass.inputs[0], t = tanh(pass.inputs[1]);
    return std::vector{(g * t).value(), (g * a * (1 - t * t)).value()};
  };
  return record_fused("fused_product", {a, b}, {y, {}}, vjp, definition);
}
Var product_of_ops(In x) { return x[0] * tanh(x[1]); }

std::string error_twice(const Var& y, const Var& x) {
  return error_of([&] { grad(sum(y), {x}, {.create_graph = true}); });
}

}  // namespace

TEST_SUITE("fused") {
TEST_CASE("cross entropy equals its composition at any size") {
  for (const Shape& shape : {Shape{7, 5}, Shape{1, 1}, Shape{3, 1}, Shape{0, 5}, Shape{2, 0, 3}, Shape{1, 33},
                             Shape{2, 3, 9}, Shape{5}, Shape{3, 17}}) {
    CAPTURE(to_string(shape));
    Shape positions = shape;
    positions.erase(shape.rank() - 1);
    const int64_t classes = shape[shape.rank() - 1];
    for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      for (double smoothing : {0.0, 0.1, 1.0}) {
        CAPTURE(smoothing);
        check_cross_entropy(normal(shape, F64, 3), some_ids(positions, classes),
                            {.label_smoothing = smoothing, .reduction = reduction});
      }
    }
  }
}

TEST_CASE("cross entropy equals its composition on padded batches") {
  const Tensor logits = normal({3, 4, 5}, F64, 4);
  const Tensor targets = tensor({{3, 1, 2, 4}, {2, 0, 0, 0}, {4, 1, 0, 0}});
  for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    for (double smoothing : {0.0, 0.3}) {
      check_cross_entropy(logits, targets, {.ignore_index = 0, .label_smoothing = smoothing, .reduction = reduction});
      check_cross_entropy(logits, Tensor::zeros({3, 4}, DType::i64),
                          {.ignore_index = 0, .label_smoothing = smoothing, .reduction = reduction});
    }
  }
}

TEST_CASE("cross entropy reads any strides") {
  const Tensor targets = some_ids({4, 3}, 5), wide = some_ids({8, 3}, 5);
  const CrossEntropyOptions options{.ignore_index = 2, .label_smoothing = 0.1};
  check_cross_entropy(normal({5, 3, 4}, F64, 5), targets, options, [](In x) { return transpose(x[0], 0, 2); });
  check_cross_entropy(normal({4, 6, 11}, F64, 6), targets, options,
                      [](In x) { return slice(slice(x[0], 1, 1, 6, 2), 2, 1, 11, 2); });
  check_cross_entropy(normal({3, 5}, F64, 7), targets, options, [](In x) { return expand(x[0], {4, 3, 5}); });
  check_cross_entropy(normal({4, 3, 1}, F64, 8), targets, options, [](In x) { return expand(x[0], {4, 3, 5}); });
  check_cross_entropy(normal({4, 3, 5}, F64, 9), wide.slice(0, 1, 8, 2), options);
  check_cross_entropy(normal({4, 3, 5}, F64, 9), some_ids({3, 4}, 5).transpose(), options);
  check_cross_entropy(normal({4, 3, 5}, F64, 9), some_ids({3}, 5).expand({4, 3}), options);
}

TEST_CASE("nothing of an ignored row matters at any order") {
  const Tensor targets = tensor({1, 2, 0});
  Tensor clean = normal({3, 3}, F64, 10), dirty = clean.clone();
  for (int64_t c = 0; c < 3; ++c) dirty.set({2, c}, c == 0 ? inf : not_a_number);
  auto loss = [&](In x) { return cross_entropy(x[0], targets, {.ignore_index = 0}); };
  const Derivatives a = differentiate(loss, {dirty}), b = differentiate(loss, {clean});
  CHECK(same_bits(a.y, b.y));
  CHECK(same_bits(a.kernel[0], b.kernel[0]));
  for (size_t k = 0; k < 3; ++k) {
    CHECK(same_bits(a.recorded[k][0], b.recorded[k][0]));
    CHECK(all_zero(a.recorded[k][0].select(0, 2)));
  }
}

TEST_CASE("checkpoint equals its function") {
  const Tensor a = normal({3, 4}, F64, 1), w = normal({2, 4}, F64, 2), b = normal({2}, F64, 3);
  const Tensor ids = tensor({1, 0, 1});
  auto layer = [](In x) { return tanh(linear(x[0], x[1], x[2])); };
  check_equal([&](In x) { return checkpoint(layer, {x[0], x[1], x[2]}); }, layer, {a, w, b});
  // a fused op, and another checkpoint, inside
  auto loss = [](In x) { return cross_entropy(tanh(linear(x[0], x[1], x[2])), x[3], {.label_smoothing = 0.1}); };
  check_equal([&](In x) { return checkpoint(loss, {x[0], x[1], x[2], x[3]}); }, loss, {a, w, b, ids});
  auto outer = [layer](In x) { return softmax(checkpoint(layer, {x[0], x[1], x[2]})); };
  check_equal(
      [&](In x) {
        return checkpoint(outer, {x[0], x[1], x[2]});
      },
      [&](In x) { return softmax(layer(x)); }, {a, w, b});
  // strided inputs; none, one and an odd number of elements; an input that counts nowhere
  check_equal(
      [&](In x) {
        return checkpoint(layer, {transpose(x[0]), slice(x[1], 0, 0, 4, 2), x[2]});
      },
      [&](In x) {
        return layer(std::vector<Var>{transpose(x[0]), slice(x[1], 0, 0, 4, 2), x[2]});
      },
      {normal({4, 3}, F64, 1), normal({4, 4}, F64, 2), b});
  for (const Shape& shape : {Shape{0}, Shape{1}, Shape{}, Shape{7}, Shape{2, 0}}) {
    check_equal(
        [&](In x) {
          return checkpoint(product_of_ops, {x[0], x[1], x[2]});
        },
        product_of_ops, {normal(shape, F64, 1), normal(shape, F64, 2), a});
  }
}

TEST_CASE("the same value may be given twice") {
  const Tensor x = normal({5}, F64, 1);
  auto twice = [](In v) { return product_of_ops(std::vector<Var>{v[0], v[0]}); };
  check_equal([](In v) { return checkpoint(product_of_ops, {v[0], v[0]}); }, twice, {x});
  check_equal([](In v) { return fused_product(v[0], v[0], product_of_ops); }, twice, {x});
  // beside other uses of it
  check_equal([](In v) { return fused_product(v[0], sin(v[0]) * v[0], product_of_ops) * v[0]; },
              [](In v) {
                return product_of_ops(std::vector<Var>{v[0], sin(v[0]) * v[0]}) * v[0];
              },
              {x});
}

TEST_CASE("a fused op and a checkpoint are one node each") {
  Tape tape;
  Var x = tape.leaf(normal({4, 3}, F32, 1));
  const size_t before = tape.size();
  Var y = checkpoint([](In v) { return exp(sin(tanh(v[0]))); }, {x});
  CHECK(tape.size() == before + 1);
  CHECK(tape.node(y).op == "checkpoint");
  Var loss = cross_entropy(y, tensor({0, 1, 2, 0}), {.reduction = Reduction::none});
  CHECK(tape.size() == before + 2);
  CHECK(tape.node(loss).op == "cross_entropy");
}

TEST_CASE("checkpoint refuses what it captures at first and at second order") {
  const Parameter w(normal({3}, F64, 1)), known(normal({3}, F64, 2));
  Tape tape;
  Var x = tape.leaf(normal({3}, F64, 3)), captured = tape.leaf(normal({3}, F64, 4));
  Var touched = Var(known) * x;  // its leaf is on the tape already
  for (const Function& f : {Function([&](In v) { return v[0] * w; }), Function([&](In v) { return v[0] * known; })}) {
    Var y = checkpoint(f, {x});
    CHECK(
        says(error_of([&] { tape.backward(sum(y), Keep::tape); }), {"backward of checkpoint", "captures a Parameter"}));
    CHECK(says(error_twice(y, x), {"backward of checkpoint", "hand it in as an input"}));
  }
  Var y = checkpoint([&](In v) { return v[0] * captured; }, {x});
  CHECK(says(error_of([&] { tape.backward(sum(y), Keep::tape); }), {"backward of checkpoint", "tape", "detach"}));
  CHECK(says(error_twice(y, x), {"backward of checkpoint", "hand it in as an input"}));
  // what is handed in, or detached, is welcome
  Var given = checkpoint([&](In v) { return v[0] * v[1] * captured.detach(); }, {x, w});
  CHECK(close(tape.backward(sum(given), Keep::tape)[w], (x.value() * captured.value()).value(), exact));
}

TEST_CASE("checkpoint refuses what it captures where no input is tracked") {
  const Parameter w(normal({3}, F64, 1));
  const Tensor x = normal({3}, F64, 2);
  Tape tape;
  Var captured = tape.leaf(x);
  for (const Function& f :
       {Function([&](In v) { return v[0] * w; }), Function([&](In v) { return v[0] * captured; })}) {
    CHECK(says(error_of([&] { checkpoint(f, {x}); }), {"checkpoint: f captures", "hand it in as an input"}));
  }
  CHECK_FALSE(checkpoint([](In v) { return v[0] * 2; }, {x}).tracked());
}

TEST_CASE("a definition may be one of its inputs and nothing else that is tracked") {
  Tape tape;
  Var a = tape.leaf(normal({3}, F64, 1)), b = tape.leaf(normal({3}, F64, 2));
  Var y = checkpoint([](In v) { return v[0]; }, {a, b});
  std::vector<Var> g = grad(sum(y), {a, b}, {.create_graph = true, .allow_unused = true});
  CHECK(same_bits(g[0].value(), Tensor::ones({3}, F64)));
  CHECK_FALSE(g[1].defined());
  CHECK(says(error_of([&] { checkpoint([&](In) { return b; }, {a}); }), {"checkpoint: f captures"}));
  Var other = fused_product(a, a, [&](In) { return b; });
  CHECK(says(error_twice(other, a), {"backward of fused_product", "hand it in as an input"}));
}

TEST_CASE("an input that checkpoint's function does not use has no gradient") {
  Tape tape;
  Var a = tape.leaf(normal({3}, F64, 1)), b = tape.leaf(normal({3}, F64, 2));
  Var y = checkpoint([](In v) { return v[0] * 2; }, {a, b});
  Gradients grads = tape.backward(sum(y), Keep::tape);
  CHECK(grads.find(a) != nullptr);
  CHECK(grads.find(b) == nullptr);
}

TEST_CASE("a definition refuses what it captures at second and third order") {
  const Parameter w(normal({3}, F64, 1));
  Tape tape;
  Var x = tape.leaf(normal({3}, F64, 2)), captured = tape.leaf(Tensor::ones({3}, F64));
  Var first = fused_product(x, x, [&](In v) { return product_of_ops(v) * captured; });
  Var second = fused_product(x, x, [&](In v) { return product_of_ops(v) * w; });
  for (const Var& y : {first, second}) {
    CHECK(error_of([&] { tape.backward(sum(y), Keep::tape); }).empty());  // the kernel needs no definition
    CHECK(says(error_twice(y, x), {"backward of fused_product", "hand it in as an input"}));
  }
  // inside another fused op's definition
  Var nested = checkpoint([&](In v) { return fused_product(v[0], v[0], [&](In u) { return u[0] * captured; }); }, {x});
  CHECK(says(error_twice(nested, x), {"backward of fused_product", "hand it in as an input"}));
  Var wide = fused_product(x, x, [](In v) { return sum(product_of_ops(v)); });
  CHECK(says(error_twice(wide, x), {"the definition has shape ()", "(3,)"}));
}
}
