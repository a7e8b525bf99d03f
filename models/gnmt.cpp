#include <tapedeck/models/gnmt.h>
#include <tapedeck/models/stepwise.h>
#include <tapedeck/ops/dropout.h>

namespace tapedeck {

GNMT::GNMT(const GNMTOptions& o, Rng& rng)
    : embed(o.vocabulary, o.d_model, rng, {.padding_idx = pad_id, .dtype = o.dtype}),
      encoder(o.d_model, o.d_model, rng, {.layers = o.encoder_layers, .dropout = o.dropout, .dtype = o.dtype}),
      attention(o.d_model, o.d_model, o.d_model, rng, o.dtype),
      out(o.d_model, o.vocabulary, rng, {.dtype = o.dtype}),
      dropout(o.dropout) {
  if (o.decoder_layers < 1) fail("gnmt: expected decoder layers >= 1, got {}", o.decoder_layers);
  for (int64_t k = 0; k < o.decoder_layers; ++k) {
    decoder.emplace_back(2 * o.d_model, o.d_model, rng, LSTMCellOptions{.dtype = o.dtype});
  }
}

GNMT::Encoded GNMT::encode(const Tensor& source, Rng* rng) const {
  Scope scope("encoder");
  const auto lengths = row_lengths(source, pad_id);
  ResidualLSTM::Result read = encoder(embed(source), lengths, rng);
  Encoded result{attention.project(read.output, valid_positions(lengths, source.size(1))), {}};
  for (const LSTMCell& cell : decoder) result.state.push_back(cell.zero_state(source.size(0)));
  return result;
}

GNMT::Advanced GNMT::advance(const Var& x, const State& state, const Memory& memory, Rng* rng) const {
  AttentionResult attended = attention(state[0].h, memory);
  Advanced result{{}, x, attended.weights};
  for (size_t k = 0; k < decoder.size(); ++k) {
    Scope scope("layer", static_cast<int64_t>(k));
    Var below = k == 0 ? x : tapedeck::dropout(result.features, dropout, rng);
    result.state.push_back(decoder[k](cat({below, attended.context}, 1), state[k]));
    const Var& h = result.state.back().h;
    result.features = k >= first_residual_layer ? h + result.features : h;
  }
  return result;
}

SequenceOutput GNMT::forward(const Tensor& source, const Tensor& target_in, const TrainingPass& pass) const {
  return forward_steps("gnmt", *this, source, target_in, pass);
}

Var GNMT::loss(const Batch& batch, const TrainingPass& pass) const {
  return target_loss(forward(batch.source, batch.target_in, pass).logits, batch, pass);
}

std::unique_ptr<Decoding> GNMT::begin(const Tensor& source) const {
  return std::make_unique<StepwiseDecoding<GNMT>>(*this, source);
}

}  // namespace tapedeck
