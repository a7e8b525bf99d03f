#include <tapedeck/nn/pyramidal_lstm.h>
#include <tapedeck/ops/ops.h>

namespace tapedeck {

PyramidalLSTM::PyramidalLSTM(int64_t input, int64_t hidden, Rng& rng, const PyramidalLSTMOptions& o)
    : dropout(o.dropout) {
  if (o.halvings < 1) fail("pyramidal lstm: expected halvings >= 1, got {}", o.halvings);
  if (!(dropout >= 0 && dropout <= 1)) fail("pyramidal lstm: expected 0 <= dropout <= 1, got {}", dropout);
  for (int64_t k = 0; k <= o.halvings; ++k) {
    layers.emplace_back(
        k == 0 ? input : 4 * hidden, hidden, rng,
        LSTMOptions{.bidirectional = true, .bias = o.bias, .forget_bias = o.forget_bias, .dtype = o.dtype});
  }
}

PyramidalLSTM::Result PyramidalLSTM::operator()(Operand x, std::span<const int64_t> lengths, Rng* rng) const {
  UserSite here(x);
  Result result{x.var(), {lengths.begin(), lengths.end()}, {}};
  for (size_t k = 0; k < layers.size(); ++k) {
    Scope scope("layer", static_cast<int64_t>(k));
    if (k > 0) {
      result.output = join_pairs(tapedeck::dropout(result.output, dropout, rng));
      for (int64_t& n : result.lengths) n = (n + 1) / 2;
    }
    LSTM::Result read = layers[k](result.output, result.lengths);
    result.output = read.output;
    result.final_state = read.final_state;
  }
  return result;
}

Var join_pairs(Operand x) {
  UserSite here(x);
  if (x.rank() != 3) fail("join_pairs: expected x (B, T, D), got {}", x.shape());
  const int64_t B = x.size(0), T = x.size(1), D = x.size(2);
  return reshape(T % 2 == 0 ? x.var() : pad(x, 1, 0, 1), {B, (T + 1) / 2, 2 * D});
}

}  // namespace tapedeck
