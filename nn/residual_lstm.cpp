#include <tapedeck/nn/residual_lstm.h>
#include <tapedeck/ops/ops.h>

namespace tapedeck {

ResidualLSTM::ResidualLSTM(int64_t input, int64_t hidden, Rng& rng, const ResidualLSTMOptions& o) : dropout(o.dropout) {
  if (o.layers < 2) fail("residual lstm: expected layers >= 2, got {}", o.layers);
  if (!(dropout >= 0 && dropout <= 1)) fail("residual lstm: expected 0 <= dropout <= 1, got {}", dropout);
  for (int64_t k = 0; k < o.layers; ++k) {
    layers.emplace_back(
        k == 0   ? input
        : k == 1 ? 2 * hidden
                 : hidden,
        hidden, rng,
        LSTMOptions{.bidirectional = k == 0, .bias = o.bias, .forget_bias = o.forget_bias, .dtype = o.dtype});
  }
}

ResidualLSTM::Result ResidualLSTM::operator()(Operand x, std::span<const int64_t> lengths, Rng* rng) const {
  UserSite here(x);
  Result result{x.var(), {}};
  for (size_t k = 0; k < layers.size(); ++k) {
    Scope scope("layer", static_cast<int64_t>(k));
    LSTM::Result read = layers[k](k == 0 ? result.output : tapedeck::dropout(result.output, dropout, rng), lengths);
    result.output = k >= first_residual_layer ? read.output + result.output : read.output;
    result.final_states.push_back(read.final_state);
  }
  return result;
}

}  // namespace tapedeck
