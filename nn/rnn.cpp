#include <tapedeck/nn/init.h>
#include <tapedeck/nn/rnn.h>
#include <tapedeck/ops/ops.h>

namespace tapedeck {

RNNCell::RNNCell(int64_t input, int64_t hidden, Rng& rng, RNNCellOptions options) : activation(options.activation) {
  weight_ih = rnn_init({hidden, input}, hidden, options.dtype, rng);
  weight_hh = rnn_init({hidden, hidden}, hidden, options.dtype, rng);
  if (options.bias) {
    bias_ih = rnn_init({hidden}, hidden, options.dtype, rng);
    bias_hh = rnn_init({hidden}, hidden, options.dtype, rng);
  }
}

Var RNNCell::operator()(Operand x, Operand h) const {
  UserSite here(x);
  if (x.rank() != 2 || x.size(1) != input_size()) fail("rnn cell: expected x (B, {}), got {}", input_size(), x.shape());
  return step(input_gates(x), h);
}

Var RNNCell::input_gates(Operand x) const {
  return bias_ih.defined() ? linear(x, weight_ih, bias_ih) : linear(x, weight_ih);
}

Var RNNCell::step(Operand gates, Operand h) const {
  if (h.rank() != 2 || h.size(1) != hidden_size() || gates.shape() != h.shape()) {
    fail("rnn cell: expected state h (B, {}) beside input gates of that shape, got {} and {}", hidden_size(), h.shape(),
         gates.shape());
  }
  Var sum = gates + (bias_hh.defined() ? linear(h, weight_hh, bias_hh) : linear(h, weight_hh));
  return activation == RNNActivation::tanh ? tanh(sum) : relu(sum);
}

Var RNNCell::zero_state(int64_t B) const { return Tensor::zeros({B, hidden_size()}, weight_hh.dtype()); }

void RNNCell::check_initial(const Var& state, const Shape& expected) {
  if (state.shape() != expected) {
    fail("rnn: expected h0 {} (layers x directions, B, H), got {}", expected, state.shape());
  }
}

}  // namespace tapedeck
