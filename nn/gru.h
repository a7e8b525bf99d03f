// Gated recurrent units (Cho et al. 2014), in PyTorch's variant: the reset gate acts after the matrix product, so there
// are two biases for the candidate.
//
//   r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)        B batch, T time, I input size, H hidden size
//   z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)        gates are stacked in the order r, z, n
//   n = tanh(W_in x + b_in + r * (W_hn h + b_hn))
//   h' = (1 - z) * n + z * h
#pragma once

#include <tapedeck/nn/recurrent.h>

namespace tapedeck {

// Settings of GRUCell.
struct GRUCellOptions {
  bool bias = true;          // false: the cell has none
  DType dtype = DType::f32;  // of the parameters
};

// Settings of GRU.
struct GRUOptions {
  int64_t layers = 1;                                    // at least 1
  bool bidirectional = false;                            // every layer reads both ways
  double dropout = 0;                                    // between layers, in training
  bool bias = true;                                      // false: the cells have none
  DType dtype = DType::f32;                              // of the parameters
  GRUCellOptions cell() const { return {bias, dtype}; }  // what each cell gets
};

// What follows the products: input gates W_i x + b_i and hidden gates W_h h + b_h, (B, 3H), and h (B, H) -> h' (B, H).
Var gru_update(const Var& input_gates, const Var& hidden_gates, const Var& h);

// One step: x (B, I), h (B, H) -> h' (B, H). All parameters start as U(-1/sqrt(H), 1/sqrt(H)).
struct GRUCell {
  // For Recurrent: what is handed from step to step, the layer's settings, the name in messages.
  using State = Var;
  using LayerOptions = GRUOptions;
  static constexpr const char* name = "gru";

  Parameter weight_ih, weight_hh;  // (3H, I), (3H, H)
  Parameter bias_ih, bias_hh;      // (3H); absent with .bias = false

  GRUCell(int64_t input, int64_t hidden, Rng& rng, GRUCellOptions options = {});
  Var operator()(Operand x, Operand h) const;

  Var input_gates(Operand x) const;                // W_i x + b_i: (..., I) -> (..., 3H); independent of the state
  Var step(Operand input_gates, Operand h) const;  // the rest: (B, 3H), (B, H) -> (B, H)
  // All steps in one direction, as one op: x (B, T, I), h (B, H), lengths in 1..T -> states (B, T, H), 0 past a row's
  // length. Equal to step() in a loop, which is its definition.
  Var layer(Operand x, Operand h, std::span<const int64_t> lengths, Direction direction) const;
  Var zero_state(int64_t B) const;  // B rows of zeros
  // Throws unless the state has this shape and the parameters' dtype.
  static void check_initial(const Var& state, const Shape& expected);

  // I and H.
  int64_t input_size() const { return weight_ih.shape()[1]; }
  int64_t hidden_size() const { return weight_hh.shape()[1]; }

  static void fields(auto& self, auto&& f) {
    f("weight_ih", self.weight_ih), f("weight_hh", self.weight_hh), f("bias_ih", self.bias_ih),
        f("bias_hh", self.bias_hh);
  }
};

// Layers of GRU cells: see Recurrent.
using GRU = Recurrent<GRUCell>;

}  // namespace tapedeck
