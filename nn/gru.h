// Gated recurrent units (Cho et al. 2014), in PyTorch's variant: the reset gate acts after the matrix product, so there
// are two biases for the candidate.
//
//   r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)        B batch, T time, I input size, H hidden size
//   z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)        gates are stacked in the order r, z, n
//   n = tanh(W_in x + b_in + r * (W_hn h + b_hn))
//   h' = (1 - z) * n + z * h
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/core/tape.h>
#include <tapedeck/nn/module.h>

#include <vector>

namespace tapedeck {

struct GRUCellOptions {
  bool bias = true;
  DType dtype = DType::f32;
};

// One step: x (B, I), h (B, H) -> h' (B, H). All parameters start as U(-1/sqrt(H), 1/sqrt(H)).
struct GRUCell {
  Parameter weight_ih, weight_hh;  // (3H, I), (3H, H)
  Parameter bias_ih, bias_hh;      // (3H); absent with .bias = false

  GRUCell(int64_t input, int64_t hidden, Rng& rng, GRUCellOptions options = {});
  Var operator()(Operand x, Operand h) const;

  Var input_gates(Operand x) const;                // W_i x + b_i: (..., I) -> (..., 3H); independent of the state
  Var step(Operand input_gates, Operand h) const;  // the rest: (B, 3H), (B, H) -> (B, H)
  int64_t input_size() const { return weight_ih.shape()[1]; }
  int64_t hidden_size() const { return weight_hh.shape()[1]; }

  static void fields(auto& self, auto&& f) {
    f("weight_ih", self.weight_ih), f("weight_hh", self.weight_hh), f("bias_ih", self.bias_ih),
        f("bias_hh", self.bias_hh);
  }
};

struct GRUOptions {
  int64_t layers = 1;
  bool bidirectional = false;
  bool bias = true;
  DType dtype = DType::f32;
};

// A GRU over whole sequences, with any number of layers, in one direction or both. Layer k > 0 reads the outputs of
// layer k - 1; a bidirectional one reads [forward; backward].
//
// Rows have their own lengths, in any order. Nothing after a row's length matters, whatever stands there: the backward
// direction starts at the last valid step, outputs at pads are 0, final states are each row's own.
struct GRU {
  std::vector<GRUCell> cells;  // layer 0 forward, layer 0 backward, layer 1 forward, ...
  bool bidirectional;

  struct Result {
    Var output;       // (B, T, D H), D = 2 if bidirectional: [forward; backward] of the last layer
    Var final_state;  // (layers D, B, H), in the order of the cells: after the last valid step, or (backward) the first
  };

  GRU(int64_t input, int64_t hidden, Rng& rng, GRUOptions options = {});

  // x (B, T, I); lengths: B numbers in 1..T; h0 (layers D, B, H), or zeros. Throws on anything else, naming the row.
  Result operator()(Operand x, std::span<const int64_t> lengths, Operand h0) const;
  Result operator()(Operand x, std::span<const int64_t> lengths) const;
  Result operator()(Operand x) const;  // all rows have T steps

  // PyTorch's names: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ...
  static void fields(auto& self, auto&& f) {
    for (size_t k = 0; k < self.cells.size(); ++k) {
      auto& cell = self.cells[k];
      const size_t directions = self.bidirectional ? 2 : 1;
      std::string suffix = "_l" + std::to_string(k / directions) + (k % directions == 1 ? "_reverse" : "");
      f("weight_ih" + suffix, cell.weight_ih), f("weight_hh" + suffix, cell.weight_hh);
      f("bias_ih" + suffix, cell.bias_ih), f("bias_hh" + suffix, cell.bias_hh);
    }
  }
};

}  // namespace tapedeck
