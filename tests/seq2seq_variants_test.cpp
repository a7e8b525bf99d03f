// What Seq2SeqAttention can be made of: attentions, orders, embeddings, output layers; and how it is trained.
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/nn/checkpoint.h>

#include <algorithm>
#include <cmath>

#include "model_audit.h"
#include "scratch_folder.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr AttentionKind all_kinds[] = {
    AttentionKind::additive,         AttentionKind::dot,        AttentionKind::plain_dot,
    AttentionKind::concat,           AttentionKind::scaled_dot, AttentionKind::local_monotonic,
    AttentionKind::local_predictive, AttentionKind::last_value, AttentionKind::mean};

// The options at the size that an audit asks for. Encoder states are as wide as the decoder's, as plain dot needs it.
auto maker(Seq2SeqOptions options) {
  return [options](const ModelSize& size, Rng& rng) {
    Seq2SeqOptions o = options;
    o.vocabulary = size.vocabulary;
    o.d_model = size.size;
    o.encoder_size = size.size / 2;
    o.dtype = size.dtype;
    return Seq2SeqAttention(o, rng);
  };
}

Seq2SeqAttention make_model(const Seq2SeqOptions& options, uint64_t seed = 1) {
  Rng rng(seed);
  return Seq2SeqAttention(options, rng);
}

}  // namespace

