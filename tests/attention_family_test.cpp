// What every attention layer promises, over the whole family. B batch, T queries a row, S source positions.
#include <tapedeck/nn/attention.h>
#include <tapedeck/ops/ops.h>

#include <cmath>
#include <string>
#include <vector>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr int64_t B = 3, S = 5, Q = 4, K = 4;

std::vector<std::pair<std::string, AnyAttention>> family(DType dtype = DType::f64) {
  Rng rng(1);
  return {{"additive", AdditiveAttention(Q, K, 3, rng, dtype)},
          {"dot product", DotProductAttention(Q, K, rng, dtype)},
          {"plain dot", PlainDotAttention()},
          {"concat", ConcatAttention(Q, K, 3, rng, dtype)},
          {"scaled dot product", ScaledDotProductAttention(Q, K, 6, rng, dtype)},
          {"local-m", LocalMonotonicAttention(Q, K, 1, rng, dtype)},
          {"local-p", LocalPredictiveAttention(Q, K, 3, 2, rng, dtype)},
          {"last value", LastValueContext()},
          {"mean", MeanContext()}};
}

const Tensor mask =
    tensor({{true, true, true, false, false}, {true, true, true, true, true}, {true, false, false, false, false}});

}  // namespace

TEST_SUITE_BEGIN("attention family");

TEST_CASE("several queries at once equal one call a step") {
  const Tensor values = normal({B, S, K}, DType::f64, 2), queries = normal({B, 4, Q}, DType::f64, 3);
  for (const auto& member : family()) {
    const std::string& name = member.first;
    const AnyAttention& attention = member.second;
    INFO(name);
    const Memory memory = project(attention, values, mask);
    const AttentionResult all = attend(attention, queries, memory);
    CHECK(all.weights.shape() == Shape{B, 4, S});
    for (int64_t t = 0; t < 4; ++t) {
      const AttentionResult one = attend(attention, queries.select(1, t), memory, t);
      CHECK(close(all.weights.value().select(1, t), one.weights.value(), 1e-14));
      CHECK(close(all.context.value().select(1, t), one.context.value(), 1e-14));
    }
  }
}

TEST_CASE("masked positions have no weight and change nothing") {
  Tensor values = normal({B, S, K}, DType::f64, 4), other = values.clone();
  const Tensor query = normal({B, Q}, DType::f64, 5);
  other.select(0, 0).slice(0, 3, 5).fill_(not_a_number);
  other.select(0, 2).slice(0, 1, 5).fill_(1e30);
  for (const auto& member : family()) {
    const std::string& name = member.first;
    const AnyAttention& attention = member.second;
    INFO(name);
    const AttentionResult a = attend(attention, query, project(attention, values, mask));
    const AttentionResult b = attend(attention, query, project(attention, other, mask));
    CHECK(same_bits(a.context.value(), b.context.value()));
    CHECK(same_bits(a.weights.value(), b.weights.value()));
    CHECK(all_zero(a.weights.value().select(0, 0).slice(0, 3, 5)));
    CHECK(all_zero(a.weights.value().select(0, 2).slice(0, 1, 5)));
    if (name != "local-p") {
      for (double total : tapedeck::testing::values(sum(a.weights, 1).value())) CHECK(total == doctest::Approx(1));
    }
  }
}

TEST_CASE("a row alone equals the row beside others and with more pads") {
  const Tensor values = normal({B, S, K}, DType::f64, 6), query = normal({B, Q}, DType::f64, 7);
  const int64_t lengths[] = {3, 5, 1};
  for (const auto& member : family()) {
    const std::string& name = member.first;
    const AnyAttention& attention = member.second;
    INFO(name);
    const AttentionResult all = attend(attention, query, project(attention, values, mask));
    for (int64_t b = 0; b < B; ++b) {
      const Tensor own = values.slice(0, b, b + 1).slice(1, 0, lengths[b]);
      const AttentionResult alone = attend(attention, query.slice(0, b, b + 1), project(attention, own));
      CHECK(close(all.context.value().slice(0, b, b + 1), alone.context.value(), 1e-13));
      CHECK(close(all.weights.value().slice(0, b, b + 1).slice(1, 0, lengths[b]), alone.weights.value(), 1e-13));
    }
  }
}

