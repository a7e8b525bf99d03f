// What every encoder-decoder model must do, whatever is inside: see SequenceModel.
//
// `make` makes the model under test, small or large, always the same one from the same stream:
//
//   TEST_CASE("my model: audit") {
//     auto make = [](const ModelSize& size, Rng& rng) { return MyModel({.vocabulary = size.vocabulary, ...}, rng); };
//     audit_model(make);
//     audit_learning(make);
//   }
#pragma once

#include <tapedeck/core/gradcheck.h>
#include <tapedeck/models/metrics.h>
#include <tapedeck/models/trainer.h>
#include <tapedeck/ops/ops.h>

#include "module_audit.h"
#include "testing.h"

namespace tapedeck::testing {

struct ModelSize {
  int64_t vocabulary;
  int64_t size;  // of states and embeddings: even
  DType dtype = DType::f64;
};

using Ints = std::vector<int64_t>;

inline Ints ids(const Tensor& x) { return x.to_vector<int64_t>(); }

struct Pair {
  Sequence source, target;
};

// Rows of several lengths, over a vocabulary of 8.
inline const std::vector<Pair> five_pairs = {{{3, 4, 5}, {5, 6}},
                                             {{7}, {3, 3, 3, 4}},
                                             {{6, 6, 4, 3, 5}, {4}},
                                             {{5, 3}, {6, 7, 5}},
                                             {{4, 7, 7, 3, 6}, {7, 6, 3}}};

// Two rows of different lengths, over a vocabulary of 6.
inline const std::vector<Pair> two_pairs = {{{3, 4, 5}, {5, 4}}, {{5}, {3}}};

// The pairs chosen, with more pads than they need.
inline Batch batch_of(const std::vector<Pair>& pairs, const Ints& order, int64_t extra_source = 0,
                      int64_t extra_target = 0) {
  std::vector<Sequence> sources, targets;
  for (int64_t b : order) {
    sources.push_back(pairs[static_cast<size_t>(b)].source);
    targets.push_back(pairs[static_cast<size_t>(b)].target);
  }
  Batch batch = make_batch(sources, targets);
  auto padded = [](const Tensor& x, int64_t extra) {
    return cat({x, Tensor::full({x.size(0), extra}, pad_id, DType::i64)}, 1).value();
  };
  batch.source = padded(batch.source, extra_source);
  batch.target_in = padded(batch.target_in, extra_target);
  batch.target_out = padded(batch.target_out, extra_target);
  return batch;
}

// The model with its weights scaled. Fresh weights are small and make all rows alike; larger ones make every row go its
// own way.
template <class Make>
auto made(const Make& make, const ModelSize& size, uint64_t seed, double scale = 1) {
  Rng rng(seed);
  auto model = make(size, rng);
  for (const NamedParameter& p : named_parameters(model)) p.parameter.mutable_value().mul_(scale);
  return model;
}

// ---- Gradients ----------------------------------------------------------------------------------------------------

// The loss of a padded batch: every element to order one, three directions to order two.
template <class Make>
void audit_gradients(const Make& make, const std::vector<Excluded>& excluded = {}) {
  auto model = made(make, {.vocabulary = 6, .size = 2}, 10);
  const Batch batch = batch_of(two_pairs, {0, 1});
  auto loss = [&](std::span<const Var>) { return model.loss(batch); };
  GradcheckReport first = gradcheck(loss, {}, named_parameters(model), {.excluded = excluded});
  CHECK_MESSAGE(first.ok(), to_string(first));
  GradcheckReport second =
      gradcheck(loss, {}, named_parameters(model), {.order = 2, .directions = 3, .excluded = excluded});
  CHECK_MESSAGE(second.ok(), to_string(second));
}

// ---- Rows ---------------------------------------------------------------------------------------------------------

// Everything that a batch gives, with the loss summed over its rows.
struct Seen {
  Tensor logits, attention;  // (B, T, V), (B, T, S)
  double loss;
  std::vector<Tensor> grads;  // in the order of named_parameters; zeros where there is none
  Decoded decoded;
};

Seen look(const SequenceModel auto& model, const Batch& batch, int64_t limit) {
  Seen seen;
  Tape tape;
  SequenceOutput output = model.forward(batch.source, batch.target_in);
  Var loss = cross_entropy(output.logits, batch.target_out, {.ignore_index = pad_id, .reduction = Reduction::sum});
  seen.logits = output.logits.value();
  if (output.attention.defined()) seen.attention = output.attention.value();
  seen.loss = loss.item();
  Gradients g = tape.backward(loss);
  for (const NamedParameter& p : named_parameters(model)) {
    const Tensor* found = g.find(p.parameter);
    seen.grads.push_back(found ? *found : Tensor::zeros(p.parameter.shape(), p.parameter.dtype()));
  }
  seen.decoded = greedy_decode(*model.begin(batch.source), limit);
  return seen;
}

// A row alone is the same row in any batch with any padding: logits, attention, loss, gradients, greedy decoding.
// Gradients are compared relative to their own largest element, or to a hundredth of the model's: a bias of all keys
// gets nothing but rounding.
template <class Make>
void audit_rows(const Make& make, DType dtype = DType::f64, double tolerance = 1e-12) {
  auto model = made(make, {.vocabulary = 8, .size = 6, .dtype = dtype}, 3, 2.5);
  const std::vector<NamedParameter> parameters = named_parameters(model);
  constexpr int64_t limit = 7;
  std::vector<Seen> alone;
  for (int64_t b = 0; b < 5; ++b) alone.push_back(look(model, batch_of(five_pairs, {b}), limit));
  for (const Ints& order : {Ints{0, 1, 2, 3, 4}, Ints{4, 3, 2, 1, 0}, Ints{1, 3, 0}, Ints{3, 1}, Ints{2}}) {
    for (int64_t extra : {0, 1, 4}) {
      CAPTURE(order.size());
      CAPTURE(extra);
      Seen batch = look(model, batch_of(five_pairs, order, extra, extra), limit);
      double loss = 0;
      std::vector<Tensor> sums;
      for (size_t i = 0; i < order.size(); ++i) {
        CAPTURE(order[i]);
        const int64_t at = static_cast<int64_t>(i);
        const Pair& pair = five_pairs[static_cast<size_t>(order[i])];
        const Seen& single = alone[static_cast<size_t>(order[i])];
        const int64_t T = static_cast<int64_t>(pair.target.size()) + 1;
        auto row = [at](const Tensor& x) { return x.select(0, at); };
        CHECK(distance(row(batch.logits).slice(0, 0, T), single.logits.select(0, 0)) <= tolerance);
        REQUIRE(batch.attention.defined() == single.attention.defined());
        // places attended to: as many as the source has symbols, or fewer where the encoder joins them
        const int64_t S = single.attention.defined() ? single.attention.size(2) : 0;
        if (batch.attention.defined()) {
          Tensor attention = row(batch.attention).slice(0, 0, T);
          CHECK(distance(attention.slice(1, 0, S), single.attention.select(0, 0)) <= tolerance);
          CHECK(all_zero(attention.slice(1, S, attention.size(1))));
          CHECK(ids(argmax(attention).value()) == ids(argmax(single.attention.select(0, 0)).value()));
        }

        const int64_t n = single.decoded.lengths[0], L = batch.decoded.tokens.size(1);
        REQUIRE(batch.decoded.lengths[i] == n);
        CHECK(batch.decoded.finished[i] == single.decoded.finished[0]);
        CHECK(ids(row(batch.decoded.tokens).slice(0, 0, n)) == ids(single.decoded.tokens));
        CHECK(ids(row(batch.decoded.tokens).slice(0, n, L)) == Ints(static_cast<size_t>(L - n), pad_id));
        REQUIRE(batch.decoded.attention.defined() == single.attention.defined());
        if (single.attention.defined()) {
          Tensor looked = row(batch.decoded.attention), looked_alone = single.decoded.attention.select(0, 0);
          CHECK(distance(looked.slice(0, 0, n).slice(1, 0, S), looked_alone) <= tolerance);
          CHECK(all_zero(looked.slice(0, n, L)));
          CHECK(ids(argmax(looked.slice(0, 0, n)).value()) == ids(argmax(looked_alone).value()));
        }

        loss += single.loss;
        for (size_t k = 0; k < single.grads.size(); ++k) {
          if (i == 0) sums.push_back(Tensor::zeros(single.grads[k].shape(), dtype));
          sums[k].add_(single.grads[k]);
        }
      }
      CHECK(std::abs(batch.loss - loss) <= tolerance * loss);
      auto largest = [](const Tensor& x) { return max(abs(x)).item(); };
      double of_all = 0;
      for (const Tensor& sum : sums) of_all = std::max(of_all, largest(sum));
      for (size_t k = 0; k < sums.size(); ++k) {
        CAPTURE(parameters[k].name);
        const double scale = std::max(largest(sums[k]), of_all / 100);
        CHECK(largest((Var(batch.grads[k]) - sums[k]).value()) <= tolerance * scale);
        // fewer rows may miss every unit of a relu or an expert, or attend to one place only
        if (order.size() == 5) CHECK(!all_zero(sums[k]));
      }
    }
  }
}

// ---- Steps --------------------------------------------------------------------------------------------------------

// Decoding step by step gives what forward gives, wherever the target has a token, and rows can be dropped, reordered
// and doubled on the way.
template <class Make>
void audit_steps(const Make& make) {
  auto model = made(make, {.vocabulary = 8, .size = 4}, 4, 2);
  const Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4}, 1, 1);
  const SequenceOutput output = model.forward(batch.source, batch.target_in);
  Ints rows = {0, 1, 2, 3, 4};
  auto decoding = model.begin(batch.source);
  for (int64_t t = 0; t < batch.target_in.size(1); ++t) {
    CAPTURE(t);
    if (t == 1 || t == 3) {
      const Ints chosen = t == 1 ? Ints{4, 1, 1, 3} : Ints{2, 0, 1, 2, 3};
      decoding->select(Tensor::from(chosen, {static_cast<int64_t>(chosen.size())}));
      Ints next;
      for (int64_t i : chosen) next.push_back(rows[static_cast<size_t>(i)]);
      rows = next;
    }
    REQUIRE(decoding->rows() == static_cast<int64_t>(rows.size()));
    const Tensor picked = Tensor::from(rows, {static_cast<int64_t>(rows.size())});
    const Tensor fed = index_select(batch.target_in.select(1, t), 0, picked).value();
    const Decoding::Step step = decoding->step(fed);
    REQUIRE(step.weights.defined() == output.attention.defined());
    for (size_t i = 0; i < rows.size(); ++i) {
      CAPTURE(rows[i]);
      const int64_t at = static_cast<int64_t>(i);
      if (fed.at({at}) == pad_id) continue;
      auto of_forward = [&](const Var& x) { return x.value().select(0, rows[i]).select(0, t); };
      CHECK(distance(step.logits.select(0, at), of_forward(output.logits)) <= 1e-12);
      if (step.weights.defined()) CHECK(distance(step.weights.select(0, at), of_forward(output.attention)) <= 1e-12);
    }
  }
}

