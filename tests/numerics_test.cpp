// Edges of the arithmetic: ties, singular points, overflow, empty averages, illegal ids, masks, padding.
#include <tapedeck/models/metrics.h>
#include <tapedeck/nn/embedding.h>
#include <tapedeck/nn/linear.h>
#include <tapedeck/nn/optim.h>
#include <tapedeck/ops/ops.h>

#include <functional>
#include <thread>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr DType F32 = DType::f32, F64 = DType::f64;

// The gradient of sum(weights * f(x)).
template <class F>
Tensor gradient(const Tensor& x, const Tensor& weights, F f) {
  Tape tape;
  Var leaf = tape.leaf(x);
  return tape.backward(f(leaf), weights)[leaf];
}
template <class F>
Tensor gradient(const Tensor& x, F f) {
  Tape tape;
  Var leaf = tape.leaf(x);
  return tape.backward(sum(f(leaf)))[leaf];
}

CrossEntropyOptions reduced(Reduction reduction, std::optional<int64_t> ignore = std::nullopt) {
  return {.ignore_index = ignore, .reduction = reduction};
}

}  // namespace

TEST_SUITE("numerics") {
// ---- Ties and kinks -------------------------------------------------------------------------------------------

TEST_CASE("ties share the gradient of max evenly") {
  auto largest = [](const Var& x) { return max(x); };
  CHECK(close(gradient(f64({1, 2, 2, 2}), largest), f64({0, 1.0 / 3, 1.0 / 3, 1.0 / 3}), 1e-15));
  CHECK(close(gradient(f64({{3, 3}, {3, 3}}), largest), Tensor::full({2, 2}, 0.25, F64), 1e-15));
  Tensor x = f64({{1, 5, 5}, {7, 7, 7}, {2, 9, 1}});
  CHECK(close(gradient(x, f64({10, 3, -1}), [](const Var& v) { return max(v, 1); }),
              f64({{0, 5, 5}, {1, 1, 1}, {0, -1, 0}}), 1e-15));
  CHECK(close(gradient(x, f64({{2, 4, 8}}), [](const Var& v) { return max(v, 0, true); }),
              f64({{0, 0, 0}, {2, 0, 8}, {0, 4, 0}}), 1e-15));
  for (DType dtype : {F32, F64}) {
    constexpr int64_t n = 70'000;
    Tensor g = gradient(Tensor::full({n}, 4, dtype), largest);
    CHECK(g.at({0}) == doctest::Approx(1.0 / n).epsilon(1e-6));
    CHECK(g.at({n - 1}) == g.at({0}));
    CHECK(sum(g).item() == doctest::Approx(1).epsilon(1e-6));
  }
  CHECK(close(gradient(f64({-inf, -inf}), largest), f64({0.5, 0.5}), 0));
  CHECK(close(gradient(f64({inf, 1}), largest), f64({1, 0}), 0));
  CHECK(close(gradient(f64({-0.0, 0.0}), largest), f64({0.5, 0.5}), 0));
}

TEST_CASE("argmax takes the lowest index of equals") {
  CHECK(argmax(f64({1, 3, 3})).item() == 1);
  CHECK(argmax(f64({0, 0, 0, 0, 0})).item() == 0);
  CHECK(argmax(tensor({4, 4})).item() == 0);
  CHECK(values(argmax(f64({{1, 2}, {2, 2}, {0, 5}}), 0).value()) == std::vector<double>{1, 2});
  CHECK(argmax(f64({-inf, -inf})).item() == 0);
  CHECK(says(error_of([] { argmax(f64({1, not_a_number})); }), {"argmax", "NaN", "position 1"}));
  CHECK(std::isnan(max(f64({1, not_a_number, 3})).item()));
}

TEST_CASE("relu has derivative 0 at 0 and keeps NaN") {
  CHECK(same_bits(gradient(f64({-1, 0, 2}), [](const Var& x) { return relu(x); }), f64({0, 0, 1})));
  for (DType dtype : {F32, F64}) {
    std::vector<double> y = values(relu(tensor({inf, -inf, not_a_number, -3.0, 3.0}, dtype)).value());
    CHECK(y[0] == inf);
    CHECK(y[1] == 0);
    CHECK(std::isnan(y[2]));
    CHECK(y[3] == 0);
    CHECK(y[4] == 3);
  }
}

// ---- Singular points ------------------------------------------------------------------------------------------

TEST_CASE("no incoming gradient gives exactly none at singular points") {
  struct Case {
    const char* name;
    double at, first, second;  // where the factor is not finite; f' and f'' at 4
    std::function<Var(const Var&)> f;
  };
  const Case cases[] = {
      {"sqrt", 0, 0.25, -0.03125, [](const Var& x) { return sqrt(x); }},
      {"log", 0, 0.25, -0.0625, [](const Var& x) { return log(x); }},
      {"reciprocal", 0, -0.0625, 0.03125, [](const Var& x) { return 1 / x; }},
      {"quotient", 0, 0, 0, [](const Var& x) { return x / x; }},
      {"exp", 1000, std::exp(4), std::exp(4), [](const Var& x) { return exp(x); }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    for (DType dtype : {F32, F64}) {
      const double tolerance = dtype == F32 ? 1e-6 : 1e-14;
      Tensor at = tensor({c.at, 4.0}, dtype), weights = tensor({0, 1}, dtype);
      Tape tape;
      Var x = tape.leaf(at);
      Var y = c.f(x);
      Tensor g = tape.backward(y, weights, Keep::tape)[x];
      CHECK(g.at({0}) == 0);
      CHECK(g.at({1}) == doctest::Approx(c.first).epsilon(tolerance));
      Var first = grad(y, {x}, {.create_graph = true, .seed = Var(weights)})[0];
      CHECK(first.value().at({0}) == 0);
      Var second = grad(first, {x}, {.seed = Var(weights)})[0];
      CHECK(second.value().at({0}) == 0);
      CHECK(second.value().at({1}) == doctest::Approx(c.second).epsilon(tolerance));
    }
  }
  // What is selected away upstream is exactly 0 too: the usual way to dodge a pole.
  Tensor x = f64({0, 4});
  CHECK(same_bits(gradient(x, [](const Var& v) { return where(v > 0, sqrt(v), 0); }), f64({0, 0.25})));
  CHECK(same_bits(gradient(x, [](const Var& v) { return masked_fill(log(v), v <= 0, 0); }), f64({0, 0.25})));
}

TEST_CASE("with incoming gradient singular points are infinite") {
  CHECK(gradient(f64({0}), [](const Var& x) { return sqrt(x); }).item() == inf);
  CHECK(gradient(f64({0}), [](const Var& x) { return log(x); }).item() == inf);
  CHECK(gradient(f64({0}), [](const Var& x) { return 1 / x; }).item() == -inf);
  CHECK(log(f64(0)).item() == -inf);
  CHECK(std::isnan(log(f64(-1)).item()));
  CHECK(std::isnan(sqrt(f64(-1)).item()));
  CHECK((1 / Var(f64(0))).item() == inf);
  CHECK(std::isnan((Var(f64(0)) / Var(f64(0))).item()));
}

// ---- Overflow -------------------------------------------------------------------------------------------------

TEST_CASE("sigmoid and tanh and exp at a thousand") {
  for (DType dtype : {F32, F64}) {
    Tensor x = tensor({-1000, 0, 1000}, dtype);
    CHECK(same_bits(sigmoid(x).value(), tensor({0, 0.5, 1}, dtype)));
    CHECK(same_bits(gradient(x, [](const Var& v) { return sigmoid(v); }), tensor({0, 0.25, 0}, dtype)));
    CHECK(same_bits(tanh(x).value(), tensor({-1, 0, 1}, dtype)));
    CHECK(same_bits(gradient(x, [](const Var& v) { return tanh(v); }), tensor({0, 1, 0}, dtype)));
    CHECK(same_bits(exp(x).value(), tensor({0.0, 1.0, inf}, dtype)));
    CHECK(same_bits(gradient(x, [](const Var& v) { return exp(v); }), tensor({0.0, 1.0, inf}, dtype)));
    Tensor ends = tensor({-inf, inf}, dtype);
    CHECK(same_bits(sigmoid(ends).value(), tensor({0, 1}, dtype)));
    CHECK(same_bits(tanh(ends).value(), tensor({-1, 1}, dtype)));
    for (double v : values(gradient(ends, [](const Var& u) { return sigmoid(u) + tanh(u); }))) CHECK(v == 0);
  }
  CHECK(sigmoid(f64(-700)).item() == doctest::Approx(std::exp(-700.0)).epsilon(1e-13));  // small, not 0
  CHECK(sigmoid(f32(-80)).item() == doctest::Approx(std::exp(-80.0)).epsilon(1e-6));
}

TEST_CASE("log_softmax of large logits") {
  Tensor x = f64({0, -800, 1});
  CHECK(close(log_softmax(x).value(), f64({-1.3132616875, -801.3132616875, -0.3132616875}), 1e-12));
  CHECK(close(gradient(x, f64({1, 2, 3}), [](const Var& v) { return log_softmax(v); }),
              f64({-0.61364852822, 2, -1.38635147178}), 1e-11));
  for (DType dtype : {F32, F64}) {
    Tensor far = tensor({94.697, -40.114, 0.0}, dtype);
    CHECK(close(log_softmax(far).value(), tensor({0.0, -134.811, -94.697}, dtype), dtype == F32 ? 1e-6 : 1e-12));
    Tensor wide = tensor({{1000, 0, -1000}}, dtype), label = tensor({2});
    CHECK(cross_entropy(wide, label).item() == 2000);
    CHECK(
        same_bits(gradient(wide, [&](const Var& v) { return cross_entropy(v, label); }), tensor({{1, 0, -1}}, dtype)));
    CHECK(same_bits(softmax(wide).value(), tensor({{1, 0, 0}}, dtype)));
    CHECK(logsumexp(wide).item() == 1000);
    CHECK(logsumexp(tensor({-1000, -1000}, dtype)).item() == doctest::Approx(-1000 + std::log(2)).epsilon(1e-6));
  }
}

TEST_CASE("logsumexp where everything is minus infinity or nothing is there") {
  CHECK(logsumexp(f64({-inf, -inf})).item() == -inf);
  CHECK(same_bits(gradient(f64({-inf, -inf}), [](const Var& x) { return logsumexp(x); }), f64({0, 0})));
  CHECK(logsumexp(Tensor::zeros({0}, F64)).item() == -inf);
  CHECK(logsumexp(f64({-inf, 2})).item() == 2);
  CHECK(same_bits(gradient(f64({-inf, 2}), [](const Var& x) { return logsumexp(x); }), f64({0, 1})));
}

TEST_CASE("softmax denominators of f32 keep their digits") {
  constexpr int64_t n = 1'000'000;
  Tensor y = softmax(Tensor::zeros({n})).value();
  CHECK(y.at({0}) == doctest::Approx(1e-6).epsilon(1e-6));
  CHECK(sum(y).item() == doctest::Approx(1).epsilon(1e-6));
  CHECK(log_softmax(Tensor::zeros({n})).value().at({7}) == doctest::Approx(-std::log(1e6)).epsilon(1e-6));
  CHECK(logsumexp(Tensor::zeros({n})).item() == doctest::Approx(std::log(1e6)).epsilon(1e-6));
}

// ---- Losses ---------------------------------------------------------------------------------------------------

TEST_CASE("losses do not broadcast") {
  Tensor logits = Tensor::zeros({3, 2, 4});
  for (const Shape& shape : {Shape{3, 1}, Shape{1, 2}, Shape{2}, Shape{3}, Shape{3, 2, 1}, Shape{6}, Shape{}}) {
    Tensor targets = Tensor::zeros(shape, DType::i64);
    CHECK(says(error_of([&] { cross_entropy(logits, targets); }),
               {"cross_entropy", "(3, 2)", "(3, 2, 4)", to_string(shape)}));
  }
  CHECK(says(error_of([&] { cross_entropy(logits, Tensor::zeros({3, 2})); }), {"cross_entropy", "i64", "f32"}));
  CHECK(says(error_of([&] { cross_entropy(tensor({1, 2}), tensor(0)); }), {"cross_entropy", "floating", "i64"}));
  CHECK(says(error_of([&] { cross_entropy(f64(1), tensor(0)); }), {"cross_entropy", "()"}));
  CHECK(
      says(error_of([&] { cross_entropy(f64({1}), tensor(0), {.label_smoothing = 1.5}); }), {"cross_entropy", "1.5"}));
  CHECK(cross_entropy(f64({0, 0}), tensor(1)).item() == doctest::Approx(std::log(2)).epsilon(1e-15));
}

TEST_CASE("cross entropy with every target ignored is 0 with zero gradients") {
  Tensor logits = normal({3, 3}, F64, 1), targets = tensor({-1, -1, -1});
  for (double smoothing : {0.0, 0.1}) {
    for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      CrossEntropyOptions options = reduced(reduction, -1);
      options.label_smoothing = smoothing;
      auto loss = [&](const Var& x) { return cross_entropy(x, targets, options); };
      Tensor y = loss(logits).value();
      CHECK(y.shape() == (reduction == Reduction::none ? Shape{3} : Shape{}));
      CHECK(all_zero(y));
      Tensor g = gradient(logits, loss);
      CHECK(g.shape() == Shape{3, 3});
      CHECK(all_zero(g));
    }
  }
  // Nothing there at all.
  CHECK(cross_entropy(Tensor::zeros({0, 3}, F64), Tensor::zeros({0}, DType::i64)).item() == 0);
  // Garbage in ignored rows stays there.
  Tensor dirty = f64({{1, 2, 3}, {not_a_number, inf, -inf}});
  auto loss = [&](const Var& x) { return cross_entropy(x, tensor({0, 9}), {.ignore_index = 9}); };
  CHECK(loss(dirty).item() == doctest::Approx(2.4076059644443806).epsilon(1e-14));
  CHECK(all_zero(gradient(dirty, loss).select(0, 1)));
}

TEST_CASE("illegal labels are named with every reduction") {
  Tensor logits = Tensor::zeros({3, 5});
  for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    CHECK(says(error_of([&] {
                 cross_entropy(logits, tensor({1, 3, -4}), reduced(reduction, -1));
               }),
               {"cross_entropy", "-4", "position 2", "0 to 4", "-1"}));
    CHECK(says(error_of([&] {
                 cross_entropy(logits, tensor({1, 5, 0}), reduced(reduction));
               }),
               {"cross_entropy", "5", "position 1", "0 to 4"}));
    CHECK(says(error_of([&] {
                 cross_entropy(logits, tensor({-1, 2, 0}), reduced(reduction));
               }),
               {"cross_entropy", "-1", "position 0"}));
    CHECK(says(error_of([&] {
                 cross_entropy(logits, tensor({1, 2, int64_t{1} << 40}), reduced(reduction));
               }),
               {"position 2"}));
  }
}

