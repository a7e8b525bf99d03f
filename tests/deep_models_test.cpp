// GNMT, and listen attend and spell.
#include <tapedeck/models/gnmt.h>
#include <tapedeck/models/listen_attend_spell.h>
#include <tapedeck/models/seq2seq.h>

#include "model_audit.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

auto gnmt = [](const ModelSize& size, Rng& rng) {
  return GNMT({.vocabulary = size.vocabulary,
               .d_model = size.size,
               .encoder_layers = 3,
               .decoder_layers = 3,
               .dtype = size.dtype},
              rng);
};

auto listener = [](const ModelSize& size, Rng& rng) {
  return ListenAttendSpell({.vocabulary = size.vocabulary, .d_model = size.size, .halvings = 1, .dtype = size.dtype},
                           rng);
};

}  // namespace

TEST_SUITE("deep models") {
TEST_CASE("gnmt: audit") {
  audit_model(gnmt);
  audit_rows(gnmt, DType::f32, 2e-5);
}

TEST_CASE("gnmt: learns to reverse") { audit_learning(gnmt); }

TEST_CASE("gnmt: the bottom layer asks and all layers read the answer") {
  Rng rng(1);
  const GNMT model = gnmt({.vocabulary = 8, .size = 4}, rng);
  const Tensor source = tensor({{3, 4, 5}, {6, 7, 0}});
  GNMT::Encoded encoded = model.encode(source);
  GNMT::State state;
  for (uint64_t k = 0; k < 3; ++k) {
    state.push_back({normal({2, 4}, DType::f64, 2 * k), normal({2, 4}, DType::f64, 2 * k + 1)});
  }
  Var x = normal({2, 4}, DType::f64, 9);
  const GNMT::Advanced next = model.advance(x, state, encoded.memory);
  const AttentionResult attended = model.attention(state[0].h, encoded.memory);
  CHECK(same_bits(next.weights.value(), attended.weights.value()));
  LSTMState s0 = model.decoder[0](cat({x, attended.context}, 1), state[0]),
            s1 = model.decoder[1](cat({s0.h, attended.context}, 1), state[1]),
            s2 = model.decoder[2](cat({s1.h, attended.context}, 1), state[2]);
  CHECK(same_bits(next.features.value(), (s2.h + s1.h).value()));
  CHECK(same_bits(next.state[1].c.value(), s1.c.value()));
}

TEST_CASE("listen attend and spell: audit") {
  audit_model(listener);
  audit_rows(listener, DType::f32, 2e-5);
}

TEST_CASE("listen attend and spell: learns to reverse") { audit_learning(listener); }

TEST_CASE("listen attend and spell: attends to joined steps") {
  Rng rng(2);
  const ListenAttendSpell model({.vocabulary = 8, .d_model = 4, .halvings = 2, .dtype = DType::f64}, rng);
  const Tensor source = tensor({{3, 4, 5, 6, 7}, {3, 4, 5, 6, 0}, {7, 0, 0, 0, 0}});
  const SequenceOutput output = model.forward(source, tensor({{1, 3}, {1, 4}, {1, 5}}));
  CHECK(output.attention.shape() == Shape{3, 2, 2});
  CHECK(output.attention.value().at({0, 0, 1}) > 0);
  for (int64_t b : {1, 2}) CHECK(output.attention.value().at({b, 1, 1}) == 0);
}

TEST_CASE("decoding sees no target and tosses no coin whatever was trained before") {
  // Evaluated twice, with training passes of other streams in between, and with noise for targets.
  auto check = [](const auto& model) {
    const Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4});
    const Decoded before = greedy_decode(*model.begin(batch.source), 9);
    const Tensor free = model.forward(batch.source, batch.target_in, {.teacher_ratio = 0}).logits.value();
    const double forced = model.loss(batch).item();
    for (uint64_t seed = 1; seed < 3; ++seed) {
      Rng dropout(seed), sampling(seed + 2), noise(seed);
      {
        Tape tape;
        tape.backward(model.loss(batch, {.dropout = &dropout, .sampling = &sampling, .teacher_ratio = .5}));
      }
      const Decoded after = greedy_decode(*model.begin(batch.source), 9);
      CHECK(same_bits(after.tokens, before.tokens));
      CHECK(same_bits(after.attention, before.attention));
      Batch noisy = batch;
      noisy.target_in = batch.target_in.clone();
      for (int64_t b = 0; b < 5; ++b) {
        for (int64_t t = 1; t < noisy.target_in.size(1); ++t) noisy.target_in.set({b, t}, 3 + noise.below(5));
      }
      CHECK(same_bits(model.forward(noisy.source, noisy.target_in, {.teacher_ratio = 0}).logits.value(), free));
      CHECK(model.loss(noisy).item() != forced);  // the teacher-forced loss does see them
    }
  };
  Rng rng(4);
  check(GNMT({.vocabulary = 8, .d_model = 6, .dropout = .5, .dtype = DType::f64}, rng));
  check(ListenAttendSpell({.vocabulary = 8, .d_model = 6, .dropout = .5, .dtype = DType::f64}, rng));
  check(Seq2SeqAttention({.vocabulary = 8, .d_model = 6, .dtype = DType::f64}, rng));
}

TEST_CASE("gnmt: scheduled sampling") { audit_sampling(gnmt); }
TEST_CASE("gnmt: dropout") {
  audit_dropout([](const ModelSize& size, Rng& rng) {
    return GNMT({.vocabulary = size.vocabulary, .d_model = size.size, .dropout = .3, .dtype = size.dtype}, rng);
  });
}

TEST_CASE("listen attend and spell: scheduled sampling") { audit_sampling(listener); }
TEST_CASE("listen attend and spell: dropout") {
  audit_dropout([](const ModelSize& size, Rng& rng) {
    return ListenAttendSpell({.vocabulary = size.vocabulary, .d_model = size.size, .dropout = .3, .dtype = size.dtype},
                             rng);
  });
}

TEST_CASE("deep models: options outside their range are named") {
  Rng rng(3);
  CHECK(says(error_of([&] { GNMT({.vocabulary = 8, .decoder_layers = 0}, rng); }), {"decoder layers", "0"}));
  CHECK(says(error_of([&] { ListenAttendSpell({.vocabulary = 8, .decoder_layers = 0}, rng); }), {"decoder layers"}));
}
}
