// B batch, S source positions, Q query size, K key size, A attention size.
#include <tapedeck/core/gradcheck.h>
#include <tapedeck/nn/attention.h>
#include <tapedeck/ops/ops.h>

#include <cmath>

#include "module_audit.h"
#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

using Ints = std::vector<int64_t>;

void check_close(const Tensor& a, const std::vector<double>& b, double tolerance) {
  std::vector<double> u = values(a);
  REQUIRE(u.size() == b.size());
  for (size_t i = 0; i < u.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(u[i] - b[i]) <= tolerance);
  }
}

// Calls f(layer, name of the layer) for both layers.
template <class F>
void for_both(int64_t Q, int64_t K, DType dtype, Rng& rng, F f) {
  f(AdditiveAttention(Q, K, 4, rng, dtype), "additive attention");
  f(DotProductAttention(Q, K, rng, dtype), "dot-product attention");
}

struct Seen {
  Tensor context, weights;
  Tensor grad_query, grad_values;
  std::vector<Tensor> grads;  // in the order of named_parameters
};

// Gradients of sum(context * w) + sum(weights * v).
template <class Layer>
Seen look(const Layer& layer, const Tensor& query, const Tensor& source, const Tensor& mask, const Tensor& w,
          const Tensor& v) {
  Tape tape;
  Var q = tape.leaf(query), x = tape.leaf(source);
  auto [context, weights] = layer(q, layer.project(x, mask));
  Gradients g = tape.backward(sum(context * w) + sum(weights * v));
  Seen seen{context.value(), weights.value(), g[q], g[x], {}};
  for (const NamedParameter& p : named_parameters(layer)) seen.grads.push_back(g[p.parameter]);
  return seen;
}

// The layer of the worked example: 1 query against 3 keys of size 2.
AdditiveAttention worked_additive() {
  Rng rng(1);
  AdditiveAttention layer(2, 2, 2, rng, DType::f64);
  layer.W_q.weight.mutable_value().copy_(tensor({{1, 0}, {0, 1}}, DType::f64));
  layer.W_k.weight.mutable_value().copy_(tensor({{.5, -.5}, {.25, 1}}, DType::f64).transpose());
  layer.v.weight.mutable_value().copy_(tensor({{1, -2}}, DType::f64));
  return layer;
}
const Tensor worked_query = tensor({{.3, -.2}}, DType::f64);
const Tensor worked_values = tensor({{{1, 2}, {-1, .5}, {0, 1}}}, DType::f64);

DotProductAttention plain_dot(int64_t n, DType dtype = DType::f64) {
  Rng rng(1);
  DotProductAttention layer(n, n, rng, dtype);
  layer.W.weight.mutable_value().fill_(0);
  for (int64_t i = 0; i < n; ++i) layer.W.weight.mutable_value().set({i, i}, 1);
  return layer;
}

}  // namespace