TEST_CASE("an ignored class leaves the targets and stays in the softmax") {
  Tensor logits = f64({{2, 1, 0}, {0, 1, 5}, {1, 1, 1}}), targets = tensor({1, 0, 2});
  auto mean_loss = [&](const Var& x) { return cross_entropy(x, targets, reduced(Reduction::mean, 0)); };
  double first = -1 + std::log(std::exp(2) + std::exp(1) + 1), third = std::log(3);
  CHECK(mean_loss(logits).item() == doctest::Approx((first + third) / 2).epsilon(1e-14));  // divided by 2, not by 3
  Tensor g = gradient(logits, mean_loss);
  CHECK(all_zero(g.select(0, 1)));
  CHECK(g.at({0, 0}) == doctest::Approx(std::exp(2) / (std::exp(2) + std::exp(1) + 1) / 2).epsilon(1e-14));
  Tensor none = cross_entropy(logits, targets, reduced(Reduction::none, 0)).value();
  CHECK(close(none, f64({first, 0, third}), 1e-14));
  CHECK(cross_entropy(logits, targets, reduced(Reduction::sum, 0)).item() ==
        doctest::Approx(first + third).epsilon(1e-14));
}

TEST_CASE("label smoothing spreads over all classes and skips what is ignored") {
  Tensor logits = f64({{2, 1, 0}, {0, 0, 0}, {1, 3, 1}}), targets = tensor({0, 2, -7});
  auto loss = [&](const Var& x) { return cross_entropy(x, targets, {.ignore_index = -7, .label_smoothing = 0.1}); };
  CHECK(loss(logits).item() == doctest::Approx(0.8031091265562451).epsilon(1e-14));
  CHECK(close(gradient(logits, loss),
              f64({{-0.1340461888, 0.1056975689, 0.0283486199}, {.15, .15, -.3}, {0, 0, 0}}).mul_(1), 1e-10));
  // Two classes: no division by a number of other classes.
  CHECK(cross_entropy(f64({{0, 0}}), tensor({1}), {.label_smoothing = 0.5}).item() ==
        doctest::Approx(std::log(2)).epsilon(1e-14));
  CHECK(cross_entropy(f64({{3}}), tensor({0}), {.label_smoothing = 0.5}).item() == 0);
}

