#include <tapedeck/nn/gru.h>
#include <tapedeck/nn/init.h>
#include <tapedeck/ops/fused/gru.h>
#include <tapedeck/ops/ops.h>

#include <array>

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

Var gru_update(const Var& input_gates, const Var& hidden_gates, const Var& h) {
  const int64_t H = h.size(1);
  Var rz = sigmoid(slice(input_gates, 1, 0, 2 * H) + slice(hidden_gates, 1, 0, 2 * H));
  Var r = slice(rz, 1, 0, H), z = slice(rz, 1, H, 2 * H);
  Var n = tanh(slice(input_gates, 1, 2 * H, 3 * H) + r * slice(hidden_gates, 1, 2 * H, 3 * H));
  return n + z * (h - n);
}

namespace {

// The layer by steps. Rows that have ended (or, backwards, not begun) keep their state.
Var layer_by_steps(std::span<const Var> in, std::span<const int64_t> lengths, Direction direction) {
  const Var &x = in[0], &weight_ih = in[2], &weight_hh = in[3], &bias_ih = in[4], &bias_hh = in[5];
  const int64_t T = x.size(1);
  Var state = in[1], gates = linear(x, weight_ih, bias_ih);
  Tensor past = past_end(lengths, T);  // (B, T, 1)
  CachedVector<Var> states(static_cast<size_t>(T));
  for (int64_t i = 0; i < T; ++i) {
    const bool backward = direction == Direction::backward;
    const int64_t t = backward ? T - 1 - i : i;
    Scope scope(backward ? "backward" : "forward", t);
    Var next = gru_update(select(gates, 1, t), linear(state, weight_hh, bias_hh), state);
    state = keep_state(past.select(1, t), state, next);
    states[static_cast<size_t>(t)] = state;
  }
  return masked_fill(stack(states, 1), past, 0);
}

}  // namespace

Var GRUCell::step(Operand input_gates, Operand h) const {
  const int64_t H = hidden_size();
  if (h.rank() != 2 || h.size(1) != H || input_gates.shape() != Shape{h.size(0), 3 * H}) {
    fail("gru cell: expected state h (B, {}) beside input gates (B, {}), got {} and {}", H, 3 * H, h.shape(),
         input_gates.shape());
  }
  const Var hidden_gates = bias_hh.defined() ? linear(h, weight_hh, bias_hh) : linear(h, weight_hh);
  return gru_update(input_gates.var(), hidden_gates, h.var());
}

Var GRUCell::layer(Operand x, Operand h, std::span<const int64_t> lengths, Direction direction) const {
  const Var no_bias = bias_ih.defined() ? Var() : Var(Tensor::zeros({3 * hidden_size()}, weight_ih.dtype()));
  const Operand b_ih = bias_ih.defined() ? Operand(bias_ih) : Operand(no_bias);
  const Operand b_hh = bias_hh.defined() ? Operand(bias_hh) : Operand(no_bias);
  const Operand w_ih = weight_ih, w_hh = weight_hh;
  fused::Packed packed(lengths, x.size(1));
  const fused::TimeOrder order =
      direction == Direction::backward ? fused::TimeOrder::backward : fused::TimeOrder::forward;
  const std::array<Tensor, 6> in{x.value(), h.value(), w_ih.value(), w_hh.value(), b_ih.value(), b_hh.value()};
  FusedValue value = fused::gru_forward(in, packed, order);
  return record_fused(
      "gru", {x, h, w_ih, w_hh, b_ih, b_hh}, std::move(value),
      [packed = std::move(packed), order](const FusedPass& pass) { return fused::gru_backward(pass, packed, order); },
      [all = CachedVector<int64_t>(lengths.begin(), lengths.end()), direction](std::span<const Var> in) {
        return layer_by_steps(in, all, direction);
      });
}

Var GRUCell::zero_state(int64_t B) const { return Tensor::zeros({B, hidden_size()}, weight_hh.dtype()); }

void GRUCell::check_initial(const Var& state, const Shape& expected) {
  if (state.shape() != expected) {
    fail("gru: expected h0 {} (layers x directions, B, H), got {}", expected, state.shape());
  }
}

}  // namespace tapedeck
