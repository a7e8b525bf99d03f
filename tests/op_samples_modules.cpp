#include "op_samples.h"

#include <tapedeck/models/gnmt.h>
#include <tapedeck/models/listen_attend_spell.h>
#include <tapedeck/models/minimum_risk.h>
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/models/seq2seq_plain.h>
#include <tapedeck/models/transformer.h>
#include <tapedeck/models/translation_study.h>
#include <tapedeck/nn/hard_attention.h>
#include <tapedeck/nn/layer_norm.h>
#include <tapedeck/nn/lstm.h>
#include <tapedeck/nn/multi_head_attention.h>
#include <tapedeck/nn/rnn.h>
#include <tapedeck/ops/ops.h>

namespace tapedeck::samples {
namespace {

Tensor drawn(const Draw& draw, uint64_t seed) {
  Rng rng(seed);
  return draw.make(draw.shape, rng);
}

// Two layers and a loss, of ops and bare parameters.
ModuleCase two_layers() {
  Parameter w1(drawn(real({4, 3}), 1)), b1(drawn(real({4}), 2)), w2(drawn(real({2, 4}), 3)), b2(drawn(real({2}), 4));
  Tensor targets = tensor({1, 0, 1, 1, 0});
  return {.f = [=](In x) -> std::vector<Var> {
            return {cross_entropy(linear(tanh(linear(x[0], w1, b1)), w2, b2), targets)};
          },
          .inputs = {{"x", drawn(real({5, 3}), 5)}},
          .parameters = {{"hidden.weight", w1}, {"hidden.bias", b1}, {"out.weight", w2}, {"out.bias", b2}}};
}

// f of the inputs and of the module's parameters, under their paths.
template <Module M>
ModuleCase checked(const M& module, Function f, std::vector<NamedTensor> inputs) {
  return {.f = [f](In x) -> std::vector<Var> { return {f(x)}; },
          .inputs = std::move(inputs),
          .parameters = named_parameters(module)};
}

ModuleCase linear_layer() {
  Rng rng(6);
  Linear layer(3, 4, rng, {.dtype = DType::f64});
  return checked(layer, [=](In x) { return layer(x[0]); }, {{"x", drawn(real({2, 2, 3}), 7)}});
}

ModuleCase layer_norm_layer(bool bias) {
  LayerNorm layer(4, {.eps = 1e-3, .bias = bias, .dtype = DType::f64});
  layer.weight.mutable_value().copy_(drawn(positive({4}), 20));
  if (bias) layer.bias.mutable_value().copy_(drawn(real({4}), 21));
  return checked(layer, [=](In x) { return layer(x[0]); }, {{"x", drawn(real({2, 3, 4}), 22)}});
}

ModuleCase embedding_layer() {
  Rng rng(8);
  Embedding layer(5, 3, rng, {.dtype = DType::f64});
  return checked(layer, [=](In) { return layer(tensor({{4, 1, 1}, {0, 2, 4}})); }, {});
}

ModuleCase gru_cell() {
  Rng rng(9);
  GRUCell cell(3, 2, rng, {.dtype = DType::f64});
  return checked(cell, [=](In x) { return cell(x[0], x[1]); },
                 {{"x", drawn(real({2, 3}), 10)}, {"h", drawn(real({2, 2}), 11)}});
}

ModuleCase gru_layers() {
  Rng rng(12);
  GRU gru(2, 2, rng, {.layers = 2, .bidirectional = true, .dtype = DType::f64});
  ModuleCase sample = checked(gru, {}, {{"x", drawn(real({2, 3, 2}), 13)}, {"h0", drawn(real({4, 2, 2}), 14)}});
  sample.f = [=](In x) -> std::vector<Var> {
    GRU::Result r = gru(x[0], std::vector<int64_t>{2, 3}, x[1]);
    return {r.output, r.final_state};
  };
  return sample;
}

const Tensor attention_mask() { return tensor({{true, true, false}, {true, false, true}}); }

template <class Attention>
ModuleCase attention_layer(const Attention& attention) {
  ModuleCase sample =
      checked(attention, {}, {{"query", drawn(real({2, 3}), 15)}, {"values", drawn(real({2, 3, 4}), 16)}});
  sample.f = [=](In x) -> std::vector<Var> {
    AttentionResult r = attention(x[0], attention.project(x[1], attention_mask()));
    return {r.context, r.weights};
  };
  return sample;
}

// Three queries a row at once.
template <class Attention>
ModuleCase attention_over_steps(const Attention& attention) {
  ModuleCase sample =
      checked(attention, {}, {{"queries", drawn(real({2, 3, 3}), 20)}, {"values", drawn(real({2, 3, 4}), 21)}});
  sample.f = [=](In x) -> std::vector<Var> {
    AttentionResult r = attention(x[0], attention.project(x[1], attention_mask()));
    return {r.context, r.weights};
  };
  return sample;
}

template <class Attention, auto... sizes>
ModuleCase attention_with(uint64_t seed) {
  Rng rng(seed);
  return attention_layer(Attention(3, 4, sizes..., rng, DType::f64));
}

ModuleCase multi_head(bool cross) {
  Rng rng(33);
  MultiHeadAttention layer(4, 2, rng, {.dtype = DType::f64});
  ModuleCase sample = checked(layer, {}, {{"x", drawn(real({2, 3, 4}), 34)}});
  if (cross) sample.inputs.push_back({"memory", drawn(real({2, 3, 4}), 35)});
  sample.f = [=](In x) -> std::vector<Var> {
    const MultiHeadResult r =
        cross ? layer(x[0], layer.project(x[1], attention_mask())) : layer.attend_self(x[0], attention_mask(), true);
    return {r.output, r.weights};
  };
  return sample;
}

ModuleCase lstm_layers() {
  Rng rng(22);
  LSTM lstm(2, 2, rng, {.layers = 2, .bidirectional = true, .dtype = DType::f64});
  ModuleCase sample = checked(
      lstm, {},
      {{"x", drawn(real({2, 3, 2}), 23)}, {"h0", drawn(real({4, 2, 2}), 24)}, {"c0", drawn(real({4, 2, 2}), 25)}});
  sample.f = [=](In x) -> std::vector<Var> {
    LSTM::Result r = lstm(x[0], std::vector<int64_t>{2, 3}, LSTMState{x[1], x[2]});
    return {r.output, r.final_state.h, r.final_state.c};
  };
  return sample;
}

ModuleCase rnn_layers() {
  Rng rng(26);
  RNN rnn(2, 2, rng, {.layers = 2, .bidirectional = true, .dtype = DType::f64});
  ModuleCase sample = checked(rnn, {}, {{"x", drawn(real({2, 3, 2}), 27)}});
  sample.f = [=](In x) -> std::vector<Var> {
    RNN::Result r = rnn(x[0], std::vector<int64_t>{3, 1});
    return {r.output, r.final_state};
  };
  return sample;
}

// The loss of a padded batch.
template <SequenceModel M>
ModuleCase whole_model(const M& model) {
  const Batch batch = make_batch(std::vector<Sequence>{{3, 4, 5}, {5, 3}}, std::vector<Sequence>{{5, 4}, {3}});
  return checked(model, [=](In) { return model.loss(batch); }, {});
}

ModuleCase pyramidal_lstm() {
  Rng rng(34);
  PyramidalLSTM lstm(2, 1, rng, {.halvings = 2, .dtype = DType::f64});
  ModuleCase sample = checked(lstm, {}, {{"x", drawn(real({2, 5, 2}), 35)}});
  sample.f = [=](In x) -> std::vector<Var> {
    PyramidalLSTM::Result r = lstm(x[0], std::vector<int64_t>{3, 5});
    return {r.output, r.final_state.h, r.final_state.c};
  };
  return sample;
}

ModuleCase residual_lstm() {
  Rng rng(36);
  ResidualLSTM lstm(2, 2, rng, {.layers = 3, .dtype = DType::f64});
  ModuleCase sample = checked(lstm, {}, {{"x", drawn(real({2, 3, 2}), 37)}});
  sample.f = [=](In x) -> std::vector<Var> {
    ResidualLSTM::Result r = lstm(x[0], std::vector<int64_t>{3, 2});
    return {r.output, r.final_states[0].h, r.final_states[2].c};
  };
  return sample;
}

ModuleCase deep_model(ModuleCase whole) {
  whole.options.directions = 4;
  return whole;
}

// Draws do not change in small steps: what is left is smooth.
ModuleCase drawn_attention() {
  return {.f = [](In x) -> std::vector<Var> {
            Rng rng(40);
            HardAttention hard =
                draw_attention({{}, masked_softmax(x[0], attention_mask())}, {x[1], x[1], attention_mask()}, &rng);
            return {hard.context, hard.log_p, hard.entropy};
          },
          .inputs = {{"scores", drawn(real({2, 3}), 41)}, {"values", drawn(real({2, 3, 2}), 42)}},
          .parameters = {}};
}

ModuleCase gumbel() {
  return {.f = [](In x) -> std::vector<Var> {
            Rng rng(43);
            return {gumbel_softmax(masked_softmax(x[0], attention_mask()), .7, rng)};
          },
          .inputs = {{"scores", drawn(real({2, 3}), 44)}},
          .parameters = {}};
}

ModuleCase minimum_risk() {
  Rng rng(33);
  Seq2SeqAttention model({.vocabulary = 6, .d_model = 2, .dtype = DType::f64}, rng);
  const Tensor source = tensor({{3, 4, 5}, {5, 3, 0}});
  const Candidates candidates = {{{{5, 4, 2}, 1}, {{3, 2}, .25}, {{4, 4, 4, 4}, -2}}, {{{2}, 3}, {{5, 2}, 0}}};
  return checked(model, [=](In) { return risk_loss(model, source, candidates, .7); }, {});
}

ModuleCase attending_model(const Seq2SeqOptions& options) {
  Rng rng(19);
  return whole_model(Seq2SeqAttention(options, rng));
}

template <class Cell>
ModuleCase plain_model(const PlainSeq2SeqOptions& options) {
  Rng rng(33);
  return whole_model(Seq2Seq<Cell>(options, rng));
}

ModuleCase study_model(StudyContext context) {
  Rng rng(34);
  return whole_model(TranslationStudy({.source_vocabulary = 6,
                                       .target_vocabulary = 6,
                                       .embedding_size = 2,
                                       .encoder_size = 2,
                                       .decoder_size = 3,
                                       .attention_size = 2,
                                       .context = context,
                                       .dtype = DType::f64},
                                      rng));
}

ModuleCase feed_forward_layer() {
  Rng rng(36);
  FeedForward layer(3, 4, rng, {.activation = Activation::gelu, .dtype = DType::f64});
  return checked(layer, [=](In x) { return layer(x[0]); }, {{"x", drawn(real({2, 2, 3}), 37)}});
}

// Where the second choice is no close run: at a tie the output jumps.
ModuleCase mixture() {
  Rng rng(38);
  MixtureOfExperts layer(3, 3, 3, rng, {.activation = Activation::gelu, .dtype = DType::f64});
  layer.gate.weight.mutable_value().mul_(4);
  ModuleCase sample = checked(layer, {}, {{"x", drawn(real({2, 3, 3}), 39)}});
  sample.f = [=](In x) -> std::vector<Var> {
    const MixtureResult r = layer(x[0], tensor({{true, true, true}, {true, true, false}}));
    return {r.output, r.balance};
  };
  return sample;
}

ModuleCase transformer(NormPlace norm, int64_t experts) {
  Rng rng(40);
  Transformer model({.vocabulary = 6,
                     .d_model = 4,
                     .heads = 2,
                     .feed_forward = 3,
                     .encoder_layers = 1,
                     .decoder_layers = 1,
                     .norm = norm,
                     .activation = Activation::gelu,
                     .experts = experts,
                     .dtype = DType::f64},
                    rng);
  const Batch batch = make_batch(std::vector<Sequence>{{3, 4, 5}, {5, 3}}, std::vector<Sequence>{{5, 4}, {3}});
  return checked(model, [=](In) { return model.loss(batch, {.label_smoothing = .1, .balance = .5}); }, {});
}

}  // namespace

const std::vector<ModuleSample>& module_samples() {
  static const std::vector<ModuleSample> samples = {
      {"two layers and cross entropy", two_layers},
      {"Linear", linear_layer},
      {"LayerNorm", [] { return layer_norm_layer(true); }},
      {"LayerNorm (no bias)", [] { return layer_norm_layer(false); }},
      {"Embedding", embedding_layer},
      {"GRUCell", gru_cell},
      {"GRU (two layers; both directions; lengths)", gru_layers},
      {"LSTM (two layers; both directions; lengths)", lstm_layers},
      {"RNN (two layers; both directions; lengths)", rnn_layers},
      {"AdditiveAttention (masked)", [] { return attention_with<AdditiveAttention, 2>(17); }},
      {"AdditiveAttention (three steps at once)",
       [] {
         Rng rng(28);
         return attention_over_steps(AdditiveAttention(3, 4, 2, rng, DType::f64));
       }},
      {"DotProductAttention (masked)", [] { return attention_with<DotProductAttention>(18); }},
      {"ConcatAttention (masked)", [] { return attention_with<ConcatAttention, 2>(29); }},
      {"ScaledDotProductAttention (masked)", [] { return attention_with<ScaledDotProductAttention, 2>(30); }},
      {"LocalMonotonicAttention (masked)", [] { return attention_with<LocalMonotonicAttention, 1>(31); }},
      {"LocalPredictiveAttention (masked)", [] { return attention_with<LocalPredictiveAttention, 2, 2>(32); }},
      {"Seq2SeqAttention (additive; minimum risk)", minimum_risk},
      {"draw_attention (masked)", drawn_attention},
      {"gumbel_softmax (masked)", gumbel},
      {"PyramidalLSTM (two halvings; lengths)", pyramidal_lstm},
      {"ResidualLSTM (three layers; lengths)", residual_lstm},
      {"GNMT (loss)",
       [] {
         Rng rng(38);
         return deep_model(whole_model(GNMT(
             {.vocabulary = 6, .d_model = 2, .encoder_layers = 3, .decoder_layers = 3, .dtype = DType::f64}, rng)));
       }},
      {"ListenAttendSpell (loss)",
       [] {
         Rng rng(39);
         return deep_model(
             whole_model(ListenAttendSpell({.vocabulary = 6, .d_model = 2, .halvings = 1, .dtype = DType::f64}, rng)));
       }},
      {"Seq2SeqAttention (additive; loss)",
       [] { return attending_model({.vocabulary = 6, .d_model = 2, .dtype = DType::f64}); }},
      {"Seq2SeqAttention (dot; loss)",
       [] {
         return attending_model({.vocabulary = 6, .d_model = 2, .attention = AttentionKind::dot, .dtype = DType::f64});
       }},
      {"Seq2SeqAttention (Luong; tied output; loss)",
       [] {
         return attending_model({.vocabulary = 6,
                                 .d_model = 2,
                                 .attention = AttentionKind::concat,
                                 .order = DecoderOrder::luong,
                                 .tied_output = true,
                                 .dtype = DType::f64});
       }},
      {"Seq2SeqAttention (Luong; input feeding; local-p; two embeddings; loss)",
       [] {
         return attending_model({.vocabulary = 6,
                                 .d_model = 2,
                                 .attention = {AttentionKind::local_predictive, 2, 1},
                                 .order = DecoderOrder::luong,
                                 .input_feeding = true,
                                 .shared_embedding = false,
                                 .dtype = DType::f64});
       }},
      {"Seq2Seq (RNN; loss)",
       [] { return plain_model<RNNCell>({.vocabulary = 6, .d_model = 2, .dtype = DType::f64}); }},
      {"Seq2Seq (LSTM; two layers; reversed source; loss)",
       [] {
         return plain_model<LSTMCell>(
             {.vocabulary = 6, .d_model = 2, .layers = 2, .reverse_source = true, .dtype = DType::f64});
       }},
      {"Seq2Seq (GRU; context at every step; loss)",
       [] {
         return plain_model<GRUCell>(
             {.vocabulary = 6, .d_model = 2, .context = FixedContext::every_step, .dtype = DType::f64});
       }},
      {"TranslationStudy (attention; loss)", [] { return study_model(StudyContext::scaled_dot); }},
      {"TranslationStudy (mean; loss)", [] { return study_model(StudyContext::mean); }},
      {"TranslationStudy (none; loss)", [] { return study_model(StudyContext::none); }},
      {"MultiHeadAttention (self; causal; masked)", [] { return multi_head(false); }},
      {"MultiHeadAttention (cross; masked)", [] { return multi_head(true); }},
      {"FeedForward", feed_forward_layer},
      {"MixtureOfExperts (masked; output and balance)", mixture},
      {"Transformer (pre-norm; loss)", [] { return transformer(NormPlace::pre, 0); }},
      {"Transformer (post-norm; loss)", [] { return transformer(NormPlace::post, 0); }},
      {"Transformer (mixtures of experts; loss and balance)", [] { return transformer(NormPlace::pre, 3); }},
  };
  return samples;
}

}  // namespace tapedeck::samples
