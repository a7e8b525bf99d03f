// A deep LSTM with residual connections, whose first layer reads in both directions: GNMT's encoder (Wu et al. 2016,
// arXiv:1609.08144).
//
//   y_0 = [forward; backward] of x,   y_1 = LSTM(y_0),   y_k = LSTM(y_k-1) + y_k-1 for k >= 2
//
// B batch, T time, I input size, H hidden size.
#pragma once

#include <tapedeck/nn/lstm.h>

namespace tapedeck {

// Settings of ResidualLSTM.
struct ResidualLSTMOptions {
  int64_t layers = 4;  // >= 2
  double dropout = 0;  // of what layers after the first read, in training; the residual path is left alone
  bool bias = true;    // false: the cells have none
  std::optional<double> forget_bias = std::nullopt;  // see LSTMCellOptions
  DType dtype = DType::f32;                          // of the parameters
};

// The layers; see above.
struct ResidualLSTM {
  std::vector<LSTM> layers;  // I -> 2H in both directions, 2H -> H, then H -> H
  double dropout;            // see ResidualLSTMOptions

  // What a call gives.
  struct Result {
    Var output;                            // (B, T, H) of the last layer; 0 at pads
    CachedVector<LSTMState> final_states;  // one a layer: (2, B, H) of the first, (1, B, H) of the others
  };

  ResidualLSTM(int64_t input, int64_t hidden, Rng& rng, const ResidualLSTMOptions& options = {});
  // x (B, T, I); lengths: B numbers in 1..T; pads change nothing. `rng` drops, null means evaluation.
  Result operator()(Operand x, std::span<const int64_t> lengths, Rng* rng = nullptr) const;

  static void fields(auto& self, auto&& f) { f("layers", self.layers); }
};

// The first layer, counted from 0, to whose output its input is added: in encoders and decoders alike.
inline constexpr size_t first_residual_layer = 2;

}  // namespace tapedeck
