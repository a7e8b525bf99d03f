// Draws, and the two ways to train through them.
#include <tapedeck/nn/hard_attention.h>
#include <tapedeck/nn/optim.h>
#include <tapedeck/ops/ops.h>

#include <cmath>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr int64_t N = 20000;

// N equal rows of x (1, ...), one leaf or constant: the gradient of row n is that of draw n.
Tensor rows_of(const Tensor& x) {
  Shape shape = x.shape();
  shape[0] = N;
  return x.expand(shape).clone();
}

// Mean and standard error of each column of x (N, D).
struct Estimate {
  std::vector<double> mean, error;
  double noise = 0;  // sum of the squared errors
};
Estimate estimate(const Tensor& x) {
  Estimate e;
  for (int64_t d = 0; d < x.size(1); ++d) {
    double total = 0, squares = 0;
    for (double v : values(x.select(1, d))) total += v, squares += v * v;
    const double m = total / double(N), variance = squares / double(N) - m * m;
    e.mean.push_back(m);
    e.error.push_back(std::sqrt(variance / double(N)));
    e.noise += variance / double(N);
  }
  return e;
}

const Tensor four_weights = f64({{.1, .5, 0, .4}});
const Tensor four_values = f64({{{1, 0}, {2, -1}, {-9, 9}, {.5, 3}}});

Memory memory_of(const Tensor& values) { return {values, values, {}}; }

// Look up the value beside a key: rows of S pairs, keys all different; the query is one of the keys.
struct Lookup {
  Tensor pairs, queries, answers;  // (B, S, symbols + classes), (B, symbols), i64 (B,)
};
constexpr int64_t symbols = 4, classes = 3, slots = 3;

Lookup lookups(int64_t B, Rng& rng) {
  Lookup result{Tensor::zeros({B, slots, symbols + classes}, DType::f32), Tensor::zeros({B, symbols}, DType::f32),
                Tensor::empty({B}, DType::i64)};
  for (int64_t b = 0; b < B; ++b) {
    const std::vector<int64_t> keys = rng.permutation(symbols);
    const int64_t asked = rng.below(slots);
    for (int64_t s = 0; s < slots; ++s) {
      const int64_t key = keys[static_cast<size_t>(s)], answer = rng.below(classes);
      result.pairs.set({b, s, key}, 1);
      result.pairs.set({b, s, symbols + answer}, 1);
      if (s == asked) result.queries.set({b, key}, 1), result.answers.set({b}, answer);
    }
  }
  return result;
}

struct Reader {
  DotProductAttention attention;
  Linear out;
  explicit Reader(Rng& rng) : attention(symbols, symbols + classes, rng), out(symbols + classes, classes, rng) {}
  static void fields(auto& self, auto&& f) { f("attention", self.attention), f("out", self.out); }

  // loss(soft attention, memory, answers, rng) -> a scalar; the share of right answers after training.
  template <class Loss>
  double learn(const Loss& loss) {
    Adam optimizer(*this, {.lr = .02});
    for (uint64_t step = 1; step <= 400; ++step) {
      Rng rng = Rng(11).split(step);
      const Lookup batch = lookups(64, rng);
      Tape tape;
      Memory memory = attention.project(batch.pairs);
      optimizer.step(tape.backward(loss(attention(batch.queries, memory), memory, batch.answers, rng)));
    }
    Rng rng(12);
    const Lookup held_out = lookups(500, rng);
    Memory memory = attention.project(held_out.pairs);
    HardAttention hard = draw_attention(attention(held_out.queries, memory), memory, nullptr);
    Var right = argmax(out(hard.context)) == held_out.answers;
    return mean(right.value().to(DType::f64)).item();
  }
};

}  // namespace