TEST_CASE("perplexity is one exp of all losses over all tokens") {
  const double ln2 = std::log(2);
  Perplexity whole, by_row;
  whole.add(ln2 + ln2 + 3 * ln2 + 2 * ln2, 4);
  by_row.add(ln2 + ln2 + 3 * ln2, 3);
  by_row.add(2 * ln2, 1);
  CHECK(whole.value() == doctest::Approx(3.363585661).epsilon(1e-9));
  CHECK(by_row.value() == doctest::Approx(whole.value()).epsilon(1e-15));
  by_row.add(0, 0);  // a batch without tokens counts for nothing
  CHECK(by_row.value() == doctest::Approx(whole.value()).epsilon(1e-15));
  Perplexity huge;
  huge.add(2000, 2);
  CHECK(huge.value() == inf);
  CHECK(huge.log_value() == 1000);
  CHECK(says(error_of([] { Perplexity().value(); }), {"perplexity", "no tokens"}));
  CHECK(says(error_of([&] { huge.add(1, -1); }), {"perplexity", "-1"}));
  CHECK(says(error_of([&] { huge.add(not_a_number, 1); }), {"perplexity", "nan"}));
  CHECK(huge.log_value() == 1000);
  // From the op: pads are ignored targets, with the summed loss and the number of the others.
  Tensor logits = log(f64({{{0.5, 0.5, 0, 0}, {0.5, 0.5, 0, 0}, {0.125, 0.875, 0, 0}},
                           {{0.25, 0.75, 0, 0}, {0.9, 0.1, 0, 0}, {1, 0, 0, 0}}}))
                      .value();
  Tensor targets = tensor({{0, 1, 0}, {0, 3, 3}});
  Perplexity model;
  model.add(cross_entropy(logits, targets, reduced(Reduction::sum, 3)).item(), 4);
  CHECK(model.value() == doctest::Approx(3.363585661).epsilon(1e-9));
}

