#include <tapedeck/models/seq2seq.h>
#include <tapedeck/ops/ops.h>

#include <algorithm>

namespace tapedeck {
namespace {

AnyAttention make_attention(const Seq2SeqOptions& options, Rng& rng) {
  const int64_t d = options.d_model;
  if (options.attention == AttentionKind::dot) return DotProductAttention(d, 2 * d, rng, options.dtype);
  return AdditiveAttention(d, 2 * d, d, rng, options.dtype);
}

struct Advanced {
  Var state, context, weights;
};

// All of a step but the output layer, which teacher forcing runs for all steps at once.
Advanced advance(const Seq2SeqAttention& model, const Var& embedded, const Operand& state, const Memory& memory) {
  AttentionResult attended = attend(model.attention, state, memory);
  Var next = model.decoder_cell(cat({embedded, attended.context}, 1), state);
  return {next, attended.context, attended.weights};
}

}  // namespace

Seq2SeqAttention::Seq2SeqAttention(const Seq2SeqOptions& o, Rng& rng)
    : embed(o.vocabulary, o.d_model, rng, {.padding_idx = pad_id, .dtype = o.dtype}),
      encoder(o.d_model, o.d_model, rng, {.bidirectional = true, .dtype = o.dtype}),
      bridge(2 * o.d_model, o.d_model, rng, {.dtype = o.dtype}),
      attention(make_attention(o, rng)),
      decoder_cell(3 * o.d_model, o.d_model, rng, {.dtype = o.dtype}),
      out(3 * o.d_model, o.vocabulary, rng, {.dtype = o.dtype}),
      encoder_pads(o.encoder_pads) {}

Seq2SeqAttention::Encoded Seq2SeqAttention::encode(const Tensor& source) const {
  Scope scope("encoder");
  const auto lengths = row_lengths(source, pad_id);
  Var embedded = embed(source);
  GRU::Result read = encoder_pads == EncoderPads::by_length ? encoder(embedded, lengths) : encoder(embedded);
  Var both = cat({select(read.final_state, 0, 0), select(read.final_state, 0, 1)}, 1);
  Tensor valid = valid_positions(lengths, source.size(1));
  Memory memory = project(attention, read.output, valid);
  return {memory, tanh(bridge(both))};
}

Seq2SeqAttention::Step Seq2SeqAttention::decode_step(const Tensor& previous, Operand state,
                                                     const Memory& memory) const {
  UserSite here(state);
  Advanced next = advance(*this, embed(previous), state, memory);
  return {out(cat({next.state, next.context}, 1)), next.state, next.weights};
}

Seq2SeqAttention::Output Seq2SeqAttention::forward(const Tensor& source, const Tensor& target_in,
                                                   const TrainingPass& pass) const {
  check_sequences("seq2seq", source, target_in);
  const FedTokens fed(target_in, pass);
  auto [memory, state] = encode(source);
  Var embedded = embed(target_in);  // (B, T, d)
  std::vector<Var, CachingAllocator<Var>> features, weights;
  for (int64_t t = 0; t < target_in.size(1); ++t) {
    Scope scope("decoder.step", t);
    Var x = select(embedded, 1, t);
    if (t > 0 && !fed.forced()) {
      x = embed(fed.at(t, [&] {
        NoGrad pause;
        return out(features.back()).value();
      }()));
    }
    Advanced next = advance(*this, x, state, memory);
    state = next.state;
    features.push_back(cat({next.state, next.context}, 1));
    weights.push_back(next.weights);
  }
  return {out(stack(features, 1)), stack(weights, 1)};
}

Var Seq2SeqAttention::loss(const Batch& batch, const TrainingPass& pass) const {
  return target_loss(forward(batch.source, batch.target_in, pass).logits, batch, pass);
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
    Seq2SeqAttention::Step next = model_.decode_step(tokens, state_, memory_);
    state_ = next.state;
    return {next.logits.value(), next.weights.value()};
  }

  void select(const Tensor& rows) override {
    NoGrad pause;
    const bool shared = memory_.keys.value().shares_storage(memory_.values.value());
    memory_.values = index_select(memory_.values, 0, rows);
    memory_.keys = shared ? memory_.values : index_select(memory_.keys, 0, rows);
    if (memory_.mask.defined()) memory_.mask = index_select(memory_.mask, 0, rows).value();
    state_ = index_select(state_, 0, rows);
  }

 private:
  const Seq2SeqAttention& model_;
  Memory memory_;
  Var state_;
};

}  // namespace

std::unique_ptr<Decoding> Seq2SeqAttention::begin(const Tensor& source) const {
  return std::make_unique<Seq2SeqDecoding>(*this, source);
}

Decoded Seq2SeqAttention::greedy_decode(const Tensor& source, int64_t max_length) const {
  return tapedeck::greedy_decode(*begin(source), max_length);
}

}  // namespace tapedeck
