// Learning rates, ratios, the average of weights, accumulation, and runs that are resumed.
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/models/trainer.h>
#include <tapedeck/nn/checkpoint.h>
#include <tapedeck/ops/ops.h>

#include <cmath>

#include "scratch_folder.h"
#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

// A weight vector and a loss whose gradient changes with the step.
struct Bowl {
  Parameter w{Tensor::full({3}, 1, DType::f32)};
  static void fields(auto& self, auto&& f) { f("w", self.w); }

  Var loss(int64_t step) const {
    Rng rng = Rng(3).split(static_cast<uint64_t>(step));
    Var difference = w - random({3}, DType::f32, rng);
    return sum(difference * difference);
  }
};

struct Tied {
  Parameter a{Tensor::full({1}, 2, DType::f64)}, b = a;
  static void fields(auto& self, auto&& f) { f("a", self.a), f("b", self.b); }
};

// Steps first ... last of a run on the bowl.
TrainResult run(const Bowl& bowl, OptimizerRef optimizer, TrainOptions options) {
  options.progress = nullptr;
  int64_t now = 0;
  return train(
      optimizer,
      [&](int64_t step) {
        now = step;
        return Batch{{}, {}, {}, 1};
      },
      [&](const Batch&) { return bowl.loss(now); }, [](int64_t) { return false; }, options);
}

std::vector<Sequence> sequences(std::initializer_list<Sequence> list) { return list; }

}  // namespace

