// Recurrent layers over whole sequences, for any cell (see rnn.h, lstm.h, gru.h).
//
// Any number of layers, in one direction or both. Layer k > 0 reads the outputs of layer k - 1; a bidirectional one
// reads [forward; backward]. Rows have their own lengths, in any order. Nothing after a row's length matters, whatever
// stands there: the backward direction starts at the last valid step, outputs at pads are 0, final states are each
// row's own.
//
// B batch, T time, I input size, H hidden size, D directions (1 or 2).
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/core/tape.h>
#include <tapedeck/nn/module.h>

#include <fmt/format.h>

#include <vector>

namespace tapedeck {

// A cell is a module with
//   State                          what is handed from step to step: a Var (B, H), or a struct of such
//   LayerOptions                   of Recurrent: layers, bidirectional, dropout, dtype, and cell() -> the cell's own
//   input_gates(x) -> Var          what depends on the input alone: (..., I) -> (..., gates)
//   step(gates, state) -> State    the rest of a step
//   zero_state(B) -> State         and the functions below for its State
//   layer(x, state, lengths, direction) -> outputs   may be there: all steps as one op.

// For a State that is one Var: the output of a step, one row of states, all of them in one, and the choice between old
// and new, row by row.
inline const Var& output_of(const Var& state) { return state; }
Var select_state(const Var& states, int64_t k);                                  // (K, B, H) -> (B, H)
Var stack_states(std::span<const Var> states);                                   // K of (B, H) -> (K, B, H)
Var keep_state(const Tensor& kept, const Var& old_state, const Var& new_state);  // kept: boolean (B, 1)

// (B, T, 1): true past the end of each of B rows.
Tensor past_end(std::span<const int64_t> lengths, int64_t T);

// Which way a layer reads.
enum class Direction { forward, backward };

// Layers of cells; see above.
template <class Cell>
struct Recurrent {
  // The cell's.
  using State = typename Cell::State;
  using Options = typename Cell::LayerOptions;

  std::vector<Cell> cells;  // layer 0 forward, layer 0 backward, layer 1 forward, ...
  bool bidirectional;       // every layer reads both ways
  double dropout;           // between layers, in training

  // What a call gives.
  struct Result {
    Var output;  // (B, T, D H): [forward; backward] of the last layer
    // (layers D, B, H) in the order of the cells: after the last valid step or, backward, the first.
    State final_state;
  };

  Recurrent(int64_t input, int64_t hidden, Rng& rng, Options options = {});

  // x (B, T, I); lengths: B numbers in 1..T; initial: (layers D, B, H), or zeros. `rng` drops outputs between layers
  // with probability `dropout`; null means evaluation. Throws on anything else, naming the row.
  Result operator()(Operand x, std::span<const int64_t> lengths, const State& initial, Rng* rng = nullptr) const;
  Result operator()(Operand x, std::span<const int64_t> lengths, Rng* rng = nullptr) const;
  Result operator()(Operand x, Rng* rng = nullptr) const;  // all rows have T steps

  // The state that one layer ended with, (B, H). Negative layers count from the last.
  State last(const Result& result, int64_t layer = -1, Direction direction = Direction::forward) const;

  // I and H.
  int64_t input_size() const { return cells[0].input_size(); }
  int64_t hidden_size() const { return cells[0].hidden_size(); }

  // PyTorch's names: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ...
  static void fields(auto& self, auto&& f) {
    const size_t directions = self.bidirectional ? 2 : 1;
    for (size_t k = 0; k < self.cells.size(); ++k) {
      auto named = [&](const char* name, auto& parameter) {
        fmt::memory_buffer text;
        fmt::format_to(std::back_inserter(text), "{}_l{}{}", name, k / directions, k % directions ? "_reverse" : "");
        f(std::string_view(text.data(), text.size()), parameter);
      };
      auto& cell = self.cells[k];
      named("weight_ih", cell.weight_ih), named("weight_hh", cell.weight_hh);
      named("bias_ih", cell.bias_ih), named("bias_hh", cell.bias_hh);
    }
  }
};

}  // namespace tapedeck