TEST_SUITE("seq2seq_variants") {
TEST_CASE("seq2seq variants: every attention in bahdanau order") {
  for (AttentionKind kind : all_kinds) {
    CAPTURE(static_cast<int>(kind));
    audit_model(maker({.vocabulary = 0, .attention = {kind, 3, 1}}));
  }
}

TEST_CASE("seq2seq variants: every attention in luong order") {
  for (AttentionKind kind : all_kinds) {
    CAPTURE(static_cast<int>(kind));
    audit_model(maker({.vocabulary = 0, .attention = {kind, 3, 1}, .order = DecoderOrder::luong}));
  }
}

TEST_CASE("seq2seq variants: every attention in luong order with input feeding") {
  for (AttentionKind kind : all_kinds) {
    CAPTURE(static_cast<int>(kind));
    audit_model(
        maker({.vocabulary = 0, .attention = {kind, 3, 1}, .order = DecoderOrder::luong, .input_feeding = true}));
  }
}

TEST_CASE("seq2seq variants: separate embeddings and tied output") {
  audit_model(maker({.vocabulary = 0, .shared_embedding = false}));
  audit_model(maker({.vocabulary = 0, .order = DecoderOrder::luong, .tied_output = true}));
  audit_model(maker({.vocabulary = 0, .order = DecoderOrder::luong, .shared_embedding = false, .tied_output = true}));
}

TEST_CASE("seq2seq variants: scheduled sampling") {
  audit_sampling(maker({.vocabulary = 0, .attention = AttentionKind::local_monotonic}));
  audit_sampling(maker({.vocabulary = 0, .order = DecoderOrder::luong}));
  audit_sampling(maker({.vocabulary = 0, .order = DecoderOrder::luong, .input_feeding = true, .dropout = .3}));
}

TEST_CASE("seq2seq variants: dropout") {
  audit_dropout(maker({.vocabulary = 0, .dropout = .4}));
  audit_dropout(maker({.vocabulary = 0, .order = DecoderOrder::luong, .tied_output = true, .dropout = .4}));
  audit_model(maker({.vocabulary = 0, .dropout = .4}));
}

TEST_CASE("seq2seq variants: dropout takes embeddings and what the output layer reads") {
  // All of it: the output layer reads zeros, so its bias is left.
  Seq2SeqAttention model = make_model({.vocabulary = 8, .d_model = 4, .dropout = 1, .dtype = DType::f64});
  const Batch batch = batch_of(five_pairs, {0, 1});
  Rng rng(1);
  const Tensor logits = logits_of(model, batch, {.dropout = &rng});
  for (int64_t t = 0; t < logits.size(1); ++t)
    CHECK(same_bits(logits.select(0, 0).select(0, t), model.out.bias.value()));
  // And the encoder read zeros: the same states whatever the tokens.
  Rng first(1), second(1);
  const Tensor a = model.encode(tensor({{3, 4, 5}}), &first).state.value();
  CHECK(same_bits(a, model.encode(tensor({{6, 7, 3}}), &second).state.value()));
  CHECK(!same_bits(a, model.encode(tensor({{6, 7, 3}})).state.value()));
}

TEST_CASE("seq2seq variants: the model learns reversal in luong order") {
  audit_learning(maker({.vocabulary = 0, .attention = AttentionKind::plain_dot, .order = DecoderOrder::luong}));
}

TEST_CASE("seq2seq variants: the model learns reversal with input feeding and one weight for tokens in and out") {
  audit_learning(maker({.vocabulary = 0, .order = DecoderOrder::luong, .input_feeding = true, .tied_output = true}));
}

TEST_CASE("seq2seq variants: the model learns reversal under scheduled sampling and dropout and label smoothing") {
  Rng dropout(1), sampling(2);
  audit_learning(maker({.vocabulary = 0, .shared_embedding = false, .dropout = .05}),
                 {.pass = {.dropout = &dropout, .sampling = &sampling, .teacher_ratio = .8, .label_smoothing = .05}});
}

TEST_CASE("seq2seq variants: a luong step is cell then attention then attentional vector") {
  for (bool feeding : {false, true}) {
    CAPTURE(feeding);
    Seq2SeqAttention model = make_model({.vocabulary = 8,
                                         .d_model = 4,
                                         .attention = {AttentionKind::local_monotonic, 0, 1},
                                         .order = DecoderOrder::luong,
                                         .input_feeding = feeding,
                                         .dtype = DType::f64});
    auto [memory, start] = model.encode(tensor({{3, 4, 5}, {6, 7, 0}}));
    Var state = start, fed = Tensor::zeros({2, 4}, DType::f64);
    Seq2SeqAttention::Step step;
    for (int64_t t = 0; t < 2; ++t) {
      const Tensor previous = t == 0 ? tensor({bos_id, bos_id}) : tensor({5, 3});
      step = model.decode_step(previous, state, memory, t, t == 0 ? Var() : step.attentional);
      Var y = model.embed(previous);
      state = model.decoder_cell(feeding ? cat({y, fed}, 1) : y, state);
      auto [context, weights] = std::get<LocalMonotonicAttention>(model.attention)(state, memory, t);
      fed = tanh((*model.W_c)(cat({context, state}, 1)));
      CHECK(distance(step.state.value(), state.value()) <= 1e-15);
      CHECK(distance(step.weights.value(), weights.value()) <= 1e-15);
      CHECK(distance(step.attentional.value(), fed.value()) <= 1e-15);
      CHECK(distance(step.logits.value(), model.out(fed).value()) <= 1e-15);
    }
  }
}

TEST_CASE("seq2seq variants: local monotonic attention moves with the decoder") {
  Seq2SeqAttention model = make_model(
      {.vocabulary = 8, .d_model = 4, .attention = {AttentionKind::local_monotonic, 0, 1}, .dtype = DType::f64});
  const Tensor source = tensor({{3, 4, 5, 6, 7, 3}});
  auto check = [&](const Tensor& weights, int64_t t) {  // (6,)
    for (int64_t s = 0; s < 6; ++s) CHECK((weights.at({s}) != 0) == (std::abs(s - std::min<int64_t>(t, 5)) <= 1));
  };
  const Tensor attention = model.forward(source, tensor({{1, 3, 3, 3, 3, 3, 3, 3}})).attention.value();
  auto decoding = model.begin(source);
  for (int64_t t = 0; t < 8; ++t) {
    CAPTURE(t);
    check(attention.select(0, 0).select(0, t), t);
    check(decoding->step(tensor({3})).weights.select(0, 0), t);
    if (t == 3) decoding->select(tensor({0}));
  }
}

TEST_CASE("seq2seq variants: names and shapes of parameters in luong order") {
  std::string text;
  for (const NamedParameter& p : named_parameters(make_model({.vocabulary = 8,
                                 .d_model = 4,
                                 .attention = {AttentionKind::additive, 5},
                                 .order = DecoderOrder::luong,
                                 .input_feeding = true,
                                 .encoder_size = 3,
                                 .shared_embedding = false,
                                 .target_vocabulary = 9}))) {
    if (!p.name.starts_with("encoder.")) text += fmt::format("{} {}\n", p.name, p.parameter.shape());
  }
  CHECK(text ==
        "embed.weight (8, 4)\n"
        "target_embed.weight (9, 4)\n"
        "bridge.weight (4, 6)\n"
        "bridge.bias (4,)\n"
        "attention.W_q.weight (5, 4)\n"
        "attention.W_k.weight (5, 6)\n"
        "attention.v.weight (1, 5)\n"
        "decoder_cell.weight_ih (12, 8)\n"
        "decoder_cell.weight_hh (12, 4)\n"
        "decoder_cell.bias_ih (12,)\n"
        "decoder_cell.bias_hh (12,)\n"
        "W_c.weight (4, 10)\n"
        "out.weight (9, 4)\n"
        "out.bias (9,)\n");
}

TEST_CASE("seq2seq variants: a tied output layer is one weight in lists and files") {
  const Seq2SeqOptions options = {
      .vocabulary = 40, .d_model = 16, .order = DecoderOrder::luong, .tied_output = true, .dtype = DType::f64};
  Seq2SeqAttention model = make_model(options), other = make_model(options, 2);
  for (const NamedParameter& p : named_parameters(model)) CHECK(p.name != "out.weight");
  CHECK(model.out.weight.id() == model.embed.weight.id());
  const Seq2SeqAttention copy = clone(model);
  CHECK(copy.out.weight.id() == copy.embed.weight.id());
  const Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4});
  CHECK(std::abs(model.loss(batch).item() - std::log(40)) < .5);  // logits do not start large
  ScratchFolder folder;
  const std::string path = folder.file("tied.safetensors");
  save(path, model);
  load(path, other);
  CHECK(other.out.weight.id() == other.embed.weight.id());
  CHECK(other.loss(batch).item() == model.loss(batch).item());
}