TEST_CASE("a row with nothing to attend to is named") {
  const Tensor empty = tensor({{true, true}, {false, false}});
  for (const auto& member : family()) {
    const std::string& name = member.first;
    const AnyAttention& attention = member.second;
    INFO(name);
    CHECK(says(error_of([&, layer = attention] {
                 project(layer, normal({2, 2, K}, DType::f64, 8), empty);
               }),
               {"row 1"}));
  }
}

TEST_CASE("the concat form is the additive form with its matrices side by side") {
  Rng rng(9);
  AdditiveAttention additive(3, 4, 5, rng, DType::f64);
  ConcatAttention concat(3, 4, 5, rng, DType::f64);
  concat.W.weight.mutable_value().copy_(cat({additive.W_q.weight.value(), additive.W_k.weight.value()}, 1).value());
  concat.v.weight.mutable_value().copy_(additive.v.weight.value());
  const Tensor query = normal({2, 3}, DType::f64, 10), values = normal({2, 6, 4}, DType::f64, 11);
  CHECK(close(additive(query, additive.project(values)).weights.value(),
              concat(query, concat.project(values)).weights.value(), 1e-14));
}

TEST_CASE("local attention looks through its window only") {
  Rng rng(12);
  LocalMonotonicAttention monotonic(Q, K, 1, rng, DType::f64);
  const Tensor values = normal({1, 6, K}, DType::f64, 13), query = normal({1, Q}, DType::f64, 14);
  const Memory memory = monotonic.project(values);
  for (int64_t step = 0; step < 9; ++step) {
    const Tensor w = monotonic(query, memory, step).weights.value();
    const int64_t centre = std::min<int64_t>(step, 5);
    for (int64_t j = 0; j < 6; ++j) CHECK((w.at({0, j}) > 0) == (std::abs(j - centre) <= 1));
  }
  LocalPredictiveAttention predictive(Q, K, 3, 2, rng, DType::f64);
  Tape tape;
  Var weights = predictive(query, predictive.project(values)).weights;
  Gradients g = tape.backward(sum(weights * normal({1, 6}, DType::f64, 15)));
  CHECK_FALSE(all_zero(g[predictive.W_p.weight]));  // through the Gaussian
  const double p =
      6 /
      (1 + std::exp(-sum(tanh(matmul(query, predictive.W_p.weight.value().transpose())) * predictive.v_p.weight.value())
                         .item()));
  for (int64_t j = 0; j < 6; ++j)
    CHECK((weights.value().at({0, j}) > 0) == (std::abs(static_cast<double>(j) - p) <= 2));
  CHECK(says(error_of([&] { LocalMonotonicAttention(Q, K, 0, rng); }), {"window", "0"}));
}

TEST_CASE("the mean of a row and its last value are what they say") {
  const Tensor values = normal({B, S, K}, DType::f64, 16), query = Tensor::zeros({B, 2}, DType::f64);
  const MeanContext mean_context;
  const LastValueContext last;
  const Tensor average = mean_context(query, mean_context.project(values, mask)).context.value();
  CHECK(close(average.select(0, 0), mean(values.select(0, 0).slice(0, 0, 3), 0).value(), 1e-14));
  const Tensor ends = last(query, last.project(values, mask)).context.value();
  CHECK(same_bits(ends.select(0, 0), values.select(0, 0).select(0, 2)));
  CHECK(same_bits(ends.select(0, 1), values.select(0, 1).select(0, 4)));
}

TEST_CASE("a kernel smoother weighs by distance") {
  const Tensor keys = f64({{{0.0}, {1.0}, {3.0}}}), values = f64({{{1.0}, {2.0}, {5.0}}}), query = f64({{{1.0}}});
  const AttentionResult r = kernel_smoother(query, keys, values, 1.0);
  const double a = std::exp(-.5), b = 1, c = std::exp(-2.);
  CHECK(r.weights.value().at({0, 0, 1}) == doctest::Approx(b / (a + b + c)).epsilon(1e-14));
  CHECK(r.context.item() == doctest::Approx((a + 2 * b + 5 * c) / (a + b + c)).epsilon(1e-14));
  CHECK(says(error_of([&] { kernel_smoother(query, keys, values, 0); }), {"kernel smoother", "width"}));
}

TEST_SUITE_END();
