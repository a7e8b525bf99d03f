#include <tapedeck/nn/init.h>
#include <tapedeck/nn/lstm.h>
#include <tapedeck/ops/ops.h>

namespace tapedeck {

LSTMCell::LSTMCell(int64_t input, int64_t hidden, Rng& rng, LSTMCellOptions options) {
  if (options.forget_bias && !options.bias) fail("lstm: a forget bias of {} needs .bias = true", *options.forget_bias);
  weight_ih = rnn_init({4 * hidden, input}, hidden, options.dtype, rng);
  weight_hh = rnn_init({4 * hidden, hidden}, hidden, options.dtype, rng);
  if (options.bias) {
    bias_ih = rnn_init({4 * hidden}, hidden, options.dtype, rng);
    bias_hh = rnn_init({4 * hidden}, hidden, options.dtype, rng);
  }
  if (options.forget_bias) {  // the second quarter
    bias_ih.mutable_value().slice(0, hidden, 2 * hidden).fill_(*options.forget_bias);
    bias_hh.mutable_value().slice(0, hidden, 2 * hidden).fill_(0);
  }
}

LSTMState LSTMCell::operator()(Operand x, const LSTMState& state) const {
  UserSite here(x);
  if (x.rank() != 2 || x.size(1) != input_size())
    fail("lstm cell: expected x (B, {}), got {}", input_size(), x.shape());
  return step(input_gates(x), state);
}

Var LSTMCell::input_gates(Operand x) const {
  return bias_ih.defined() ? linear(x, weight_ih, bias_ih) : linear(x, weight_ih);
}

LSTMState LSTMCell::step(Operand gates, const LSTMState& state) const {
  const int64_t H = hidden_size();
  const auto& [h, c] = state;
  if (h.rank() != 2 || h.size(1) != H || c.shape() != h.shape() || gates.shape() != Shape{h.size(0), 4 * H}) {
    fail("lstm cell: expected states h and c (B, {}) beside input gates (B, {}), got {}, {} and {}", H, 4 * H,
         h.shape(), c.shape(), gates.shape());
  }
  Var all = gates + (bias_hh.defined() ? linear(h, weight_hh, bias_hh) : linear(h, weight_hh));
  Var i_f = sigmoid(slice(all, 1, 0, 2 * H)), g = tanh(slice(all, 1, 2 * H, 3 * H)),
      o = sigmoid(slice(all, 1, 3 * H, 4 * H));
  Var next = slice(i_f, 1, H, 2 * H) * c + slice(i_f, 1, 0, H) * g;
  return {o * tanh(next), next};
}

LSTMState LSTMCell::zero_state(int64_t B) const {
  Tensor zeros = Tensor::zeros({B, hidden_size()}, weight_hh.dtype());
  return {zeros, zeros};
}

void LSTMCell::check_initial(const LSTMState& state, const Shape& expected) {
  if (state.h.shape() != expected || state.c.shape() != expected) {
    fail("lstm: expected h0 and c0 {} (layers x directions, B, H), got {} and {}", expected, state.h.shape(),
         state.c.shape());
  }
}

LSTMState select_state(const LSTMState& states, int64_t k) { return {select(states.h, 0, k), select(states.c, 0, k)}; }

LSTMState stack_states(std::span<const LSTMState> states) {
  CachedVector<Var> h, c;
  for (const LSTMState& state : states) h.push_back(state.h), c.push_back(state.c);
  return {stack(h, 0), stack(c, 0)};
}

LSTMState keep_state(const Tensor& kept, const LSTMState& old_state, const LSTMState& new_state) {
  return {where(kept, old_state.h, new_state.h), where(kept, old_state.c, new_state.c)};
}

}  // namespace tapedeck