// ---- Training passes ----------------------------------------------------------------------------------------------

inline Tensor logits_of(const SequenceModel auto& model, const Batch& batch, const TrainingPass& pass = {}) {
  return model.forward(batch.source, batch.target_in, pass).logits.value();
}

// The default pass is evaluation, and the loss is that of its logits, smoothed where asked for.
template <class Make>
void audit_passes(const Make& make) {
  auto model = made(make, {.vocabulary = 8, .size = 4}, 5, 2);
  const Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4});
  const Tensor plain = logits_of(model, batch);
  CHECK(same_bits(logits_of(model, batch), plain));
  auto expected = [&](double smoothing) {
    return cross_entropy(plain, batch.target_out, {.ignore_index = pad_id, .label_smoothing = smoothing}).item();
  };
  CHECK(model.loss(batch).item() == doctest::Approx(expected(0)).epsilon(1e-12));
  CHECK(model.loss(batch, {.label_smoothing = .1}).item() == doctest::Approx(expected(.1)).epsilon(1e-12));
}

// For models with a dropout above 0: only a pass with a stream drops, by the stream alone, and differentiably.
template <class Make>
void audit_dropout(const Make& make) {
  auto model = made(make, {.vocabulary = 8, .size = 4}, 5, 2);
  const Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4});
  auto dropped = [&](uint64_t seed) {
    Rng rng(seed);
    Tensor logits = logits_of(model, batch, {.dropout = &rng});
    CHECK(rng.state() != Rng(seed).state());
    return logits;
  };
  CHECK(same_bits(dropped(1), dropped(1)));
  CHECK(distance(dropped(1), dropped(2)) > 1e-3);
  CHECK(distance(dropped(1), logits_of(model, batch)) > 1e-3);
  auto tiny = made(make, {.vocabulary = 6, .size = 2}, 10);
  auto loss = [&](std::span<const Var>) {
    Rng rng(3);
    return tiny.loss(batch_of(two_pairs, {0, 1}), {.dropout = &rng});
  };
  GradcheckReport report = gradcheck(loss, {}, named_parameters(tiny), {.directions = 8});
  CHECK_MESSAGE(report.ok(), to_string(report));
}

