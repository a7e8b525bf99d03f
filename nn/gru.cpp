#include <tapedeck/nn/gru.h>
#include <tapedeck/nn/init.h>
#include <tapedeck/ops/ops.h>

namespace tapedeck {

GRUCell::GRUCell(int64_t input, int64_t hidden, Rng& rng, GRUCellOptions options) {
  weight_ih = rnn_init({3 * hidden, input}, hidden, options.dtype, rng);
  weight_hh = rnn_init({3 * hidden, hidden}, hidden, options.dtype, rng);
  if (options.bias) {
    bias_ih = rnn_init({3 * hidden}, hidden, options.dtype, rng);
    bias_hh = rnn_init({3 * hidden}, hidden, options.dtype, rng);
  }
}

Var GRUCell::operator()(Operand x, Operand h) const {
  UserSite here(x);
  if (x.rank() != 2 || x.size(1) != input_size()) {
    fail("gru cell: expected x (B, {}), got {}", input_size(), x.shape());
  }
  return step(input_gates(x), h);
}

Var GRUCell::input_gates(Operand x) const {
  return bias_ih.defined() ? linear(x, weight_ih, bias_ih) : linear(x, weight_ih);
}

Var GRUCell::step(Operand input_gates, Operand h) const {
  const int64_t H = hidden_size();
  if (h.rank() != 2 || h.size(1) != H || input_gates.shape() != Shape{h.size(0), 3 * H}) {
    fail("gru cell: expected state h (B, {}) beside input gates (B, {}), got {} and {}", H, 3 * H, h.shape(),
         input_gates.shape());
  }
  Var hidden_gates = bias_hh.defined() ? linear(h, weight_hh, bias_hh) : linear(h, weight_hh);
  Var rz = sigmoid(slice(input_gates, 1, 0, 2 * H) + slice(hidden_gates, 1, 0, 2 * H));
  Var r = slice(rz, 1, 0, H), z = slice(rz, 1, H, 2 * H);
  Var n = tanh(slice(input_gates, 1, 2 * H, 3 * H) + r * slice(hidden_gates, 1, 2 * H, 3 * H));
  return n + z * (h - n);
}

Var GRUCell::zero_state(int64_t B) const { return Tensor::zeros({B, hidden_size()}, weight_hh.dtype()); }

void GRUCell::check_initial(const Var& state, const Shape& expected) {
  if (state.shape() != expected) {
    fail("gru: expected h0 {} (layers x directions, B, H), got {}", expected, state.shape());
  }
}

}  // namespace tapedeck