TEST_CASE("seq2seq variants: options that do not go together are named") {
  auto error = [](const Seq2SeqOptions& options) { return error_of([&] { make_model(options); }); };
  CHECK(error({.vocabulary = 8, .d_model = 4}) == "");
  CHECK(says(error({.vocabulary = 8, .d_model = 4, .input_feeding = true}), {"input feeding", "luong"}));
  CHECK(says(error({.vocabulary = 8, .d_model = 4, .tied_output = true}), {"tied", "4", "12", "luong"}));
  CHECK(says(error({.vocabulary = 8, .d_model = 4, .target_vocabulary = 9}), {"8", "9", "shared_embedding"}));
  CHECK(says(error({.vocabulary = 8, .d_model = 4, .dropout = 1.5}), {"dropout", "1.5"}));
  CHECK(says(error({.vocabulary = 8, .d_model = 4, .encoder_size = -1}), {"encoder size", "-1"}));
  CHECK(says(error({.vocabulary = 8, .d_model = 4, .attention = AttentionKind::plain_dot}), {"4 and 8", "dot"}));
  CHECK(says(error({.vocabulary = 8, .attention = {AttentionKind::additive, -3}}), {"attention", "-3"}));
  CHECK(says(error({.vocabulary = 8, .attention = {AttentionKind::local_monotonic, 0, 0}}), {"window", "0"}));
  CHECK(error({.vocabulary = 8, .d_model = 4, .attention = AttentionKind::plain_dot, .encoder_size = 2}) == "");
}
}

TEST_SUITE("training_pass") {
TEST_CASE("training pass: a coin for every row and step") {
  constexpr int64_t B = 200, T = 21;
  const Tensor target = Tensor::full({B, T}, 5, DType::i64);
  Tensor logits = Tensor::zeros({B, 8}, DType::f64);
  logits.slice(1, 3, 4).fill_(1);
  auto drawn = [&](const Tensor& fed_target, uint64_t seed, double ratio) {
    Rng rng(seed);
    const FedTokens fed(fed_target, {.sampling = &rng, .teacher_ratio = ratio});
    CHECK(rng.state().position == 1);
    std::vector<Ints> steps;
    for (int64_t t = 0; t < T; ++t) {
      steps.push_back(ids(fed.at(t, [&] { return Var(logits.slice(0, 0, fed_target.size(0))); })));
    }
    return steps;
  };
  const std::vector<Ints> steps = drawn(target, 1, .5);
  CHECK(steps[0] == Ints(B, 5));  // always the target's: the begin token
  int64_t own = 0;
  for (int64_t t = 1; t < T; ++t) {
    const Ints& step = steps[static_cast<size_t>(t)];
    const int64_t here = std::count(step.begin(), step.end(), 3);
    CHECK(here + std::count(step.begin(), step.end(), 5) == B);
    CHECK(std::abs(static_cast<double>(here) - 100) < 5 * 7.1);
    own += here;
  }
  CHECK(std::abs(static_cast<double>(own) - 2000) < 3 * 31.6);
  CHECK(steps[1] != steps[2]);
  CHECK(drawn(target, 1, .5) == steps);
  CHECK(drawn(target, 2, .5) != steps);
  // Fewer rows, fewer steps: the same coins.
  const std::vector<Ints> fewer = drawn(target.slice(0, 0, 3), 1, .5);
  for (size_t t = 0; t < T; ++t) CHECK(fewer[t] == Ints(steps[t].begin(), steps[t].begin() + 3));
  CHECK(drawn(target, 1, 0)[1] == Ints(B, 3));
  CHECK(drawn(target, 1, 1)[1] == Ints(B, 5));
}

TEST_CASE("training pass: own tokens drawn from what the model predicts") {
  constexpr int64_t B = 4000;
  const Tensor target = Tensor::full({B, 2}, 5, DType::i64);
  const Tensor logits = expand(tensor({{-inf, -inf, -inf, std::log(3), 0.}}, DType::f64), {B, 5}).value();
  auto drawn = [&](double ratio) {
    Rng rng(1);
    const FedTokens fed(target, {.sampling = &rng, .teacher_ratio = ratio, .draw_own = true});
    return ids(fed.at(1, [&] { return Var(logits); }));
  };
  const Ints free = drawn(0), half = drawn(.5);
  const int64_t threes = std::count(free.begin(), free.end(), 3);
  CHECK(std::abs(static_cast<double>(threes) - 3000) < 4 * 27.4);
  CHECK(threes + std::count(free.begin(), free.end(), 4) == B);
  CHECK(std::abs(static_cast<double>(std::count(half.begin(), half.end(), 5)) - 2000) < 4 * 31.6);
  CHECK(std::abs(static_cast<double>(std::count(half.begin(), half.end(), 4)) - 500) < 4 * 21);
  CHECK(says(error_of([&] { FedTokens(target, {.teacher_ratio = 0, .draw_own = true}); }), {"drawn", "sampling"}));
}
}