TEST_SUITE("schedule") {
TEST_CASE("schedule: learning rates are their formulas") {
  CHECK(ConstantRate{.lr = .5}(1000) == .5);
  const StepDecay decay{.lr = .8, .every = 3, .factor = .5};
  for (int64_t step : {1, 2, 3}) CHECK(decay(step) == .8);
  for (int64_t step : {4, 5, 6}) CHECK(decay(step) == .4);
  CHECK(decay(7) == .2);

  const WarmupInverseRoot root{.width = 512, .warmup = 4000, .factor = 2};
  CHECK(root(1) == doctest::Approx(2 / std::sqrt(512.) * std::pow(4000., -1.5)).epsilon(1e-14));
  CHECK(root(4000) == doctest::Approx(2 / std::sqrt(512. * 4000.)).epsilon(1e-14));
  CHECK(root(16000) == doctest::Approx(root(4000) / 2).epsilon(1e-14));
  CHECK(root(2000) == doctest::Approx(root(4000) / 2).epsilon(1e-14));

  const WarmupCosine cosine{.peak = 1, .warmup = 4, .steps = 12, .lowest = .2};
  CHECK(cosine(1) == .25);
  CHECK(cosine(4) == 1);
  CHECK(cosine(6) == doctest::Approx(.2 + .8 * .5 * (1 + std::sqrt(.5))).epsilon(1e-14));
  CHECK(cosine(8) == doctest::Approx(.6).epsilon(1e-14));
  CHECK(cosine(12) == .2);
  CHECK(cosine(99) == .2);
  CHECK(WarmupCosine{.peak = 1, .warmup = 0, .steps = 2}(1) == doctest::Approx(.5));
}

TEST_CASE("schedule: a plateau waits and cuts and cools down") {
  Plateau plateau({.lr = 1, .factor = .5, .patience = 1, .threshold = .1, .cooldown = 2, .lowest = .2});
  // 9.5 is no progress over 10 by a tenth; the second such observation is more than patience 1.
  const std::vector<std::pair<double, double>> seen = {{10, 1},   {9.5, 1},   {9.5, .5},  // cut
                                                       {9.5, .5}, {9.5, .5},              // cooling down
                                                       {9.5, .5}, {9.5, .25},             // cut
                                                       {5, .25},  {5, .25},               // cooling down, with progress
                                                       {5, .25},  {5, .2},                // not below the lowest
                                                       {1, .2}};
  for (size_t i = 0; i < seen.size(); ++i) {
    CAPTURE(i);
    plateau.observe(seen[i].first);
    CHECK(plateau.lr() == seen[i].second);
  }
  Plateau higher({.lr = 1, .factor = .5, .patience = 0, .better = Better::higher});
  for (double metric : {.1, .2, .3}) higher.observe(metric);
  CHECK(higher.lr() == 1);
  higher.observe(.3);
  CHECK(higher.lr() == .5);
  CHECK(says(error_of([&] { higher.observe(not_a_number); }), {"Plateau", "NaN"}));
}

TEST_CASE("schedule: ratios fall as in the paper") {
  CHECK(linear_ratio(0, .9, .1) == .9);
  CHECK(linear_ratio(4, .9, .1, .3) == doctest::Approx(.5));
  CHECK(linear_ratio(40, .9, .1, .3) == .3);
  CHECK(linear_ratio(40, .9, .1) == 0);
  CHECK(exponential_ratio(0, .5) == 1);
  CHECK(exponential_ratio(3, .5) == .125);
  CHECK(inverse_sigmoid_ratio(0, 10) == doctest::Approx(10. / 11));
  CHECK(inverse_sigmoid_ratio(30, 10) == doctest::Approx(10 / (10 + std::exp(3.))));
  CHECK(inverse_sigmoid_ratio(int64_t{1} << 40, 10) == 0);
  for (int64_t i = 0; i < 50; ++i) CHECK(inverse_sigmoid_ratio(i + 1, 10) < inverse_sigmoid_ratio(i, 10));
}

TEST_CASE("schedule: values outside their range are named") {
  CHECK(says(error_of([] { ConstantRate{.lr = -1}(1); }), {"ConstantRate", "lr", "-1"}));
  CHECK(says(error_of([] { ConstantRate{.lr = 1}(0); }), {"ConstantRate", "step", "0"}));
  CHECK(says(error_of([] { StepDecay{.lr = 1, .every = 0}(1); }), {"StepDecay", "every", "0"}));
  CHECK(says(error_of([] { StepDecay{.lr = 1, .every = 1, .factor = 2}(1); }), {"StepDecay", "factor", "2"}));
  CHECK(says(error_of([] { WarmupInverseRoot{.width = 0}(1); }), {"WarmupInverseRoot", "width", "0"}));
  CHECK(says(error_of([] { WarmupInverseRoot{.width = 1, .warmup = 0}(1); }), {"WarmupInverseRoot", "warmup"}));
  CHECK(says(error_of([] { WarmupCosine{.peak = 1, .warmup = 5, .steps = 5}(1); }), {"WarmupCosine", "steps", "5"}));
  CHECK(says(error_of([] { WarmupCosine{.peak = .1, .warmup = 0, .steps = 5, .lowest = 1}(1); }), {"peak", "0.1"}));
  CHECK(says(error_of([] { Plateau({.factor = 1}); }), {"Plateau", "factor", "1"}));
  CHECK(says(error_of([] { Plateau({.lr = .1, .lowest = 1}); }), {"Plateau", "lowest", "1"}));
  CHECK(says(error_of([] { Plateau({.patience = -1}); }), {"Plateau", "patience", "-1"}));
  CHECK(says(error_of([] { linear_ratio(-1, 1, 1); }), {"linear_ratio", "-1"}));
  CHECK(says(error_of([] { linear_ratio(0, .2, 1, .3); }), {"lowest", "0.3"}));
  CHECK(says(error_of([] { exponential_ratio(0, 1.5); }), {"k", "1.5"}));
  CHECK(says(error_of([] { inverse_sigmoid_ratio(0, .5); }), {"k", "0.5"}));
  Bowl bowl;
  CHECK(says(error_of([&] { WeightAverage(bowl, {.decay = 1}); }), {"WeightAverage", "decay", "1"}));
}

TEST_CASE("schedule: a run that is resumed equals one that was not interrupted") {
  ScratchFolder folder;
  auto check = [&](auto make, const std::function<double(int64_t)>& lr) {
    Bowl whole, half, rest;
    auto whole_optimizer = make(whole), half_optimizer = make(half);
    run(whole, whole_optimizer, {.steps = 12, .lr = lr});
    run(half, half_optimizer, {.steps = 5, .lr = lr});
    save(folder.file("model"), half);
    write_safetensors(folder.file("state"), {half_optimizer.state(), {}});
    auto rest_optimizer = make(rest);
    load(folder.file("model"), rest);
    rest_optimizer.load_state(read_safetensors(folder.file("state")).tensors);
    TrainResult result = run(rest, rest_optimizer, {.steps = 12, .first_step = 6, .lr = lr});
    CHECK(result.steps == 12);
    CHECK(result.tokens == 7);
    CHECK(same_bits(rest.w.value(), whole.w.value()));
    CHECK(rest_optimizer.lr() == lr(12));
  };
  const std::vector<std::function<double(int64_t)>> rates = {ConstantRate{.lr = .1}, StepDecay{.lr = .1, .every = 4},
                                                             WarmupInverseRoot{.width = 16, .warmup = 3},
                                                             WarmupCosine{.peak = .1, .warmup = 3, .steps = 11}};
  for (const auto& lr : rates) {
    check([](Bowl& bowl) { return Adam(bowl); }, lr);
    check([](Bowl& bowl) { return AdamW(bowl); }, lr);
    check([](Bowl& bowl) { return Sgd(bowl, {.momentum = .9}); }, lr);
  }
}

TEST_CASE("schedule: a plateau goes on from its state") {
  ScratchFolder folder;
  const PlateauOptions options{.lr = .1, .factor = .5, .patience = 1, .cooldown = 1};
  const std::vector<double> metrics = {5, 4, 4, 4, 4, 3, 3, 3, 3, 3, 2, 2, 2, 2};
  auto steps = [&](Plateau& plateau, const Bowl& bowl, OptimizerRef optimizer, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      run(bowl, optimizer, {.steps = step, .first_step = step, .lr = std::ref(plateau)});
      plateau.observe(metrics[static_cast<size_t>(step - 1)]);
    }
  };
  Plateau whole(options);
  Bowl expected;
  Sgd sgd(expected);
  steps(whole, expected, sgd, 1, 14);
  CHECK(whole.lr() < .1);
  for (int64_t cut = 1; cut < 14; ++cut) {
    CAPTURE(cut);
    Plateau first(options), second(options);
    Bowl bowl;
    Sgd optimizer(bowl);
    steps(first, bowl, optimizer, 1, cut);
    write_safetensors(folder.file("plateau"), {first.state(), {}});
    second.load_state(read_safetensors(folder.file("plateau")).tensors);
    steps(second, bowl, optimizer, cut + 1, 14);
    CHECK(second.lr() == whole.lr());
    CHECK(same_bits(bowl.w.value(), expected.w.value()));
  }
  Plateau untouched(options);
  CHECK(says(error_of([&] {
               untouched.load_state({{"lr", Tensor::full({}, 9, DType::f64)}});
             }),
             {"Plateau", "best", "missing", "nothing was loaded"}));
  CHECK(untouched.lr() == .1);
}
}