// Scheduled sampling: its two ends, and between them a coin for each row and step and no gradient through the choice.
template <class Make>
void audit_sampling(const Make& make) {
  auto model = made(make, {.vocabulary = 8, .size = 4}, 6, 3);
  const Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4});
  const int64_t B = 5, T = batch.target_in.size(1);

  // Ratio 1 is teacher forcing, and both streams end where they would.
  Rng dropout(1), coins(2), same_dropout(1), same_coins(2);
  const Tensor forced = logits_of(model, batch, {.dropout = &dropout});
  CHECK(same_bits(logits_of(model, batch, {.dropout = &same_dropout, .sampling = &coins}), forced));
  CHECK(dropout.state() == same_dropout.state());
  const Tensor half = logits_of(model, batch, {.sampling = &same_coins, .teacher_ratio = .5});
  CHECK(coins.state() == same_coins.state());

  // Ratio 0 is free running, past the end too.
  const Tensor free = logits_of(model, batch, {.teacher_ratio = 0});
  auto decoding = model.begin(batch.source);
  Tensor fed = Tensor::full({B}, bos_id, DType::i64);
  bool own = false;  // something else than the target was fed
  for (int64_t t = 0; t < T; ++t) {
    const Tensor logits = decoding->step(fed).logits;
    CHECK(distance(free.select(1, t), logits) <= 1e-12);
    fed = argmax(logits).value();
    if (t + 1 < T) own = own || ids(fed) != ids(batch.target_in.select(1, t + 1));
  }
  REQUIRE(own);
  CHECK(distance(half, free) > 1e-3);
  CHECK(distance(half, logits_of(model, batch)) > 1e-3);

  // A row's coins are its own.
  auto sampled = [&](const Batch& rows, uint64_t seed) {
    Rng rng(seed);
    return logits_of(model, rows, {.sampling = &rng, .teacher_ratio = .5});
  };
  const Tensor alone = sampled(batch_of(five_pairs, {1}), 2), first = sampled(batch_of(five_pairs, {1, 4, 2}, 1, 2), 2);
  CHECK(distance(first.select(0, 0).slice(0, 0, alone.size(1)), alone.select(0, 0)) <= 1e-12);
  CHECK(same_bits(sampled(batch, 3), sampled(batch, 3)));

  auto tiny = made(make, {.vocabulary = 6, .size = 2}, 10, 2);
  auto loss = [&](std::span<const Var>) {
    Rng rng(3);
    return tiny.loss(batch_of(two_pairs, {0, 1}), {.sampling = &rng, .teacher_ratio = .5});
  };
  GradcheckReport report = gradcheck(loss, {}, named_parameters(tiny), {.directions = 8});
  CHECK_MESSAGE(report.ok(), to_string(report));

  Rng stream(1);
  auto error = [&](const TrainingPass& pass) { return error_of([&] { model.loss(batch, pass); }); };
  CHECK(says(error({.sampling = &stream, .teacher_ratio = 1.5}), {"teacher ratio", "1.5"}));
  CHECK(says(error({.sampling = &stream, .teacher_ratio = not_a_number}), {"teacher ratio", "nan"}));
  CHECK(says(error({.teacher_ratio = .5}), {"teacher ratio", "0.5", "sampling"}));
}