TEST_SUITE("attention") {
TEST_CASE("additive attention: a worked example") {
  AdditiveAttention layer = worked_additive();
  Tape tape;
  Var q = tape.leaf(worked_query), H = tape.leaf(worked_values);
  auto [context, weights] = layer(q, layer.project(H));
  check_close(weights.value(), {0.3821455724, 0.2224253509, 0.3954290767}, 1e-9);
  check_close(context.value(), {0.1597202215, 1.2709328969}, 1e-9);
  Gradients g = tape.backward(sum(context * tensor({1, -1}, DType::f64)));
  check_close(g[q], {-0.0420911274, 0.0256375246}, 1e-9);
  check_close(g[H], {0.3985567192, -0.4012919103, 0.1310846349, -0.1472333526, 0.4364943200, -0.4363599943}, 1e-9);
  // The worked example multiplies from the right; weights here are (out, in).
  check_close(g[layer.W_q.weight].transpose(), {-0.0126273382, 0.0076912574, 0.0084182255, -0.0051275049}, 1e-9);
  check_close(g[layer.W_k.weight].transpose(), {0.0969323115, -0.1185714140, 0.0118454106, -0.0445889469}, 1e-9);
  check_close(g[layer.v.weight], {0.0651075627, 0.0084015592}, 1e-9);
}

TEST_CASE("additive attention: the scores of the worked example") {
  // Differences of log weights are differences of scores.
  AdditiveAttention layer = worked_additive();
  Tensor weights = layer(worked_query, layer.project(worked_values)).weights.value();
  const double scores[] = {-0.8617231593, -1.4029332312, -0.8275533293};
  for (int64_t s = 1; s < 3; ++s) {
    CHECK(std::abs(std::log(weights.at({0, s}) / weights.at({0, 0})) - (scores[s] - scores[0])) <= 1e-9);
  }
}

TEST_CASE("additive attention: the worked example without its last position") {
  AdditiveAttention layer = worked_additive();
  auto [context, weights] = layer(worked_query, layer.project(worked_values, tensor({{true, true, false}})));
  check_close(weights.value(), {0.6320938664, 0.3679061336, 0}, 1e-9);
  CHECK(weights.value().at({0, 2}) == 0);
  check_close(context.value(), {0.2641877328, 1.4481407996}, 1e-9);
}

TEST_CASE("dot-product attention: true in the mask means may attend") {
  DotProductAttention layer = plain_dot(1);
  const Tensor one = tensor({{1}}, DType::f64), scores = tensor({{{1}, {2}, {3}, {4}}}, DType::f64);
  Tensor weights = layer(one, layer.project(scores, tensor({{true, true, false, false}}))).weights.value();
  check_close(weights, {0.2689414214, 0.7310585786, 0, 0}, 1e-10);
  CHECK(weights.at({0, 2}) == 0);
  CHECK(weights.at({0, 3}) == 0);
  Tensor others = layer(one, layer.project(scores, tensor({{false, false, true, true}}))).weights.value();
  check_close(others, {0, 0, 0.2689414214, 0.7310585786}, 1e-10);
}

TEST_CASE("dot-product attention: the context does not depend on padding") {
  DotProductAttention layer = plain_dot(2);
  const Tensor query = tensor({{1, 0}}, DType::f64);
  for (int64_t pads : {0, 1, 2, 9}) {
    CAPTURE(pads);
    Tensor source = Tensor::zeros({1, 2 + pads, 2}, DType::f64);
    source.set({0, 0, 0}, 1);
    source.set({0, 1, 1}, 1);
    Tensor mask = Tensor::zeros({1, 2 + pads}, DType::boolean);
    mask.slice(1, 0, 2).fill_(1);
    check_close(layer(query, layer.project(source, mask)).context.value(), {0.7310585786, 0.2689414214}, 1e-10);
    if (pads == 1) {  // what the mask is for
      check_close(layer(query, layer.project(source)).context.value(), {0.5761168848, 0.2119415576}, 1e-10);
    }
  }
}

TEST_CASE("dot-product attention: with W = 1 it is softmax of the products") {
  Rng rng(2);
  DotProductAttention layer = plain_dot(5);
  Tensor query = random({3, 5}, DType::f64, rng), source = random({3, 7, 5}, DType::f64, rng);
  auto [context, weights] = layer(query, layer.project(source));
  for (int64_t b = 0; b < 3; ++b) {
    double total = 0, expected[7], sums[5] = {};
    for (int64_t s = 0; s < 7; ++s) {
      double score = 0;
      for (int64_t k = 0; k < 5; ++k) score += query.at({b, k}) * source.at({b, s, k});
      total += expected[s] = std::exp(score);
    }
    for (int64_t s = 0; s < 7; ++s) {
      CHECK(std::abs(weights.value().at({b, s}) - expected[s] / total) <= 1e-14);
      for (int64_t k = 0; k < 5; ++k) sums[k] += expected[s] / total * source.at({b, s, k});
    }
    for (int64_t k = 0; k < 5; ++k) CHECK(std::abs(context.value().at({b, k}) - sums[k]) <= 1e-14);
  }
}

TEST_CASE("dot-product attention: the query goes through W") {
  Rng rng(3);
  DotProductAttention layer(3, 5, rng, DType::f64), plain = plain_dot(5);
  Tensor query = random({2, 3}, DType::f64, rng), source = random({2, 4, 5}, DType::f64, rng);
  Tensor mapped = linear(query, layer.W.weight).value();
  CHECK(layer.W.weight.shape() == Shape{5, 3});
  CHECK(distance(layer(query, layer.project(source)).weights.value(),
                 plain(mapped, plain.project(source)).weights.value()) <= 1e-14);
}

TEST_CASE("attention: names and shapes of parameters") {
  Rng rng(4);
  AdditiveAttention additive(3, 5, 4, rng);
  DotProductAttention dot(3, 5, rng);
  auto listed = [](const auto& layer) {
    std::string text;
    for (const NamedParameter& p : named_parameters(layer)) {
      text += fmt::format("{} {} {}; ", p.name, p.parameter.shape(), p.parameter.dtype());
    }
    return text;
  };
  CHECK(listed(additive) == "W_q.weight (4, 3) f32; W_k.weight (4, 5) f32; v.weight (1, 4) f32; ");
  CHECK(listed(dot) == "W.weight (5, 3) f32; ");
  CHECK(audit_module([] {
          Rng own(1);
          return AdditiveAttention(3, 5, 4, own);
        }) == "");
  CHECK(audit_module([] {
          Rng own(1);
          return DotProductAttention(3, 5, own);
        }) == "");
}

TEST_CASE("attention: weights are a distribution over the valid positions") {
  Rng rng(5);
  for (DType dtype : {DType::f32, DType::f64}) {
    for_both(3, 5, dtype, rng, [&](const auto& layer, const char* name) {
      CAPTURE(name);
      const int64_t S = 300;
      Tensor query = random({4, 3}, dtype, rng), source = random({4, S, 5}, dtype, rng);
      Tensor mask = Tensor::zeros({4, S}, DType::boolean);
      for (int64_t b = 0; b < 4; ++b) {
        for (int64_t s = 0; s < S; ++s) mask.set({b, s}, s == 7 || rng.bernoulli(.1 + .3 * static_cast<double>(b)));
      }
      for (double size : {1.0, 1e3}) {  // the larger ones leave one position
        CAPTURE(size);
        Tensor scaled = query.clone();
        scaled.mul_(size);
        auto [context, weights] = layer(scaled, layer.project(source, mask));
        CHECK(context.shape() == Shape{4, 5});
        REQUIRE(weights.shape() == Shape{4, S});
        for (int64_t b = 0; b < 4; ++b) {
          double total = 0;
          for (int64_t s = 0; s < S; ++s) {
            const double w = weights.value().at({b, s});
            total += w;
            if (mask.at({b, s}) == 0) {
              CHECK(w == 0);
            } else {
              CHECK(w >= 0);
            }
          }
          CHECK(std::abs(total - 1) <= (dtype == DType::f64 ? 1e-14 : 1e-6));
        }
      }
    });
  }
}

TEST_CASE("attention: what is masked changes no bit of values and gradients") {
  Rng rng(6);
  const Tensor mask = tensor({{true, false, true, false, true}, {true, true, false, false, false}});
  for (DType dtype : {DType::f32, DType::f64}) {
    for_both(3, 4, dtype, rng, [&](const auto& layer, const char* name) {
      CAPTURE(name);
      Tensor query = random({2, 3}, dtype, rng), source = random({2, 5, 4}, dtype, rng);
      Tensor w = random({2, 4}, dtype, rng), v = random({2, 5}, dtype, rng);
      auto with_masked = [&](auto value) {
        Tensor changed = source.clone();
        for (int64_t b = 0; b < 2; ++b) {
          for (int64_t s = 0; s < 5; ++s) {
            for (int64_t k = 0; k < 4 && mask.at({b, s}) == 0; ++k) changed.set({b, s, k}, value());
          }
        }
        return look(layer, query, changed, mask, w, v);
      };
      const Seen zero = with_masked([] { return 0.0; });
      for (double masked : {7.0, 1e30, -1e30, inf, -inf, not_a_number}) {
        CAPTURE(masked);
        const bool noise = masked == 7.0;
        Seen other = with_masked([&] { return noise ? rng.normal() : masked; });
        CHECK(same_bits(zero.context, other.context));
        CHECK(same_bits(zero.weights, other.weights));
        CHECK(same_bits(zero.grad_query, other.grad_query));
        CHECK(same_bits(zero.grad_values, other.grad_values));
        for (size_t k = 0; k < zero.grads.size(); ++k) CHECK(same_bits(zero.grads[k], other.grads[k]));
      }
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t s = 0; s < 5; ++s) {
          CHECK(all_zero(zero.grad_values.select(0, b).select(0, s)) == (mask.at({b, s}) == 0));
        }
      }
      for (const Tensor& g : zero.grads) CHECK(!all_zero(g));  // nothing above compared zeros
      CHECK(!all_zero(zero.grad_query));
    });
  }
}

