// Training loops: the trainer itself on one number, then the reversal task.
#include <tapedeck/models/metrics.h>
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/models/trainer.h>
#include <tapedeck/ops/ops.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

#if defined(__SANITIZE_ADDRESS__)
#define TAPEDECK_UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TAPEDECK_UNDER_ASAN 1
#endif
#endif

namespace {

#ifdef TAPEDECK_UNDER_ASAN
constexpr int64_t many_steps = 2000;
#else
constexpr int64_t many_steps = 10000;
#endif

struct OneWeight {
  Parameter w{Tensor::full({1}, 1, DType::f64)};
  static void fields(auto& self, auto&& f) { f("w", self.w); }
  double value() const { return w.value().item(); }
};

const Batch no_batch{{}, {}, {}, 7};

// Steps that only count, on the loss w^2 / 2.
struct Run {
  OneWeight model;
  Adam optimizer{model, {.lr = .1}};
  std::string log;
  std::function<Var(int64_t)> loss = [this](int64_t) { return sum(model.w * model.w) * .5; };
  int64_t stop_at = -1, step = 0;

  TrainResult operator()(TrainOptions options) {
    options.progress = nullptr;
    return train(
        optimizer,
        [&](int64_t s) {
          step = s;
          log += fmt::format("b{} ", s);
          return no_batch;
        },
        [&](const Batch& batch) {
          log += fmt::format("l{} ", batch.tokens);
          return loss(step);
        },
        [&](int64_t s) {
          log += fmt::format("v{} ", s);
          return s == stop_at;
        },
        options);
  }
};

Seq2SeqAttention reversal_model(const ReversalTask& task, int64_t d, AttentionKind kind, uint64_t seed) {
  Rng rng = Rng(seed).split("init");
  return Seq2SeqAttention({.vocabulary = task.vocabulary(), .d_model = d, .attention = kind}, rng);
}

TrainResult train_reversal(const Seq2SeqAttention& model, Adam& optimizer, const ReversalTask& task, int64_t rows,
                           uint64_t seed, const std::function<bool(int64_t)>& validate, const TrainOptions& options) {
  const Rng data = Rng(seed).split("data");
  return train(
      optimizer,
      [&](int64_t step) {
        Rng rng = data.split(static_cast<uint64_t>(step));
        return task.batch(rows, rng);
      },
      [&](const Batch& batch) { return model.loss(batch); }, validate, options);
}

bool never(int64_t) { return false; }

}  // namespace

