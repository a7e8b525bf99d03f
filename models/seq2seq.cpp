#include <tapedeck/models/seq2seq.h>
#include <tapedeck/nn/attention_decoder.h>
#include <tapedeck/ops/ops.h>

#include <cmath>

namespace tapedeck {
namespace {

// The encoder's size; throws on options that do not go together.
int64_t checked_encoder_size(const Seq2SeqOptions& o) {
  if (o.encoder_size < 0) fail("seq2seq: expected encoder size >= 0, got {}", o.encoder_size);
  const int64_t d = o.d_model, h = o.encoder_size == 0 ? d : o.encoder_size;
  const bool luong = o.order == DecoderOrder::luong;
  if (o.input_feeding && !luong) {
    fail("seq2seq: input feeding belongs to luong order; bahdanau order feeds the context anyway");
  }
  if (o.tied_output && !luong) {
    fail(
        "seq2seq: a tied output layer must read {} features, as many as the embedding has; in bahdanau order it reads "
        "{} (state and context); use DecoderOrder::luong",
        d, d + 2 * h);
  }
  if (!(o.dropout >= 0 && o.dropout <= 1)) fail("seq2seq: expected 0 <= dropout <= 1, got {}", o.dropout);
  return h;
}

int64_t target_vocabulary(const Seq2SeqOptions& o) {
  return checked_target_vocabulary("seq2seq", o.vocabulary, o.target_vocabulary, o.shared_embedding);
}

std::optional<Embedding> separate_embedding(const Seq2SeqOptions& o, Rng& rng) {
  if (o.shared_embedding) return std::nullopt;
  return Embedding(target_vocabulary(o), o.d_model, rng, {.padding_idx = pad_id, .dtype = o.dtype});
}

// a_t = tanh(W_c [context; s_t])
Var attentional_vector(const Seq2SeqAttention& model, const Var& context, const Var& state) {
  return tanh((*model.W_c)(cat({context, state}, -1)));
}

struct Advanced {
  Var state, features, weights;  // features: what the output layer reads
};

// All of a step but the output layer, which teacher forcing runs for all steps at once.
Advanced advance(const Seq2SeqAttention& model, const Var& embedded, const Var& state, const Memory& memory, int64_t t,
                 const Var& attentional) {
  if (model.order == DecoderOrder::bahdanau) {
    auto [context, weights] = attend(model.attention, state, memory, t);
    Var next = model.decoder_cell(cat({embedded, context}, 1), state);
    return {next, cat({next, context}, 1), weights};
  }
  Var x = embedded;
  if (model.input_feeding) {
    x = cat({x, attentional.defined() ? attentional : Var(Tensor::zeros(embedded.shape(), embedded.dtype()))}, 1);
  }
  Var next = model.decoder_cell(x, state);
  auto [context, weights] = attend(model.attention, next, memory, t);
  return {next, attentional_vector(model, context, next), weights};
}

// Without input feeding no step of luong order needs the attention of another: all attend at once.
struct Attended {
  Var features, weights;  // (B, T, d), (B, T, S)
};
Attended luong_steps(const Seq2SeqAttention& model, const Var& embedded, Var state, const Memory& memory) {
  Var gates = model.decoder_cell.input_gates(embedded);
  CachedVector<Var> states;
  for (int64_t t = 0; t < embedded.size(1); ++t) {
    Scope scope("decoder.step", t);
    state = model.decoder_cell.step(select(gates, 1, t), state);
    states.push_back(state);
  }
  Var all = stack(states, 1);
  auto [context, weights] = attend(model.attention, all, memory);
  return {attentional_vector(model, context, all), weights};
}

// All steps of bahdanau order under teacher forcing, as one op; 0 past a row's length. Nothing for an attention that
// the op does not know.
std::optional<Attended> bahdanau_steps(const Seq2SeqAttention& model, const Var& embedded, const Var& state,
                                       const Memory& memory, std::span<const int64_t> lengths) {
  Var W_q, v = Tensor::empty({0}, embedded.dtype());
  if (const auto* additive = std::get_if<AdditiveAttention>(&model.attention)) {
    W_q = additive->W_q.weight, v = additive->v.weight;
  } else if (const auto* dot = std::get_if<DotProductAttention>(&model.attention)) {
    W_q = dot->W.weight;
  } else {
    return std::nullopt;
  }
  const GRUCell& cell = model.decoder_cell;
  const int64_t d = cell.hidden_size(), K = memory.values.size(2), S = memory.values.size(1);
  const Var weight_ih = cell.weight_ih, weight_hh = cell.weight_hh, bias_hh = cell.bias_hh;
  Var gates = linear(embedded, slice(weight_ih, 1, 0, d), cell.bias_ih), W_c = slice(weight_ih, 1, d, d + K);
  Var steps = attention_decoder({gates, state, memory.keys, memory.values, W_q, v, W_c, weight_hh, bias_hh},
                                memory.mask, lengths);
  return Attended{slice(steps, 2, 0, d + K), slice(steps, 2, d + K, d + K + S)};
}

}  // namespace

Seq2SeqAttention::Seq2SeqAttention(const Seq2SeqOptions& o, Rng& rng)
    : embed(o.vocabulary, o.d_model, rng, {.padding_idx = pad_id, .dtype = o.dtype}),
      target_embed(separate_embedding(o, rng)),
      encoder(o.d_model, checked_encoder_size(o), rng, {.bidirectional = true, .dtype = o.dtype}),
      bridge(2 * encoder.hidden_size(), o.d_model, rng, {.dtype = o.dtype}),
      attention(make_attention(o.attention, o.d_model, 2 * encoder.hidden_size(), rng, o.dtype)),
      decoder_cell(o.order == DecoderOrder::bahdanau ? o.d_model + 2 * encoder.hidden_size()
                   : o.input_feeding                 ? 2 * o.d_model
                                                     : o.d_model,
                   o.d_model, rng, {.dtype = o.dtype}),
      W_c(o.order == DecoderOrder::bahdanau ? std::nullopt
                                            : std::optional(Linear(2 * encoder.hidden_size() + o.d_model, o.d_model,
                                                                   rng, {.bias = false, .dtype = o.dtype}))),
      out(o.order == DecoderOrder::bahdanau ? o.d_model + 2 * encoder.hidden_size() : o.d_model, target_vocabulary(o),
          rng, {.dtype = o.dtype}),
      encoder_pads(o.encoder_pads),
      order(o.order),
      input_feeding(o.input_feeding),
      dropout(o.dropout) {
  if (o.tied_output) {
    out.weight = target_embedding().weight;
    out.weight.mutable_value().mul_(1 / std::sqrt(static_cast<double>(o.d_model)));
  }
}

Seq2SeqAttention::Encoded Seq2SeqAttention::encode(const Tensor& source, Rng* rng) const {
  Scope scope("encoder");
  const auto lengths = row_lengths(source, pad_id);
  Var embedded = tapedeck::dropout(embed(source), dropout, rng);
  GRU::Result read = encoder_pads == EncoderPads::by_length ? encoder(embedded, lengths) : encoder(embedded);
  Var both = cat({select(read.final_state, 0, 0), select(read.final_state, 0, 1)}, 1);
  Tensor valid = valid_positions(lengths, source.size(1));
  Memory memory = project(attention, read.output, valid);
  return {memory, tanh(bridge(both))};
}

Seq2SeqAttention::Step Seq2SeqAttention::decode_step(const Tensor& previous, Operand state, const Memory& memory,
                                                     int64_t t, const Var& attentional) const {
  UserSite here(state);
  Advanced next = advance(*this, target_embedding()(previous), state, memory, t, attentional);
  return {out(next.features), next.state, next.weights, order == DecoderOrder::luong ? next.features : Var()};
}

namespace {

// What the output layer reads, (B, T, n), after dropout, and the weights. What is past a row's length is not looked at
// by whoever calls: it may be anything.
Attended all_steps(const Seq2SeqAttention& model, const Tensor& source, const Tensor& target_in,
                   const TrainingPass& pass, std::span<const int64_t> lengths) {
  check_sequences("seq2seq", source, target_in);
  const int64_t B = target_in.size(0), T = target_in.size(1), d = model.decoder_cell.hidden_size();
  const DType dtype = model.embed.weight.dtype();
  const FedTokens fed(target_in, pass);
  const bool definitions = Tape::recording() && Tape::recording()->records_definitions();  // layers show themselves
  auto [memory, state] = model.encode(source, pass.dropout);
  const StepDropout drop_embedded({B, T, d}, model.dropout, pass.dropout, dtype);
  const StepDropout drop_features({B, T, model.out.weight.shape()[1]}, model.dropout, pass.dropout, dtype);
  Var embedded = drop_embedded(model.target_embedding()(target_in));
  std::optional<Attended> at_once;
  if (fed.forced() && model.order == DecoderOrder::luong && !model.input_feeding) {
    at_once = luong_steps(model, embedded, state, memory);
  } else if (fed.forced() && model.order == DecoderOrder::bahdanau && !definitions) {
    at_once = bahdanau_steps(model, embedded, state, memory, lengths);
  }
  if (at_once) return {drop_features(at_once->features), at_once->weights};

  CachedVector<Var> features, weights;
  for (int64_t t = 0; t < T; ++t) {
    Scope scope("decoder.step", t);
    Var x = select(embedded, 1, t), attentional;
    if (t > 0) attentional = features.back();  // read in luong order only
    if (t > 0 && !fed.forced()) {
      Tensor own = fed.at(t, [&] { return model.out(drop_features(features.back(), t - 1)); });
      x = drop_embedded(model.target_embedding()(own), t);
    }
    Advanced next = advance(model, x, state, memory, t, attentional);
    state = next.state;
    features.push_back(next.features);
    weights.push_back(next.weights);
  }
  return {drop_features(stack(features, 1)), stack(weights, 1)};
}

}  // namespace

Seq2SeqAttention::Output Seq2SeqAttention::forward(const Tensor& source, const Tensor& target_in,
                                                   const TrainingPass& pass) const {
  check_sequences("seq2seq", source, target_in);
  const CachedVector<int64_t> whole(static_cast<size_t>(target_in.size(0)), target_in.size(1));
  auto [features, weights] = all_steps(*this, source, target_in, pass, whole);
  return {out(features), weights};
}

Var Seq2SeqAttention::loss(const Batch& batch, const TrainingPass& pass) const {
  const TargetPlaces targets(batch);
  auto [features, weights] = all_steps(*this, batch.source, batch.target_in, pass, targets.lengths());
  return targets.loss(features, out, pass);
}

namespace {

class Seq2SeqDecoding final : public Decoding {
 public:
  Seq2SeqDecoding(const Seq2SeqAttention& model, const Tensor& source) : model_(model) {
    NoGrad pause;
    auto [memory, state] = model.encode(source);
    memory_ = memory;
    state_ = state;
  }

  int64_t rows() const override { return state_.size(0); }

  Step step(const Tensor& tokens) override {
    NoGrad pause;
    Seq2SeqAttention::Step next = model_.decode_step(tokens, state_, memory_, t_++, attentional_);
    state_ = next.state;
    attentional_ = next.attentional;
    return {next.logits.value(), next.weights.value(), memory_.mask};
  }

  void select(const Tensor& rows) override {
    NoGrad pause;
    memory_ = select_rows(memory_, rows);
    state_ = index_select(state_, 0, rows);
    if (attentional_.defined()) attentional_ = index_select(attentional_, 0, rows);
  }

 private:
  const Seq2SeqAttention& model_;
  Memory memory_;
  Var state_, attentional_;
  int64_t t_ = 0;
};

}  // namespace

std::unique_ptr<Decoding> Seq2SeqAttention::begin(const Tensor& source) const {
  return std::make_unique<Seq2SeqDecoding>(*this, source);
}

Decoded Seq2SeqAttention::greedy_decode(const Tensor& source, int64_t max_length) const {
  return tapedeck::greedy_decode(*begin(source), max_length);
}

}  // namespace tapedeck