TEST_CASE("attention: a row alone equals the row in a batch with padding") {
  Rng rng(7);
  for (DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f64 ? 1e-13 : 1e-5;
    for_both(3, 4, dtype, rng, [&](const auto& layer, const char* name) {
      CAPTURE(name);
      const Ints lengths = {3, 1, 6};
      Tensor query = random({3, 3}, dtype, rng), source = random({3, 8, 4}, dtype, rng);
      Tensor w = random({3, 4}, dtype, rng), v = random({3, 8}, dtype, rng);
      Tensor mask = Tensor::zeros({3, 8}, DType::boolean);
      for (int64_t b = 0; b < 3; ++b) mask.select(0, b).slice(0, 0, lengths[static_cast<size_t>(b)]).fill_(1);
      Seen batch = look(layer, query, source, mask, w, v);
      std::vector<Tensor> sums;
      for (int64_t b = 0; b < 3; ++b) {
        const int64_t n = lengths[static_cast<size_t>(b)];
        auto row = [b](const Tensor& x) { return x.slice(0, b, b + 1); };
        Seen alone = look(layer, row(query), row(source).slice(1, 0, n), {}, row(w), row(v).slice(1, 0, n));
        CHECK(distance(row(batch.context), alone.context) <= tolerance);
        CHECK(distance(row(batch.weights).slice(1, 0, n), alone.weights) <= tolerance);
        if (n > 1) CHECK(distance(row(batch.grad_query), alone.grad_query) <= tolerance);
        CHECK(distance(row(batch.grad_values).slice(1, 0, n), alone.grad_values) <= tolerance);
        for (size_t k = 0; k < alone.grads.size(); ++k) {
          if (b == 0) sums.push_back(Tensor::zeros(alone.grads[k].shape(), dtype));
          sums[k].add_(alone.grads[k]);
        }
      }
      for (size_t k = 0; k < sums.size(); ++k) CHECK(distance(batch.grads[k], sums[k]) <= tolerance);
    });
  }
}