// The parameters that the model lists are those that it makes.
template <class Make>
void audit_fields(const Make& make) {
  CHECK(audit_module([&] {
          Rng rng(1);
          return make(ModelSize{.vocabulary = 8, .size = 4, .dtype = DType::f32}, rng);
        }) == "");
}

// All of the above that needs no dropout and no scheduled sampling.
template <class Make>
void audit_model(const Make& make) {
  audit_fields(make);
  audit_gradients(make);
  audit_rows(make);
  audit_steps(make);
  audit_passes(make);
}

// ---- Learning -----------------------------------------------------------------------------------------------------

struct Learning {
  ReversalTask task = {.min_length = 2, .max_length = 4, .symbols = 4};
  int64_t size = 24, rows = 32, steps = 800;
  double lr = 8e-3;
  TrainingPass pass = {};
};

// It learns to reverse: 95 % of held-out rows come out whole.
template <class Make>
void audit_learning(const Make& make, const Learning& learning = {}) {
  const ReversalTask& task = learning.task;
  Rng held_out_rng = Rng(0).split("held out"), init = Rng(1).split("init");
  const Batch held_out = task.batch(128, held_out_rng);
  auto model = make(ModelSize{.vocabulary = task.vocabulary(), .size = learning.size, .dtype = DType::f32}, init);
  Adam optimizer(model, {.lr = learning.lr});
  ReversalScore score = evaluate_reversal(model, held_out);
  REQUIRE(score.exact_match < .2);
  const Rng data = Rng(1).split("data");
  const TrainResult result = train(
      optimizer,
      [&](int64_t step) {
        Rng rng = data.split(static_cast<uint64_t>(step));
        return task.batch(learning.rows, rng);
      },
      [&](const Batch& batch) { return model.loss(batch, learning.pass); },
      [&](int64_t) {
        score = evaluate_reversal(model, held_out);
        return score.exact_match >= .97;
      },
      {.steps = learning.steps, .progress = nullptr});
  CAPTURE(result.steps);
  CAPTURE(result.loss);
  CHECK(score.exact_match >= .95);
  CHECK(score.token_accuracy >= .95);
}

}  // namespace tapedeck::testing