TEST_SUITE("trainer") {
TEST_CASE("trainer: batch then loss and validation every so many steps and at the end") {
  Run run;
  TrainResult result = run({.steps = 5, .validate_every = 2});
  CHECK(run.log == "b1 l7 b2 l7 v2 b3 l7 b4 l7 v4 b5 l7 v5 ");
  CHECK(result.steps == 5);
  CHECK(result.tokens == 35);
  Run even;
  even({.steps = 4, .validate_every = 2});
  CHECK(even.log == "b1 l7 b2 l7 v2 b3 l7 b4 l7 v4 ");  // the last step is validated once
  Run rare;
  rare({.steps = 2, .validate_every = 100});
  CHECK(rare.log == "b1 l7 b2 l7 v2 ");
}

TEST_CASE("trainer: stops where validation says so") {
  Run run;
  run.stop_at = 4;
  TrainResult result = run({.steps = 100, .validate_every = 2});
  CHECK(run.log == "b1 l7 b2 l7 v2 b3 l7 b4 l7 v4 ");
  CHECK(result.steps == 4);
  CHECK(result.tokens == 28);
  CHECK(std::isfinite(result.seconds));
  CHECK(result.seconds >= 0);
}

TEST_CASE("trainer: reports the loss of its last step and steps as the optimiser does") {
  Run run;
  double expected_loss = 0;
  OneWeight model;
  Adam optimizer(model, {.lr = .1});
  for (int i = 0; i < 3; ++i) {
    Tape tape;
    Var loss = sum(model.w * model.w) * .5;
    expected_loss = loss.item();
    Gradients g = tape.backward(loss);
    clip_grad_norm(model, g, .25);
    optimizer.step(g);
  }
  TrainResult result = run({.steps = 3, .clip_norm = .25});
  CHECK(result.loss == expected_loss);
  CHECK(run.model.value() == model.value());
  CHECK(run.model.value() < 1);
}

TEST_CASE("trainer: clips by the global norm") {
  // Adam's first step does not see the size of a gradient, but its state does: m = .1 g.
  Run run;
  run.loss = [&](int64_t) { return sum(run.model.w) * 1000.0; };
  run({.steps = 1, .clip_norm = 2});
  double m = 0;
  for (const auto& [name, tensor] : run.optimizer.state()) {
    if (name == "w.exp_avg") m = tensor.item();
  }
  CHECK(m == doctest::Approx(.2).epsilon(1e-6));
}

TEST_CASE("trainer: validation sees the step done and nothing on tapes") {
  OneWeight model;
  Adam optimizer(model, {.lr = .1});
  std::vector<double> seen;
  train(
      optimizer, [](int64_t) { return no_batch; }, [&](const Batch&) { return sum(model.w * model.w); },
      [&](int64_t) {
        CHECK(live_nodes() == 0);
        CHECK(Tape::recording() == nullptr);
        seen.push_back(model.value());
        return false;
      },
      {.steps = 3, .validate_every = 1, .progress = nullptr});
  REQUIRE(seen.size() == 3);
  CHECK(seen[0] != 1);
  CHECK(seen[2] == model.value());
}

TEST_CASE("trainer: a loss that is not finite names its step and changes nothing") {
  for (double bad : {inf, -inf, not_a_number}) {
    CAPTURE(bad);
    Run two, run;
    two({.steps = 2});
    // The gradient stays finite: only the loss tells.
    run.loss = [&](int64_t step) { return sum(run.model.w * run.model.w) * .5 + (step == 3 ? bad : 0.0); };
    const std::string error = error_of([&] { run({.steps = 10}); });
    CHECK(says(error, {"loss", "step 3", std::isnan(bad) ? "nan" : "inf"}));
    CHECK(run.log == "b1 l7 b2 l7 b3 l7 ");
    CHECK(run.model.value() == two.model.value());
    CHECK(live_nodes() == 0);
    const NamedTensors left = run.optimizer.state(), wanted = two.optimizer.state();
    REQUIRE(left.size() == wanted.size());
    for (size_t i = 0; i < left.size(); ++i) CHECK(same_bits(left[i].second, wanted[i].second));
  }
}

TEST_CASE("trainer: a gradient that is not finite names its step and parameter and changes nothing") {
  Run run, one;
  one({.steps = 1});
  // sqrt is 0 with an infinite slope where its argument reaches 0
  run.loss = [&](int64_t step) {
    return step == 1 ? sum(run.model.w * run.model.w) * .5 : sum(sqrt(run.model.w - run.model.w.value()));
  };
  CHECK(says(error_of([&] { run({.steps = 10}); }), {"step 2", "w"}));
  CHECK(run.model.value() == one.model.value());
  CHECK(live_nodes() == 0);
}

TEST_CASE("trainer: an exception of a callback passes through and leaves no tape") {
  Run run;
  run.loss = [](int64_t step) -> Var { fail("row {} is odd", step); };
  CHECK(says(error_of([&] { run({.steps = 10}); }), {"row 1 is odd"}));
  CHECK(live_nodes() == 0);
  CHECK(Tape::recording() == nullptr);
  CHECK(run.model.value() == 1);
}

TEST_CASE("trainer: a loss must be one number") {
  Run run;
  run.loss = [&](int64_t) { return cat({run.model.w, run.model.w}); };
  CHECK(error_of([&] { run({.steps = 1}); }) != "");
  CHECK(run.model.value() == 1);
}

TEST_CASE("trainer: options outside their range are named") {
  Run run;
  CHECK(says(error_of([&] { run({.steps = 0}); }), {"train", "steps", "0"}));
  CHECK(says(error_of([&] { run({.validate_every = 0}); }), {"train", "validate every", "0"}));
  CHECK(says(error_of([&] { run({.clip_norm = 0}); }), {"train", "clip norm"}));
  CHECK(says(error_of([&] { run({.clip_norm = not_a_number}); }), {"train", "nan"}));
  CHECK(run.log == "");
}

TEST_CASE("trainer: progress goes to the file that was asked for") {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  OneWeight model;
  Adam optimizer(model);
  train(
      optimizer, [](int64_t) { return no_batch; }, [&](const Batch&) { return sum(model.w * model.w); }, never,
      {.steps = 20, .progress = file});
  std::rewind(file);
  std::string text;
  for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  std::fclose(file);
  CHECK(std::count(text.begin(), text.end(), '\n') == 10);  // one line for each tenth
  CHECK(says(text, {"2/20", "20/20", "100%", "loss"}));
}
}