// ---- Ids ------------------------------------------------------------------------------------------------------

TEST_CASE("repeated ids add up and the pad row gets nothing") {
  Tensor table = range({5, 3});
  CHECK(same_bits(gradient(table,
                           [](const Var& w) {
                             return embedding(w, tensor({{0, 1, 1, 2}}), 0);
                           }),
                  f64({{0, 0, 0}, {2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}})));
  Tensor weights = f64({{{1, 1, 1}, {2, 2, 2}, {3, 3, 3}}, {{4, 4, 4}, {5, 5, 5}, {6, 6, 6}}});
  CHECK(same_bits(gradient(table, weights,
                           [](const Var& w) {
                             return embedding(w, tensor({{3, 1, 1}, {4, 3, 3}}));
                           }),
                  f64({{0, 0, 0}, {5, 5, 5}, {0, 0, 0}, {12, 12, 12}, {4, 4, 4}})));
  for (int64_t pads : {1, 768, 769, 5000}) {
    for (DType dtype : {F32, F64}) {
      Tensor ids = Tensor::zeros({pads + 1}, DType::i64);
      ids.set({pads / 2}, 4);
      Tensor g = gradient(table.to(dtype), [&](const Var& w) { return embedding(w, ids, 0); });
      CHECK(all_zero(g.slice(0, 0, 4)));
      CHECK(same_bits(g.select(0, 4), Tensor::ones({3}, dtype)));
    }
  }
}