TEST_CASE("attention: one position gets the whole weight and scores get no gradient") {
  Rng rng(8);
  for_both(3, 4, DType::f64, rng, [&](const auto& layer, const char* name) {
    CAPTURE(name);
    Tensor query = random({2, 3}, DType::f64, rng), source = random({2, 1, 4}, DType::f64, rng);
    Tensor w = random({2, 4}, DType::f64, rng);
    Seen seen = look(layer, query, source, {}, w, Tensor::zeros({2, 1}, DType::f64));
    CHECK(same_bits(seen.context, source.select(1, 0)));
    CHECK(same_bits(seen.weights, Tensor::ones({2, 1}, DType::f64)));
    CHECK(distance(seen.grad_values.select(1, 0), w) <= 1e-14);
    CHECK(all_zero(seen.grad_query));
  });
}

TEST_CASE("attention: the order of the pairs does not matter") {
  Rng rng(9);
  for_both(3, 4, DType::f64, rng, [&](const auto& layer, const char* name) {
    CAPTURE(name);
    Tensor query = random({2, 3}, DType::f64, rng), source = random({2, 6, 4}, DType::f64, rng);
    Tensor mask = tensor({{true, false, true, true, true, false}, {false, true, true, true, true, true}});
    const Ints order = {4, 1, 5, 0, 3, 2};
    auto shuffled = [&](const Tensor& x) {
      std::vector<Var> columns;
      for (int64_t s : order) columns.push_back(x.select(1, s));
      return stack(columns, 1).value();
    };
    AttentionResult straight = layer(query, layer.project(source, mask));
    AttentionResult mixed = layer(query, layer.project(shuffled(source), shuffled(mask)));
    CHECK(distance(mixed.context.value(), straight.context.value()) <= 1e-14);
    CHECK(distance(mixed.weights.value(), shuffled(straight.weights.value())) <= 1e-14);
    CHECK(distance(mixed.weights.value(), straight.weights.value()) > 1e-3);
  });
}

