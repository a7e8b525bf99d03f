// The simple recurrent network (Elman 1990): h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu in place of tanh.
#pragma once

#include <tapedeck/nn/recurrent.h>

namespace tapedeck {

// What makes the new state out of the sum.
enum class RNNActivation { tanh, relu };

// Settings of RNNCell.
struct RNNCellOptions {
  RNNActivation activation = RNNActivation::tanh;  // of the state
  bool bias = true;                                // false: the cell has none
  DType dtype = DType::f32;                        // of the parameters
};

// Settings of RNN.
struct RNNOptions {
  int64_t layers = 1;                                                // at least 1
  bool bidirectional = false;                                        // every layer reads both ways
  double dropout = 0;                                                // between layers, in training
  RNNActivation activation = RNNActivation::tanh;                    // of the states
  bool bias = true;                                                  // false: the cells have none
  DType dtype = DType::f32;                                          // of the parameters
  RNNCellOptions cell() const { return {activation, bias, dtype}; }  // what each cell gets
};

// One step: x (B, I), h (B, H) -> h' (B, H). All parameters start as U(-1/sqrt(H), 1/sqrt(H)).
struct RNNCell {
  // For Recurrent: what is handed from step to step, the layer's settings, the name in messages.
  using State = Var;
  using LayerOptions = RNNOptions;
  static constexpr const char* name = "rnn";

  Parameter weight_ih, weight_hh;  // (H, I), (H, H)
  Parameter bias_ih, bias_hh;      // (H); absent with .bias = false
  RNNActivation activation;        // as in the options

  RNNCell(int64_t input, int64_t hidden, Rng& rng, RNNCellOptions options = {});
  Var operator()(Operand x, Operand h) const;

  Var input_gates(Operand x) const;          // W_ih x + b_ih: (..., I) -> (..., H)
  Var step(Operand gates, Operand h) const;  // (B, H), (B, H) -> (B, H)
  Var zero_state(int64_t B) const;           // B rows of zeros
  // Throws unless the state has this shape and the parameters' dtype.
  static void check_initial(const Var& state, const Shape& expected);

  // I and H.
  int64_t input_size() const { return weight_ih.shape()[1]; }
  int64_t hidden_size() const { return weight_hh.shape()[1]; }

  static void fields(auto& self, auto&& f) {
    f("weight_ih", self.weight_ih), f("weight_hh", self.weight_hh);
    f("bias_ih", self.bias_ih), f("bias_hh", self.bias_hh);
  }
};

// Layers of simple cells: see Recurrent.
using RNN = Recurrent<RNNCell>;

}  // namespace tapedeck