TEST_SUITE("weight average") {
TEST_CASE("weight average: is the formula and leaves the weights alone") {
  Bowl bowl;
  WeightAverage corrected(bowl, {.decay = .9}), plain(bowl, {.decay = .9, .bias_correction = false});
  CHECK(same_bits(corrected.averages()[0].second, bowl.w.value()));  // nothing was seen yet
  std::vector<double> sum_of = {0, 0, 0}, from_start = {1, 1, 1};
  for (int n = 1; n <= 5; ++n) {
    bowl.w.mutable_value().copy_(normal({3}, DType::f32, static_cast<uint64_t>(n)));
    const std::vector<double> w = values(bowl.w.value());
    corrected.update();
    plain.update();
    const std::vector<double> a = values(corrected.averages()[0].second), b = values(plain.averages()[0].second);
    for (size_t i = 0; i < 3; ++i) {
      sum_of[i] = .9 * sum_of[i] + .1 * w[i];
      from_start[i] = .9 * from_start[i] + .1 * w[i];
      CHECK(a[i] == doctest::Approx(sum_of[i] / (1 - std::pow(.9, n))).epsilon(1e-5));
      CHECK(b[i] == doctest::Approx(from_start[i]).epsilon(1e-5));
    }
    if (n == 1) CHECK(close(corrected.averages()[0].second, bowl.w.value(), 1e-6));  // the average of one
  }
  const Tensor before = bowl.w.value().clone();
  {
    auto swapped = corrected.swap_in();
    CHECK(same_bits(bowl.w.value(), corrected.averages()[0].second));
    CHECK_FALSE(same_bits(bowl.w.value(), before));
  }
  CHECK(same_bits(bowl.w.value(), before));
}

TEST_CASE("weight average: a tied weight is averaged once") {
  Tied tied;
  WeightAverage average(tied, {.decay = .5});
  average.update();
  tied.a.mutable_value().fill_(4);
  average.update();
  CHECK(average.averages().size() == 1);
  auto swapped = average.swap_in();
  CHECK(tied.b.value().item() == doctest::Approx((.25 * 2 + .5 * 4) / .75));
}

TEST_CASE("weight average: goes on from its file") {
  ScratchFolder folder;
  Bowl whole, half;
  WeightAverage all(whole), first(half);
  Sgd sgd(whole, {.lr = .1}), half_sgd(half, {.lr = .1});
  run(whole, sgd, {.steps = 9, .average = &all});
  run(half, half_sgd, {.steps = 4, .average = &first});
  write_safetensors(folder.file("average"), {first.state(), {}});
  WeightAverage rest(half);
  rest.load_state(read_safetensors(folder.file("average")).tensors);
  CHECK(rest.updates() == 4);
  run(half, half_sgd, {.steps = 9, .first_step = 5, .average = &rest});
  CHECK(rest.updates() == 9);
  CHECK(same_bits(rest.averages()[0].second, all.averages()[0].second));
  CHECK(says(error_of([&] {
               rest.load_state({{"w.average", Tensor::zeros({2})}});
             }),
             {"WeightAverage", "w.average", "(2,)", "updates", "nothing was loaded"}));
}
}