TEST_CASE("attention: a full mask is no mask and strides do not matter") {
  Rng rng(10);
  for_both(3, 4, DType::f64, rng, [&](const auto& layer, const char* name) {
    CAPTURE(name);
    Tensor query = random({3, 2}, DType::f64, rng).transpose(), source = random({6, 2, 4}, DType::f64, rng);
    Tensor view = source.transpose(0, 1), mask = Tensor::ones({6, 2}, DType::boolean).transpose();
    REQUIRE(!view.is_contiguous());
    REQUIRE(!mask.is_contiguous());
    AttentionResult a = layer(query, layer.project(view, mask));
    AttentionResult b = layer(query.clone(), layer.project(view.clone()));
    CHECK(distance(a.context.value(), b.context.value()) <= 1e-14);
    CHECK(distance(a.weights.value(), b.weights.value()) <= 1e-14);
    mask.set({0, 3}, 0);
    AttentionResult c = layer(query, layer.project(view, mask));
    CHECK(c.weights.value().at({0, 3}) == 0);
    CHECK(c.weights.value().at({1, 3}) > 0);
    CHECK(distance(c.context.value(), layer(query, layer.project(view, mask.clone())).context.value()) == 0);
  });
}

TEST_CASE("attention: projecting once equals projecting every time") {
  Rng rng(11);
  for_both(3, 4, DType::f64, rng, [&](const auto& layer, const char* name) {
    CAPTURE(name);
    Tensor source = random({2, 5, 4}, DType::f64, rng);
    const Tensor mask = tensor({{true, true, true, false, false}, {true, true, true, true, true}});
    std::vector<Tensor> queries, weights;
    for (int i = 0; i < 4; ++i) {
      queries.push_back(random({2, 3}, DType::f64, rng));
      weights.push_back(random({2, 4}, DType::f64, rng));
    }
    auto run = [&](bool once) {
      Tape tape;
      Var x = tape.leaf(source), total = 0.0 * sum(x);
      Memory shared = layer.project(x, mask);
      std::vector<Tensor> seen;
      for (size_t i = 0; i < 4; ++i) {
        Var context = layer(queries[i], once ? shared : layer.project(x, mask)).context;
        seen.push_back(context.value());
        total = total + sum(context * weights[i]);
      }
      Gradients g = tape.backward(total);
      seen.push_back(g[x]);
      for (const NamedParameter& p : named_parameters(layer)) seen.push_back(g[p.parameter]);
      return seen;
    };
    std::vector<Tensor> once = run(true), every_time = run(false);
    for (size_t i = 0; i < 4; ++i) CHECK(same_bits(once[i], every_time[i]));
    for (size_t i = 4; i < once.size(); ++i) CHECK(distance(once[i], every_time[i]) <= 1e-13);
  });
}

TEST_CASE("attention: a row with nothing to attend to is named") {
  Rng rng(12);
  for_both(3, 4, DType::f32, rng, [&](const auto& layer, const char* name) {
    CAPTURE(name);
    const Tensor source = Tensor::ones({3, 2, 4});
    const Tensor mask = tensor({{true, false}, {false, true}, {false, false}});
    CHECK(says(error_of([&] { layer.project(source, mask); }), {name, "row 2", "nothing to attend to"}));
    CHECK(error_of([&] { layer.project(source.slice(0, 0, 2), mask.slice(0, 0, 2)); }) == "");
    const Tensor no_source = source.slice(1, 0, 0);  // softmax over nothing would give a context of zeros
    CHECK(says(error_of([&] { layer.project(no_source); }), {name, "row 0", "nothing to attend to"}));
    CHECK(says(error_of([&] { layer.project(no_source, mask.slice(1, 0, 0)); }), {name, "row 0"}));
  });
}