TEST_CASE("a pad row that is not zero is used and left alone by Adam") {
  Rng rng(3);
  Embedding lookup(6, 4, rng, {.padding_idx = 2, .dtype = F64});
  CHECK(all_zero(lookup.weight.value().select(0, 2)));
  lookup.weight.mutable_value().select(0, 2).fill_(1.5);  // as if loaded from a file
  Tensor before = lookup.weight.value().clone();
  CHECK(same_bits(lookup(tensor({2, 2})).value(), Tensor::full({2, 4}, 1.5, F64)));
  Adam optimizer(lookup, {.lr = 0.1});
  for (int64_t pads : {2, 769, 5000}) {  // momentum is in the state from the first step on
    Tensor ids = Tensor::full({pads + 2}, 2, DType::i64);
    ids.set({0}, 1), ids.set({pads + 1}, 5);
    Tape tape;
    Var y = lookup(ids);
    optimizer.step(tape.backward(sum(y * y)));
  }
  Tensor after = lookup.weight.value();
  CHECK(same_bits(after.select(0, 2), before.select(0, 2)));
  CHECK(same_bits(after.select(0, 0), before.select(0, 0)));
  for (int64_t row : {1, 5}) {
    for (int64_t i = 0; i < 4; ++i) CHECK(after.at({row, i}) != before.at({row, i}));
  }
  // Frozen through the lookup only: a tied output layer still trains the row.
  Tape tape;
  Gradients g = tape.backward(sum(linear(lookup(tensor({2, 1})), lookup.weight)));
  for (int64_t i = 0; i < 4; ++i) CHECK(g[lookup.weight].at({2, i}) == doctest::Approx(1.5 + after.at({1, i})));
}

