// Long short-term memory (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000). Gates are stacked in PyTorch's
// order i, f, g, o:
//
//   i = sigmoid(W_ii x + b_ii + W_hi h + b_hi)      f, o alike
//   g = tanh(W_ig x + b_ig + W_hg h + b_hg)
//   c' = f * c + i * g
//   h' = o * tanh(c')
#pragma once

#include <tapedeck/nn/recurrent.h>

#include <optional>

namespace tapedeck {

// Output and cell state.
struct LSTMState {
  Var h, c;  // (B, H) each
};

// Settings of LSTMCell.
struct LSTMCellOptions {
  bool bias = true;  // false: the cell has none
  // The forget gate's b_if + b_hf starts at this value (Jozefowicz et al. 2015 recommend 1); else drawn like the
  // others.
  std::optional<double> forget_bias = std::nullopt;
  DType dtype = DType::f32;  // of the parameters
};

// Settings of LSTM.
struct LSTMOptions {
  int64_t layers = 1;                                                  // at least 1
  bool bidirectional = false;                                          // every layer reads both ways
  double dropout = 0;                                                  // between layers, in training
  bool bias = true;                                                    // false: the cells have none
  std::optional<double> forget_bias = std::nullopt;                    // in every layer and direction
  DType dtype = DType::f32;                                            // of the parameters
  LSTMCellOptions cell() const { return {bias, forget_bias, dtype}; }  // what each cell gets
};

// One step: x (B, I), state (h, c) -> state. All parameters start as U(-1/sqrt(H), 1/sqrt(H)).
struct LSTMCell {
  // For Recurrent: what is handed from step to step, the layer's settings, the name in messages.
  using State = LSTMState;
  using LayerOptions = LSTMOptions;
  static constexpr const char* name = "lstm";

  Parameter weight_ih, weight_hh;  // (4H, I), (4H, H)
  Parameter bias_ih, bias_hh;      // (4H); absent with .bias = false

  // Throws on a forget bias without biases.
  LSTMCell(int64_t input, int64_t hidden, Rng& rng, LSTMCellOptions options = {});
  LSTMState operator()(Operand x, const LSTMState& state) const;

  Var input_gates(Operand x) const;                             // W_i x + b_i: (..., I) -> (..., 4H)
  LSTMState step(Operand gates, const LSTMState& state) const;  // (B, 4H)
  LSTMState zero_state(int64_t B) const;                        // B rows of zeros
  // Throws unless the state has this shape and the parameters' dtype.
  static void check_initial(const LSTMState& state, const Shape& expected);

  // I and H.
  int64_t input_size() const { return weight_ih.shape()[1]; }
  int64_t hidden_size() const { return weight_hh.shape()[1]; }

  static void fields(auto& self, auto&& f) {
    f("weight_ih", self.weight_ih), f("weight_hh", self.weight_hh);
    f("bias_ih", self.bias_ih), f("bias_hh", self.bias_hh);
  }
};

// What Recurrent asks of a state, for both parts: see recurrent.h. The output is h.
inline const Var& output_of(const LSTMState& state) { return state.h; }
LSTMState select_state(const LSTMState& states, int64_t k);
LSTMState stack_states(std::span<const LSTMState> states);
LSTMState keep_state(const Tensor& kept, const LSTMState& old_state, const LSTMState& new_state);

// Layers of LSTM cells: see Recurrent.
using LSTM = Recurrent<LSTMCell>;

}  // namespace tapedeck