TEST_SUITE("training") {
TEST_CASE("training: reversal is learned with both attentions") {
  const ReversalTask task{.min_length = 3, .max_length = 5, .symbols = 5};
  Rng held_out_rng = Rng(0).split("held out");
  const Batch held_out = task.batch(128, held_out_rng);
  for (AttentionKind kind : {AttentionKind::additive, AttentionKind::dot}) {
    CAPTURE(static_cast<int>(kind));
    Seq2SeqAttention model = reversal_model(task, 24, kind, 1);
    Adam optimizer(model, {.lr = 8e-3});
    ReversalScore score = evaluate_reversal(model, held_out);
    REQUIRE(score.exact_match < .1);
    TrainResult result = train_reversal(model, optimizer, task, 32, 1,
                                        [&](int64_t) {
                                          score = evaluate_reversal(model, held_out);
                                          return score.exact_match >= .97 && score.alignment >= .9;
                                        },
                                        {.steps = 800, .progress = nullptr});
    CAPTURE(result.steps);
    CHECK(score.exact_match >= .95);
    CHECK(score.token_accuracy >= .95);
    CHECK(score.alignment >= .8);
    CHECK(result.loss < .3);

    // The rows that it gets right, alone.
    const Decoded decoded = model.greedy_decode(held_out.source, held_out.target_out.size(1));
    const CachedVector<int64_t> lengths = row_lengths(held_out.source);
    std::vector<Sequence> sources, targets;
    for (int64_t b = 0; b < 128; ++b) {
      const size_t row = static_cast<size_t>(b);
      const int64_t n = lengths[row];
      Sequence source = held_out.source.select(0, b).slice(0, 0, n).to_vector<int64_t>();
      Sequence target(source.rbegin(), source.rend()), wanted = target;
      wanted.push_back(eos_id);
      if (decoded.lengths[row] != n + 1) continue;
      if (decoded.tokens.select(0, b).slice(0, 0, n + 1).to_vector<int64_t>() != wanted) continue;
      sources.push_back(source), targets.push_back(target);
    }
    CHECK(static_cast<double>(sources.size()) / 128 == score.exact_match);
    ReversalScore perfect = evaluate_reversal(model, make_batch(sources, targets));
    CHECK(perfect.exact_match == 1);
    CHECK(perfect.token_accuracy == 1);
  }
}

TEST_CASE("training: the same seed gives the same bits") {
  const ReversalTask task{.min_length = 2, .max_length = 6, .symbols = 5};
  auto trained = [&](uint64_t seed, AttentionKind kind) {
    Seq2SeqAttention model = reversal_model(task, 12, kind, seed);
    Adam optimizer(model, {.lr = 3e-3});
    TrainResult result = train_reversal(model, optimizer, task, 16, seed, never, {.steps = 20, .progress = nullptr});
    std::vector<Tensor> seen = {Tensor::full({1}, result.loss, DType::f64)};
    for (const NamedParameter& p : named_parameters(model)) seen.push_back(p.parameter.value());
    return seen;
  };
  for (AttentionKind kind : {AttentionKind::additive, AttentionKind::dot}) {
    std::vector<Tensor> first = trained(1, kind), again = trained(1, kind), other = trained(2, kind);
    REQUIRE(first.size() == again.size());
    for (size_t k = 0; k < first.size(); ++k) {
      CAPTURE(k);
      CHECK(same_bits(first[k], again[k]));
      CHECK(!same_bits(first[k], other[k]));
    }
  }
}

TEST_CASE("training: memory stays flat over many steps") {
  const ReversalTask task{.min_length = 2, .max_length = 3, .symbols = 2};
  for (AttentionKind kind : {AttentionKind::additive, AttentionKind::dot}) {
    CAPTURE(static_cast<int>(kind));
    Seq2SeqAttention model = reversal_model(task, 4, kind, 1);
    Adam optimizer(model);
    Rng rng(1);
    const Batch probe = task.batch(2, rng);
    int64_t done = 0;
    auto run_until = [&](int64_t step) {
      const Rng data(1);
      train(
          optimizer,
          [&](int64_t) {
            Rng rng_of_step = data.split(static_cast<uint64_t>(++done));
            return task.batch(2, rng_of_step);
          },
          [&](const Batch& batch) { return model.loss(batch); },
          [&](int64_t) {
            model.greedy_decode(probe.source, 4);
            return false;
          },
          {.steps = step - done, .progress = nullptr});
    };
    run_until(20);
    const int64_t bytes = live_bytes(), nodes = live_nodes();
    CHECK(bytes > 0);
    CHECK(nodes == 0);
    run_until(many_steps / 2);
    const int64_t requests = system_allocations();
    run_until(many_steps);
    REQUIRE(done == many_steps);
    CHECK(live_bytes() == bytes);
    CHECK(live_nodes() == nodes);
    CHECK(system_allocations() == requests);
  }
}
}
