#include <tapedeck/models/listen_attend_spell.h>
#include <tapedeck/models/stepwise.h>
#include <tapedeck/ops/dropout.h>

namespace tapedeck {

ListenAttendSpell::ListenAttendSpell(const ListenAttendSpellOptions& o, Rng& rng)
    : embed(o.vocabulary, o.d_model, rng, {.padding_idx = pad_id, .dtype = o.dtype}),
      encoder(o.d_model, o.d_model, rng, {.halvings = o.halvings, .dropout = o.dropout, .dtype = o.dtype}),
      attention(o.d_model, 2 * o.d_model, o.d_model, rng, o.dtype),
      out(3 * o.d_model, o.vocabulary, rng, {.dtype = o.dtype}),
      dropout(o.dropout) {
  if (o.decoder_layers < 1) fail("listen, attend and spell: expected decoder layers >= 1, got {}", o.decoder_layers);
  for (int64_t k = 0; k < o.decoder_layers; ++k) {
    decoder.emplace_back(k == 0 ? 3 * o.d_model : o.d_model, o.d_model, rng, LSTMCellOptions{.dtype = o.dtype});
  }
}

ListenAttendSpell::Encoded ListenAttendSpell::encode(const Tensor& source, Rng* rng) const {
  Scope scope("encoder");
  PyramidalLSTM::Result read = encoder(embed(source), row_lengths(source, pad_id), rng);
  Encoded result{attention.project(read.output, valid_positions(read.lengths, read.output.size(1))), {}};
  const int64_t B = source.size(0);
  for (const LSTMCell& cell : decoder) result.state.layers.push_back(cell.zero_state(B));
  result.state.context = Tensor::zeros({B, read.output.size(2)}, read.output.dtype());
  return result;
}

ListenAttendSpell::Advanced ListenAttendSpell::advance(const Var& x, const State& state, const Memory& memory,
                                                       Rng* rng) const {
  Advanced result;
  Var below = cat({x, state.context}, 1);
  for (size_t k = 0; k < decoder.size(); ++k) {
    Scope scope("layer", static_cast<int64_t>(k));
    if (k > 0) below = tapedeck::dropout(below, dropout, rng);
    result.state.layers.push_back(decoder[k](below, state.layers[k]));
    below = result.state.layers.back().h;
  }
  AttentionResult attended = attention(below, memory);
  result.state.context = attended.context;
  result.features = cat({below, attended.context}, 1);
  result.weights = attended.weights;
  return result;
}

SequenceOutput ListenAttendSpell::forward(const Tensor& source, const Tensor& target_in,
                                          const TrainingPass& pass) const {
  return forward_steps("listen, attend and spell", *this, source, target_in, pass);
}

Var ListenAttendSpell::loss(const Batch& batch, const TrainingPass& pass) const {
  return target_loss(forward(batch.source, batch.target_in, pass).logits, batch, pass);
}

ListenAttendSpell::State select_rows(const ListenAttendSpell::State& state, const Tensor& rows) {
  return {select_rows(state.layers, rows), index_select(state.context, 0, rows)};
}

std::unique_ptr<Decoding> ListenAttendSpell::begin(const Tensor& source) const {
  return std::make_unique<StepwiseDecoding<ListenAttendSpell>>(*this, source);
}

}  // namespace tapedeck