TEST_SUITE("trainer") {
TEST_CASE("trainer: batches that are accumulated equal one big batch") {
  Rng rng(4);
  const Seq2SeqAttention model({.vocabulary = 8, .d_model = 5, .dtype = DType::f64}, rng);
  const auto sources = sequences({{3, 4, 5}, {6}, {7, 3}, {4, 4, 6, 5, 3}, {5, 7}});
  const auto targets = sequences({{5, 4}, {6, 6, 6, 3, 4}, {3}, {3, 5}, {7, 5, 7}});
  const std::span<const Sequence> s = sources, t = targets;
  const std::vector<Batch> parts = {make_batch(s.subspan(0, 2), t.subspan(0, 2)),
                                    make_batch(s.subspan(2, 1), t.subspan(2, 1)),
                                    make_batch(s.subspan(3, 2), t.subspan(3, 2))};
  const std::vector<Batch> whole = {make_batch(sources, targets)};
  auto loss = [&](const Batch& batch) { return model.loss(batch); };
  const BatchGradients one = accumulate_gradients(whole, loss), several = accumulate_gradients(parts, loss);
  CHECK(several.tokens == whole[0].tokens);
  CHECK(several.loss == doctest::Approx(one.loss).epsilon(1e-14));
  for (const NamedParameter& p : named_parameters(model)) {
    CAPTURE(p.name);
    CHECK(distance(several.grads[p.parameter], one.grads[p.parameter]) < 1e-12);
  }
  CHECK(says(error_of([&] { accumulate_gradients({}, loss); }), {"at least one batch"}));
  std::vector<Batch> empty(2, parts[0]);
  for (Batch& batch : empty) batch.tokens = 0;
  CHECK(says(error_of([&] { accumulate_gradients(empty, loss); }), {"0 targets in 2 batches"}));
}

TEST_CASE("trainer: an accumulated step takes its batches in order") {
  Bowl bowl, big;
  Sgd optimizer(bowl, {.lr = .1}), big_optimizer(big, {.lr = .1});
  std::vector<int64_t> asked;
  TrainResult result = train(
      optimizer,
      [&](int64_t k) {
        asked.push_back(k);
        return Batch{{}, {}, {}, k};
      },
      [&](const Batch& batch) { return bowl.loss(batch.tokens); }, [](int64_t) { return false; },
      {.steps = 2, .clip_norm = 1e9, .progress = nullptr, .accumulate = 2});
  CHECK(asked == std::vector<int64_t>{1, 2, 3, 4});
  CHECK(result.tokens == 10);
  for (int64_t step : {0, 1}) {
    Tape tape;
    const double a = static_cast<double>(2 * step + 1), b = a + 1;
    Var loss = (big.loss(2 * step + 1) * a + big.loss(2 * step + 2) * b) / (a + b);
    big_optimizer.step(tape.backward(loss));
    if (step == 1) CHECK(result.loss == doctest::Approx(loss.item()).epsilon(1e-6));
  }
  CHECK(close(bowl.w.value(), big.w.value(), 1e-6));
}

TEST_CASE("trainer: validation sees the average and training goes on with the weights") {
  Bowl averaged, plain;
  Adam a(averaged, {.lr = .1}), b(plain, {.lr = .1});
  WeightAverage average(averaged, {.decay = .5});
  std::vector<Tensor> seen;
  int64_t now = 0;
  train(
      a,
      [&](int64_t step) {
        now = step;
        return Batch{{}, {}, {}, 1};
      },
      [&](const Batch&) { return averaged.loss(now); },
      [&](int64_t) {
        CHECK(same_bits(averaged.w.value(), average.averages()[0].second));
        seen.push_back(averaged.w.value().clone());
        return false;
      },
      {.steps = 3, .validate_every = 1, .progress = nullptr, .average = &average});
  run(plain, b, {.steps = 3});
  CHECK(seen.size() == 3);
  CHECK(same_bits(averaged.w.value(), plain.w.value()));
  CHECK_FALSE(same_bits(seen[2], plain.w.value()));
}

TEST_CASE("trainer: a first step or a number of batches outside its range is named") {
  Bowl bowl;
  Sgd optimizer(bowl);
  CHECK(says(error_of([&] { run(bowl, optimizer, {.steps = 3, .first_step = 4}); }), {"first step", "1..3", "4"}));
  CHECK(says(error_of([&] { run(bowl, optimizer, {.steps = 3, .accumulate = 0}); }), {"batch a step", "0"}));
}
}