TEST_CASE("attention: a batch without rows") {
  Rng rng(15);
  for_both(3, 4, DType::f32, rng, [&](const auto& layer, const char* name) {
    CAPTURE(name);
    auto [context, weights] = layer(Tensor::zeros({0, 3}), layer.project(Tensor::zeros({0, 5, 4})));
    CHECK(context.shape() == Shape{0, 4});
    CHECK(weights.shape() == Shape{0, 5});
  });
}

TEST_CASE("attention: wrong shapes and dtypes are named") {
  Rng rng(13);
  for_both(3, 4, DType::f32, rng, [&](const auto& layer, const char* name) {
    CAPTURE(name);
    const Tensor source = Tensor::ones({2, 5, 4}), query = Tensor::ones({2, 3});
    auto project = [&](const Tensor& x, const Tensor& mask = {}) { return error_of([&] { layer.project(x, mask); }); };
    CHECK(says(project(Tensor::ones({5, 4})), {name, "(B, S, 4)", "(5, 4)"}));
    CHECK(says(project(Tensor::ones({2, 5, 3})), {name, "(B, S, 4)", "(2, 5, 3)"}));
    CHECK(says(project(source, Tensor::ones({2, 5})), {name, "boolean", "(2, 5)", "f32"}));
    CHECK(says(project(source, Tensor::ones({2, 5}, DType::i64)), {name, "boolean", "i64"}));
    CHECK(says(project(source, Tensor::ones({5, 2}, DType::boolean)), {name, "(2, 5)", "(5, 2)"}));
    CHECK(says(project(source, Tensor::ones({1, 5}, DType::boolean)), {name, "(2, 5)", "(1, 5)"}));
    CHECK(says(project(source, Tensor::ones({5}, DType::boolean)), {name, "(2, 5)", "(5,)"}));
    const Memory memory = layer.project(source);
    auto ask = [&](const Tensor& q) { return error_of([&] { layer(q, memory); }); };
    CHECK(ask(query) == "");
    CHECK(says(ask(Tensor::ones({2, 4})), {name, "(2, 3)", "(2, 4)"}));
    CHECK(says(ask(Tensor::ones({1, 3})), {name, "(2, 3)", "(1, 3)"}));
    CHECK(says(ask(Tensor::ones({3})), {name, "(2, 3)", "(3,)"}));
    CHECK(says(ask(query.to(DType::f64)), {"f32", "f64"}));
  });
}

TEST_CASE("attention: gradients of query and values and parameters to order two") {
  Rng rng(14);
  const Tensor mask = tensor({{true, true, false}, {false, true, true}});
  for (bool masked : {false, true}) {
    for_both(2, 3, DType::f64, rng, [&](const auto& layer, const char* name) {
      CAPTURE(masked);
      CAPTURE(name);
      std::function<std::vector<Var>(std::span<const Var>)> f = [&](std::span<const Var> x) {
        auto [context, weights] = layer(x[0], layer.project(x[1], masked ? mask : Tensor()));
        return std::vector<Var>{context, weights};
      };
      const std::vector<NamedTensor> inputs = {{"query", random({2, 2}, DType::f64, rng)},
                                               {"values", random({2, 3, 3}, DType::f64, rng)}};
      GradcheckReport first = gradcheck(f, inputs, named_parameters(layer));
      CHECK_MESSAGE(first.ok(), to_string(first));
      CHECK(first.elements == 2 * (4 + 18 + parameter_count(layer)));
      GradcheckReport second = gradcheck(f, inputs, named_parameters(layer), {.order = 2, .directions = 6});
      CHECK_MESSAGE(second.ok(), to_string(second));
    });
  }
}
}