TEST_CASE("a zero incoming gradient or a second derivative leaves the pad row out too") {
  Tape tape;
  Var w = tape.leaf(range({4, 2}));
  Var y = embedding(w, tensor({1, 0, 1}), 1);
  Var first = grad(sum(y * y * y), {w}, {.create_graph = true})[0];
  CHECK(values(first.value()) == std::vector<double>{0, 3, 0, 0, 0, 0, 0, 0});
  Var second = grad(sum(first), {w})[0];
  CHECK(values(second.value()) == std::vector<double>{0, 6, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("ids out of range are named before anything is written") {
  Tensor table = range({10, 2}), square = range({10, 10});
  for (int64_t id : {int64_t{10}, int64_t{-1}, int64_t{1} << 40, std::numeric_limits<int64_t>::min()}) {
    std::string number = std::to_string(id);
    CHECK(says(error_of([&] {
                 embedding(table, tensor({{0, 1}, {id, 2}}));
               }),
               {"embedding", number, "position 2", "(2, 2)", "0 to 9"}));
    CHECK(says(error_of([&] { gather(square, 1, tensor({{0, 9, id}})); }), {"gather", number, "position 2", "0 to 9"}));
    CHECK(says(error_of([&] { index_select(square, 1, tensor({id})); }), {"index_select", number, "position 0"}));
    CHECK(says(error_of([&] { index_add(range({1, 2}), 10, 0, tensor({id})); }), {"index_add", number}));
    CHECK(says(error_of([&] {
                 cross_entropy(square.slice(0, 0, 2), tensor({9, id}));
               }),
               {"cross_entropy", number, "position 1", "0 to 9"}));
  }
  CHECK(embedding(table, tensor({9})).value().at({0, 1}) == 19);
  CHECK(says(error_of([&] { embedding(table, f64({1})); }), {"embedding", "i64", "f64"}));
  CHECK(says(error_of([&] { embedding(table, tensor({1}), 10); }), {"embedding", "padding row 10", "0 to 9"}));
  CHECK(says(error_of([&] { embedding(Tensor::zeros({0, 2}), tensor({0})); }), {"embedding", "out of range"}));
  CHECK(embedding(table, Tensor::zeros({0, 3}, DType::i64)).shape() == Shape{0, 3, 2});
}

// ---- Masks and softmax ----------------------------------------------------------------------------------------

TEST_CASE("true in a mask means that the position counts") {
  Tensor scores = f64({1, 2, 3, 4}), valid = tensor({true, true, false, false});
  Tensor right = f64({0.2689414214, 0.7310585786, 0, 0});
  Tensor y = masked_softmax(scores, valid).value();
  CHECK(close(y, right, 1e-10));
  CHECK(y.at({2}) == 0);
  CHECK(y.at({3}) == 0);
  for (double filler : {-inf, -1e9, std::numeric_limits<double>::lowest()}) {
    CHECK(close(softmax(masked_fill(scores, tensor({false, false, true, true}), filler)).value(), right, 1e-10));
  }
  CHECK(same_bits(masked_softmax(scores, Tensor::full({4}, true, DType::boolean)).value(), softmax(scores).value()));
  CHECK(says(error_of([&] { masked_softmax(scores, f64({1, 1, 0, 0})); }), {"masked_softmax", "boolean", "f64"}));
  CHECK(says(error_of([&] { masked_softmax(scores, tensor({1, 1, 0, 0})); }), {"masked_softmax", "boolean", "i64"}));
  CHECK(says(error_of([&] { masked_softmax(scores, tensor({true, false})); }), {"masked_softmax", "(4,)", "(2,)"}));
  CHECK(says(error_of([&] { masked_fill(scores, f64({1, 1, 0, 0}), 0); }), {"masked_fill", "boolean", "f64"}));
  CHECK(says(error_of([&] { where(scores, scores, 0); }), {"where", "boolean", "f64"}));
}

TEST_CASE("a masked key or value changes no bit of values and gradients") {
  for (DType dtype : {F32, F64}) {
    const int64_t B = 2, T = 3, S = 5, H = 4;
    Tensor query = normal({B, T, H}, dtype, 1), keys = normal({B, S, H}, dtype, 2), value = normal({B, S, H}, dtype, 3);
    Tensor seed = normal({B, T, H}, dtype, 4);
    Tensor mask = tensor({{{true, true, false, true, false}}, {{true, false, false, false, false}}});
    struct Result {
      Tensor context, query, keys, value;
    };
    auto attend = [&](const Tensor& k, const Tensor& v) {
      Tape tape;
      Var q = tape.leaf(query), lk = tape.leaf(k), lv = tape.leaf(v);
      Var context = bmm(masked_softmax(bmm(q, transpose(lk)), mask), lv);
      Gradients g = tape.backward(context, seed);
      return Result{context.value(), g[q], g[lk], g[lv]};
    };
    Result plain = attend(keys, value);
    for (double junk : {0.0, -7.5, 1e6, 1e30}) {
      Tensor k = keys.clone(), v = value.clone();
      for (int64_t b = 0; b < B; ++b) {
        for (int64_t s = 0; s < S; ++s) {
          if (mask.at({b, 0, s}) == 1) continue;
          k.select(0, b).select(0, s).fill_(junk);
          v.select(0, b).select(0, s).fill_(-junk);
        }
      }
      Result changed = attend(k, v);
      CHECK(same_bits(changed.context, plain.context));
      CHECK(same_bits(changed.query, plain.query));
      CHECK(same_bits(changed.keys, plain.keys));
      CHECK(same_bits(changed.value, plain.value));
    }
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t s = 0; s < S; ++s) {
        if (mask.at({b, 0, s}) == 1) continue;
        CHECK(all_zero(plain.keys.select(0, b).select(0, s)));
        CHECK(all_zero(plain.value.select(0, b).select(0, s)));
      }
    }
  }
}

TEST_CASE("a row with nothing to attend to is all zero beside a good one") {
  for (DType dtype : {F32, F64}) {
    Tensor scores = tensor({{1.0, 2.0, 3.0, 4.0}, {1.0, 2.0, 3.0, 4.0}, {inf, -inf, not_a_number, 1.0}}, dtype);
    Tensor mask = tensor({{false, false, false, false}, {true, true, false, false}, {false, false, false, true}});
    Tensor right =
        tensor({{0.0, 0.0, 0.0, 0.0}, {0.2689414213699951, 0.7310585786300049, 0.0, 0.0}, {0.0, 0.0, 0.0, 1.0}}, dtype);
    Tape tape;
    Var x = tape.leaf(scores);
    Var y = masked_softmax(x, mask);
    CHECK(close(y.value(), right, dtype == F64 ? 1e-15 : 1e-7));
    Tensor seed = normal({3, 4}, dtype, 1);
    Tensor g = tape.backward(y, seed, Keep::tape)[x];
    CHECK(all_zero(g.select(0, 0)));
    CHECK(all_zero(g.select(0, 2)));
    CHECK(g.at({1, 0}) != 0);
    CHECK(g.at({1, 2}) == 0);
    for (double v : values(g)) CHECK(std::isfinite(v));
    // And to second order.
    Var first = grad(y, {x}, {.create_graph = true, .seed = Var(seed)})[0];
    for (double v : values(grad(sum(first * first), {x})[0].value())) CHECK(std::isfinite(v));
    // Causal and padding masks that empty a row together.
    Tensor causal = tensor({{true, false}, {true, true}}), padding = tensor({{false, true}});
    Tensor both = where(causal, padding.expand({2, 2}), Tensor::full({}, false, DType::boolean)).value();
    CHECK(same_bits(masked_softmax(tensor({{1, 2}, {3, 4}}, dtype), both).value(), tensor({{0, 0}, {0, 1}}, dtype)));
    CHECK(same_bits(masked_softmax(tensor({{1, 2}}, dtype), tensor({{false}, {true}}).slice(0, 0, 1), 0).value(),
                    tensor({{0, 0}}, dtype)));
  }
}

TEST_CASE("attention weights are normalised over the keys") {
  Tensor x = f64({{1, 0}, {0, 1}, {1, 1}});
  Tensor scores = (matmul(x, x.transpose()) / std::sqrt(2.0)).value();
  Tensor rows = f64({{0.4011120927, 0.1977758146, 0.4011120927},
                     {0.1977758146, 0.4011120927, 0.4011120927},
                     {0.2482550783, 0.2482550783, 0.5034898435}});
  Tensor weights = softmax(scores).value();
  CHECK(close(weights, rows, 1e-10));
  CHECK(close(matmul(weights, x).value(),
              f64({{0.8022241854, 0.5988879073}, {0.5988879073, 0.8022241854}, {0.7517449217, 0.7517449217}}), 1e-10));
  CHECK(close(softmax(scores, 0).value().select(1, 2), f64({0.2482550783, 0.2482550783, 0.5034898435}).slice(0, 0, 3),
              1e-10));
  CHECK(close(softmax(matmul(x, x.transpose())).value().select(0, 0), f64({0.4223187983, 0.1553624035, 0.4223187983}),
              1e-10));
  // More queries than keys, so that the axes cannot be confused.
  Tensor wide = softmax(normal({2, 5, 3}, F64, 1)).value();
  CHECK(close(sum(wide, -1).value(), Tensor::ones({2, 5}, F64), 1e-15));
  for (double v : values(sum(wide, 1).value())) CHECK(std::abs(v - 1) > 1e-3);
  // With a causal mask, the gradients of a weighted sum of the outputs.
  Tensor causal = tensor({{true, false, false}, {true, true, false}, {true, true, true}});
  Tape tape;
  Var leaf = tape.leaf(x);
  Var context = matmul(masked_softmax(matmul(leaf, transpose(leaf)) / std::sqrt(2.0), causal), leaf);
  CHECK(close(context.value(), f64({{1, 0}, {0.3302384507, 0.6697615493}, {0.7517449217, 0.7517449217}}), 1e-10));
  CHECK(close(tape.backward(context, f64({{1, 2}, {3, 4}, {5, 6}}))[leaf],
              f64({{2.658107089204644, 4.080202021590599},
                   {2.6958206379195073, 4.083033055139219},
                   {3.8880144811347055, 4.567047173919292}}),
              1e-14));
}

// ---- Joining and cutting --------------------------------------------------------------------------------------

TEST_CASE("stack and cat check shapes and give gradients back in order") {
  CHECK(says(error_of([] { stack({f64({1, 2, 3}), f64({{1}, {2}, {3}})}); }), {"stack", "(3,)", "(3, 1)"}));
  CHECK(says(error_of([] { stack({f64({1}), f64({1, 2})}); }), {"stack", "part 1", "(1,)", "(2,)"}));
  CHECK(says(error_of([] { cat({f64({{1, 2}}), f64({{1, 2, 3}})}); }), {"cat", "part 1", "(1, 2)", "(1, 3)"}));
  CHECK(says(error_of([] { cat({f64({1}), f64({{1}})}); }), {"cat", "(1,)", "(1, 1)"}));
  CHECK(says(error_of([] { cat({f64({1}), f32({1})}); }), {"cat", "f64", "f32"}));
  CHECK(says(error_of([] { cat({f64(1), f64(2)}); }), {"cat", "rank 0"}));
  CHECK(says(error_of([] { cat(std::vector<Var>{}); }), {"cat", "at least one"}));
  CHECK(says(error_of([] { stack(std::vector<Var>{}); }), {"at least one"}));
  CHECK(stack({f64(1), f64(2)}).shape() == Shape{2});
  Tape tape;
  Var x = tape.leaf(f64({1, 2})), empty = tape.leaf(Tensor::zeros({0}, F64)), z = tape.leaf(f64({3}));
  Var joined = cat({x, empty, z, x});
  CHECK(values(joined.value()) == std::vector<double>{1, 2, 3, 1, 2});
  Gradients g = tape.backward(joined, f64({10, 20, 30, 40, 50}), Keep::tape);
  CHECK(values(g[x]) == std::vector<double>{50, 70});
  CHECK(values(g[z]) == std::vector<double>{30});
  CHECK(g[empty].shape() == Shape{0});
  Var stacked = stack({x, x}, -1);
  CHECK(values(stacked.value()) == std::vector<double>{1, 1, 2, 2});
  CHECK(values(tape.backward(stacked, f64({{1, 2}, {3, 4}}))[x]) == std::vector<double>{3, 7});
}

TEST_CASE("split keeps its axis and select drops it") {
  Tensor w = f64({{1, 2}, {3, 4}});
  Tape tape;
  Var a = tape.leaf(Tensor::zeros({2, 3, 2}, F64));
  Var kept, dropped;
  for (const Var& part : split(a, 1, 1)) {
    CHECK(part.shape() == Shape{2, 1, 2});
    kept = kept.defined() ? kept + part * w : part * w;
  }
  CHECK(kept.shape() == Shape{2, 2, 2});  // (2, 1, 2) * (2, 2) repeats
  Tensor g = tape.backward(sum(kept), Keep::tape)[a];
  CHECK(same_bits(g, f64({4, 6}).expand({2, 3, 2})));
  for (int64_t i = 0; i < 3; ++i) {
    Var part = select(a, 1, i) * w;
    dropped = dropped.defined() ? dropped + part : part;
  }
  CHECK(dropped.shape() == Shape{2, 2});
  g = tape.backward(sum(dropped), Keep::tape)[a];
  CHECK(same_bits(g, w.unsqueeze(1).expand({2, 3, 2})));
  Var row = tape.leaf(range({7}));
  std::vector<Var> uneven = split(row, 3);
  CHECK(uneven.size() == 3);
  CHECK(uneven[2].shape() == Shape{1});
  CHECK(says(error_of([&] { split(row, {3, 3}); }), {"split", "(3, 3)", "7"}));
  CHECK(says(error_of([&] { split(row, {8, -1}); }), {"split", "(8, -1)"}));
  CHECK(says(error_of([&] { split(row, 0); }), {"split", "size >= 1"}));
}

// ---- The same numbers everywhere ------------------------------------------------------------------------------

TEST_CASE("initial values do not depend on threads or on what else is drawn") {
  auto layer = [](const char* name) {
    Rng rng(42);
    Rng own = rng.split(name);
    return Linear(5, 3, own, {.dtype = F64});
  };
  Linear first = layer("first"), second = layer("second");
  CHECK_FALSE(same_bits(first.weight.value(), second.weight.value()));
  // Drawn in row-major order from its own stream: weight, then bias.
  Rng rng = Rng(42).split("first");
  const double bound = 1 / std::sqrt(5.0);
  for (double v : values(first.weight.value())) CHECK(v == rng.uniform(-bound, bound));
  for (double v : values(first.bias.value())) CHECK(v == rng.uniform(-bound, bound));
  std::vector<Tensor> weights(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { weights[i] = layer(i % 2 ? "second" : "first").weight.value().clone(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 8; ++i) CHECK(same_bits(weights[i], (i % 2 ? second : first).weight.value()));
}

TEST_CASE("dropout keeps the mean and takes its extremes") {
  Tensor x = Tensor::ones({100'000}, F64);
  Rng rng(1), same(1);
  Tensor y = dropout(x, 0.25, &rng).value();
  CHECK(same_bits(y, dropout(x, 0.25, &same).value()));
  CHECK(mean(y).item() == doctest::Approx(1).epsilon(0.01));
  for (int64_t i = 0; i < 100; ++i) CHECK((y.at({i}) == 0 || y.at({i}) == doctest::Approx(4.0 / 3)));
  CHECK(same_bits(dropout(x, 0, &rng).value(), x));
  CHECK(all_zero(dropout(x, 1, &rng).value()));
  CHECK(same_bits(dropout(x, 0.5, nullptr).value(), x));
  CHECK(all_zero(gradient(f64({1, inf}), [&](const Var& v) { return dropout(v, 1, &rng); })));
  CHECK(says(error_of([&] { dropout(x, 1.5, &rng); }), {"dropout", "1.5"}));
  CHECK(says(error_of([&] { dropout(x, not_a_number, nullptr); }), {"dropout", "nan"}));
}
}
