// The simple recurrent network (Elman 1990): h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu in place of tanh.
#pragma once

#include <tapedeck/nn/recurrent.h>

namespace tapedeck {

enum class RNNActivation { tanh, relu };

struct RNNCellOptions {
  RNNActivation activation = RNNActivation::tanh;
  bool bias = true;
  DType dtype = DType::f32;
};

struct RNNOptions {
  int64_t layers = 1;
  bool bidirectional = false;
  double dropout = 0;
  RNNActivation activation = RNNActivation::tanh;
  bool bias = true;
  DType dtype = DType::f32;
  RNNCellOptions cell() const { return {activation, bias, dtype}; }
};

// One step: x (B, I), h (B, H) -> h' (B, H). All parameters start as U(-1/sqrt(H), 1/sqrt(H)).
struct RNNCell {
  using State = Var;
  using LayerOptions = RNNOptions;
  static constexpr const char* name = "rnn";

  Parameter weight_ih, weight_hh;  // (H, I), (H, H)
  Parameter bias_ih, bias_hh;      // (H); absent with .bias = false
  RNNActivation activation;

  RNNCell(int64_t input, int64_t hidden, Rng& rng, RNNCellOptions options = {});
  Var operator()(Operand x, Operand h) const;

  Var input_gates(Operand x) const;          // W_ih x + b_ih: (..., I) -> (..., H)
  Var step(Operand gates, Operand h) const;  // (B, H), (B, H) -> (B, H)
  Var zero_state(int64_t B) const;
  static void check_initial(const Var& state, const Shape& expected);
  int64_t input_size() const { return weight_ih.shape()[1]; }
  int64_t hidden_size() const { return weight_hh.shape()[1]; }

  static void fields(auto& self, auto&& f) {
    f("weight_ih", self.weight_ih), f("weight_hh", self.weight_hh);
    f("bias_ih", self.bias_ih), f("bias_hh", self.bias_hh);
  }
};

using RNN = Recurrent<RNNCell>;

}  // namespace tapedeck
