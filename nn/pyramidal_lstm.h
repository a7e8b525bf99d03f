// The pyramidal LSTM: bidirectional layers, each of which reads its input in pairs of steps and so halves the time axis
// (the listener of Chan et al. 2015, arXiv:1508.01211). What attends to 2^n times fewer positions is that much cheaper.
//
// B batch, T time, I input size, H hidden size of each direction.
#pragma once

#include <tapedeck/nn/lstm.h>

namespace tapedeck {

// Settings of PyramidalLSTM.
struct PyramidalLSTMOptions {
  int64_t halvings = 2;                              // layers that halve, >= 1
  double dropout = 0;                                // between layers, in training
  bool bias = true;                                  // false: the cells have none
  std::optional<double> forget_bias = std::nullopt;  // see LSTMCellOptions
  DType dtype = DType::f32;                          // of the parameters
};

// Layer 0 reads x as it is, layer k > 0 the pairs [y_0; y_1], [y_2; y_3], ... of the layer below. The second half of a
// pair is zero where the row has ended, so pads change nothing and a row alone equals the row in any batch.
struct PyramidalLSTM {
  std::vector<LSTM> layers;  // each of one layer in both directions: I -> 2H, then 4H -> 2H
  double dropout;            // between layers, in training

  // What a call gives.
  struct Result {
    Var output;                     // (B, ceil(T / 2^halvings), 2H): [forward; backward]; 0 at pads
    CachedVector<int64_t> lengths;  // ceil(length / 2^halvings) of each row
    LSTMState final_state;          // of the last layer, (2, B, H): forward, backward
  };

  PyramidalLSTM(int64_t input, int64_t hidden, Rng& rng, const PyramidalLSTMOptions& options = {});
  // x (B, T, I); lengths: B numbers in 1..T; `rng` drops outputs between layers, null means evaluation.
  Result operator()(Operand x, std::span<const int64_t> lengths, Rng* rng = nullptr) const;

  static void fields(auto& self, auto&& f) { f("layers", self.layers); }
};

// (B, T, D) -> (B, ceil(T / 2), 2D): step i is [x_2i; x_2i+1], with zeros for a step that is missing at the end.
Var join_pairs(Operand x);

}  // namespace tapedeck