TEST_SUITE("hard attention") {
TEST_CASE("hard attention: draws follow the weights and read one value") {
  Rng rng(1);
  const AttentionResult soft{{}, rows_of(four_weights)};
  const HardAttention hard = draw_attention(soft, memory_of(rows_of(four_values)), &rng);
  std::vector<double> counts(4, 0.);
  for (int64_t n = 0; n < N; ++n) {
    const int64_t j = static_cast<int64_t>(hard.drawn.at({n}));
    ++counts[static_cast<size_t>(j)];
    if (n >= 50) continue;
    for (int64_t s = 0; s < 4; ++s) CHECK(hard.weights.at({n, s}) == (s == j ? 1 : 0));
    for (int64_t k = 0; k < 2; ++k) CHECK(hard.context.value().at({n, k}) == four_values.at({0, j, k}));
    CHECK(hard.log_p.value().at({n}) == doctest::Approx(std::log(four_weights.at({0, j}))));
    CHECK(hard.entropy.value().at({n}) ==
          doctest::Approx(-(.1 * std::log(.1) + .5 * std::log(.5) + .4 * std::log(.4))));
  }
  for (size_t j = 0; j < 4; ++j) {
    const double p = four_weights.at({0, static_cast<int64_t>(j)});
    CHECK(std::abs(counts[j] / double(N) - p) <= 4 * std::sqrt(p * (1 - p) / double(N)));
  }
  CHECK(counts[2] == 0);
}

TEST_CASE("hard attention: weights that do not sum to 1 are shares") {
  Rng rng(2);
  const HardAttention hard = draw_attention({{}, f64({{.2, .6}})}, memory_of(f64({{{1}, {2}}})), nullptr);
  CHECK(hard.drawn.at({0}) == 1);
  CHECK(hard.log_p.value().at({0}) == doctest::Approx(std::log(.75)));
  CHECK(hard.entropy.value().at({0}) == doctest::Approx(-(.25 * std::log(.25) + .75 * std::log(.75))));
}

TEST_CASE("hard attention: a row draws the same in any batch and draws change from call to call") {
  Rng init(3);
  const AdditiveAttention attention(3, 4, 2, init, DType::f64);
  const Tensor x = normal({5, 6, 4}, DType::f64, 4), queries = normal({5, 2, 3}, DType::f64, 5);
  const Memory memory = attention.project(x), first = attention.project(x.slice(0, 0, 2));
  const AttentionResult all = attention(queries, memory), two = attention(queries.slice(0, 0, 2), first);
  Rng a(6), b(6);
  const HardAttention together = draw_attention(all, memory, &a), some = draw_attention(two, first, &b);
  CHECK(together.drawn.shape() == Shape{5, 2});
  CHECK(together.context.shape() == Shape{5, 2, 4});
  CHECK(same_bits(together.drawn.slice(0, 0, 2), some.drawn));
  CHECK_FALSE(same_bits(draw_attention(all, memory, &a).drawn, together.drawn));
  Rng c(7), d(7);
  CHECK(close(gumbel_softmax(all.weights, .5, c).value().slice(0, 0, 2), gumbel_softmax(two.weights, .5, d).value(),
              1e-12));
  CHECK(same_bits(draw_attention(all, memory, nullptr).drawn, argmax(all.weights).value()));
}

TEST_CASE("reinforce: the mean of its gradients is that of the expected loss") {
  // A softmax policy over four values; the loss of a draw depends on weights of its own as well.
  const Tensor theta = f64({{.3, -.5, .8, 0}}), phi = f64({{.7, -.4}});
  auto loss_of = [](const Var& value, const Var& w) { return square(sum(value * w, -1) - 1.0); };
  Tape exact;
  Var t = exact.leaf(theta), w = exact.leaf(phi);
  Var expected = sum(softmax(t) * unsqueeze(loss_of(select(Var(four_values), 0, 0), w), 0));
  const Gradients right = exact.backward(expected);

  double noise[2];
  for (bool with_baseline : {false, true}) {
    CAPTURE(with_baseline);
    Reinforce reinforce({.decay = 0});
    if (with_baseline) reinforce.set_baseline(expected.item());
    Rng rng(8);
    Tape tape;
    Var thetas = tape.leaf(rows_of(theta)), phis = tape.leaf(rows_of(phi));
    HardAttention hard = draw_attention({{}, softmax(thetas)}, memory_of(rows_of(four_values)), &rng);
    Var loss = reinforce(loss_of(hard.context, phis), hard.log_p, hard.entropy);
    const Gradients grads = tape.backward(loss * double(N));
    noise[with_baseline] = estimate(grads[thetas]).noise;
    for (const Var& leaf : {thetas, phis}) {
      const Estimate e = estimate(grads[leaf]);
      const Tensor& wanted = leaf.size(1) == 4 ? right[t] : right[w];
      for (size_t i = 0; i < e.mean.size(); ++i) {
        CAPTURE(i);
        CHECK(e.error[i] < .05 * std::abs(wanted.at({0, static_cast<int64_t>(i)})) + .05);
        CHECK(std::abs(e.mean[i] - wanted.at({0, static_cast<int64_t>(i)})) < 4 * e.error[i]);
      }
    }
    CHECK(reinforce.baseline() == doctest::Approx(expected.item()).epsilon(.1));
  }
  CHECK(noise[true] < .7 * noise[false]);
}

TEST_CASE("reinforce: the baseline is an average of the calls before and entropy is rewarded") {
  Reinforce reinforce({.decay = .75, .weight = 2, .entropy = .5});
  const Tensor log_p = f64({-1, -2}), entropy = f64({.3, .5});
  CHECK(reinforce(f64({1, 3}), log_p, entropy).item() == doctest::Approx((1 - 2 - .15 + 3 - 12 - .25) / 2));
  CHECK(reinforce.baseline() == .5);
  CHECK(reinforce(f64({4, 4}), log_p, entropy).item() == doctest::Approx((4 - 7 - .15 + 4 - 14 - .25) / 2));
  CHECK(reinforce.baseline() == .75 * .5 + .25 * 4);
  Tape tape;
  Var l = tape.leaf(f64({1, 3})), p = tape.leaf(log_p), h = tape.leaf(entropy);
  const double b = reinforce.baseline();
  const Gradients grads = tape.backward(reinforce(l, p, h));
  CHECK(same_bits(grads[l], f64({.5, .5})));  // the factor of ln p is a constant
  CHECK(close(grads[p], f64({1 - b, 3 - b}), 1e-15));
  CHECK(close(grads[h], f64({-.25, -.25}), 1e-15));
}

TEST_CASE("gumbel softmax: its largest element follows the weights and it sharpens as it cools") {
  Rng rng(9);
  const Tensor soft = gumbel_softmax(rows_of(four_weights), .5, rng).value(), drawn = argmax(soft).value();
  std::vector<double> counts(4, 0.);
  for (int64_t j : drawn.to_vector<int64_t>()) ++counts[static_cast<size_t>(j)];
  for (size_t j = 0; j < 4; ++j) {
    const double p = four_weights.at({0, static_cast<int64_t>(j)});
    CHECK(std::abs(counts[j] / double(N) - p) <= 4 * std::sqrt(p * (1 - p) / double(N)));
  }
  CHECK(all_zero(soft.select(1, 2)));
  CHECK(close(sum(soft, -1).value(), Tensor::ones({N}, DType::f64), 1e-12));
  double before = 0;
  for (double temperature : {4., 1., .25, .01}) {
    Rng same(10);
    const double largest = mean(max(gumbel_softmax(rows_of(four_weights), temperature, same), -1)).item();
    CHECK(largest > before);
    before = largest;
  }
  CHECK(before > .99);
}

TEST_CASE("straight-through: forward is exactly one-hot and backward the soft gradient") {
  const Tensor scores = normal({4, 3, 5}, DType::f32, 11), seed = normal({4, 3, 5}, DType::f32, 12);
  Tape soft_tape;
  Var soft_leaf = soft_tape.leaf(scores);
  Rng a(13), b(13);
  const Tensor soft = soft_tape.backward(gumbel_softmax(softmax(soft_leaf), .7, a), seed)[soft_leaf];
  Tape tape;
  Var leaf = tape.leaf(scores);
  Var y = straight_through(gumbel_softmax(softmax(leaf), .7, b));
  const Tensor hard = y.value();
  CHECK(same_bits(hard, one_hot(argmax(hard), 5).value()));
  CHECK(same_bits(tape.backward(y, seed)[leaf], soft));
  CHECK_FALSE(all_zero(soft));
  CHECK(same_bits(straight_through(f64({{.5, .5, 0}})).value(), f64({{1, 0, 0}})));  // the first of equals
}

TEST_CASE("hard attention: learns to look up by reinforce and by straight-through") {
  Rng init(14);
  Reader drawn(init), relaxed(init);
  Reinforce reinforce({.entropy = .01});
  const double by_reinforce =
      drawn.learn([&](const AttentionResult& soft, const Memory& memory, const Tensor& answers, Rng& rng) {
        HardAttention hard = draw_attention(soft, memory, &rng);
        Var losses = cross_entropy(drawn.out(hard.context), answers, {.reduction = Reduction::none});
        return reinforce(losses, hard.log_p, hard.entropy);
      });
  CHECK(by_reinforce > .95);
  const double by_gumbel =
      relaxed.learn([&](const AttentionResult& soft, const Memory& memory, const Tensor& answers, Rng& rng) {
        return cross_entropy(relaxed.out(gumbel_attention(soft, memory, .7, &rng).context), answers);
      });
  CHECK(by_gumbel > .95);
}

TEST_CASE("hard attention: what does not fit is refused") {
  Rng rng(1);
  Reinforce reinforce;
  CHECK(says(error_of([] { Reinforce({.decay = 1}); }), {"Reinforce", "decay", "1"}));
  CHECK(says(error_of([] { Reinforce({.weight = -1}); }), {"Reinforce", "weight", "-1"}));
  CHECK(says(error_of([] { Reinforce({.entropy = inf}); }), {"Reinforce", "entropy", "inf"}));
  CHECK(says(error_of([&] { reinforce(f64({1, 2}), f64({1})); }), {"Reinforce", "(2,)", "(1,)"}));
  CHECK(says(error_of([&] { reinforce(f64({inf}), f64({1})); }), {"Reinforce", "inf"}));
  CHECK(says(error_of([&] { reinforce.set_baseline(not_a_number); }), {"baseline", "nan"}));
  CHECK(says(error_of([] { Reinforce({.entropy = 1})(f64({1}), f64({1})); }), {"entropy"}));
  CHECK(says(error_of([&] { gumbel_softmax(four_weights, 0, rng); }), {"gumbel_softmax", "temperature", "0"}));
  CHECK(says(error_of([&] { gumbel_softmax(tensor({{1, 2}}), 1, rng); }), {"gumbel_softmax", "i64", "(1, 2)"}));
  CHECK(says(error_of([&] { straight_through(f64({1, 2})); }), {"straight_through", "(2,)"}));
}
}
