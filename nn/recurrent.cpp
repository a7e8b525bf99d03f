#include <tapedeck/nn/gru.h>
#include <tapedeck/nn/lstm.h>
#include <tapedeck/nn/recurrent.h>
#include <tapedeck/nn/rnn.h>
#include <tapedeck/ops/ops.h>

#include <algorithm>

namespace tapedeck {
namespace {

// Which (row, step) pairs hold a token.
struct Lengths {
  std::span<const int64_t> of_row;
  int64_t shortest, T;

  Lengths(const char* layer, std::span<const int64_t> lengths, int64_t B, int64_t steps) : of_row(lengths), T(steps) {
    if (static_cast<int64_t>(lengths.size()) != B) {
      fail("{}: expected one length for each of {} rows, got {}", layer, B, lengths.size());
    }
    for (int64_t b = 0; b < B; ++b) {
      const int64_t n = of_row[static_cast<size_t>(b)];
      if (n < 1 || n > T) fail("{}: row {} has length {}; expected 1 to {} (the steps of x)", layer, b, n, T);
    }
    shortest = of_row.empty() ? T : *std::min_element(of_row.begin(), of_row.end());
  }

  bool has_pads() const { return shortest < T; }
};

// Cells whose layer is one op.
template <class Cell>
concept WholeLayer = requires(const Cell& cell, const Var& x, std::span<const int64_t> lengths) {
  cell.layer(x, x, lengths, Direction::forward);
};

// One layer in one direction: outputs (B, T, H), 0 at pads, and the state after the last step.
template <class Cell>
struct Run {
  Var outputs;
  typename Cell::State state;
};

template <class Cell>
Run<Cell> run_by_steps(const Cell& cell, const Var& x, typename Cell::State state, const Lengths& lengths,
                       Direction direction) {
  const bool backward = direction == Direction::backward;
  const Tensor pads = lengths.has_pads() ? past_end(lengths.of_row, lengths.T) : Tensor();
  CachedVector<Var> outputs(static_cast<size_t>(lengths.T));
  Var gates = cell.input_gates(pads.defined() ? masked_fill(x, pads, 0) : x);  // all steps in one product
  for (int64_t i = 0; i < lengths.T; ++i) {
    const int64_t t = backward ? lengths.T - 1 - i : i;
    Scope scope(backward ? "backward" : "forward", t);
    auto next = cell.step(select(gates, 1, t), state);
    // rows that have ended (or, backwards, not begun) keep their state
    state = t < lengths.shortest ? next : keep_state(pads.select(1, t), state, next);
    outputs[static_cast<size_t>(t)] = output_of(state);
  }
  Var all = stack(outputs, 1);
  return {pads.defined() ? masked_fill(all, pads, 0) : all, state};
}

// states (B, T, H) at each row's last step: (B, H).
Var last_valid(const Var& states, const Lengths& lengths) {
  if (!lengths.has_pads()) return select(states, 1, -1);
  const int64_t B = states.size(0), T = states.size(1);
  Tensor rows = Tensor::empty({B}, DType::i64);
  int64_t* p = rows.mutable_data<int64_t>();
  for (int64_t b = 0; b < B; ++b) p[b] = b * T + lengths.of_row[static_cast<size_t>(b)] - 1;
  return index_select(reshape(states, {B * T, states.size(2)}), 0, rows);
}

template <class Cell>
Run<Cell> run(const Cell& cell, const Var& x, const typename Cell::State& state, const Lengths& lengths,
              Direction direction) {
  if constexpr (WholeLayer<Cell>) {
    Var states = cell.layer(x, state, lengths.of_row, direction);
    return {states, direction == Direction::backward ? select(states, 1, 0) : last_valid(states, lengths)};
  } else {
    return run_by_steps(cell, x, state, lengths, direction);
  }
}

template <class Cell>
typename Recurrent<Cell>::Result run_layers(const Recurrent<Cell>& net, const Operand& input,
                                            std::span<const int64_t> row_lengths, const typename Cell::State* initial,
                                            Rng* rng) {
  const int64_t I = net.input_size(), H = net.hidden_size(), count = static_cast<int64_t>(net.cells.size());
  if (input.rank() != 3 || input.size(2) != I || input.size(1) < 1) {
    fail("{}: expected x (B, T, {}) with T >= 1, got {}", Cell::name, I, input.shape());
  }
  const int64_t B = input.size(0), T = input.size(1);
  if (initial) Cell::check_initial(*initial, {count, B, H});
  Lengths lengths(Cell::name, row_lengths, B, T);

  Var x = input.var();
  CachedVector<typename Cell::State> final_states;
  const size_t directions = net.bidirectional ? 2 : 1, layers = net.cells.size() / directions;
  for (size_t layer = 0; layer < layers; ++layer) {
    Scope scope("layer", static_cast<int64_t>(layer));
    CachedVector<Var> outputs;
    for (size_t d = 0; d < directions; ++d) {
      const size_t k = layer * directions + d;
      const Cell& cell = net.cells[k];
      Run<Cell> one = run(cell, x, initial ? select_state(*initial, static_cast<int64_t>(k)) : cell.zero_state(B),
                          lengths, d == 0 ? Direction::forward : Direction::backward);
      outputs.push_back(one.outputs);
      final_states.push_back(one.state);
    }
    x = directions == 2 ? cat(outputs, 2) : outputs[0];
    if (layer + 1 < layers) x = tapedeck::dropout(x, net.dropout, rng);
  }
  return {x, stack_states(final_states)};
}

}  // namespace

Tensor past_end(std::span<const int64_t> lengths, int64_t T) {
  Tensor mask = Tensor::empty({static_cast<int64_t>(lengths.size()), T, 1}, DType::boolean);
  bool* p = mask.mutable_data<bool>();
  for (int64_t n : lengths) {
    for (int64_t t = 0; t < T; ++t) *p++ = t >= n;
  }
  return mask;
}

Var select_state(const Var& states, int64_t k) { return select(states, 0, k); }
Var stack_states(std::span<const Var> states) { return stack(states, 0); }
Var keep_state(const Tensor& kept, const Var& old_state, const Var& new_state) {
  return where(kept, old_state, new_state);
}

template <class Cell>
Recurrent<Cell>::Recurrent(int64_t input, int64_t hidden, Rng& rng, Options options)
    : bidirectional(options.bidirectional), dropout(options.dropout) {
  if (options.layers < 1) fail("{}: expected layers >= 1, got {}", Cell::name, options.layers);
  if (!(dropout >= 0 && dropout <= 1)) fail("{}: expected 0 <= dropout <= 1, got {}", Cell::name, dropout);
  const int64_t directions = bidirectional ? 2 : 1;
  for (int64_t k = 0; k < options.layers * directions; ++k) {
    cells.emplace_back(k < directions ? input : directions * hidden, hidden, rng, options.cell());
  }
}

template <class Cell>
auto Recurrent<Cell>::last(const Result& result, int64_t layer, Direction direction) const -> State {
  const int64_t directions = bidirectional ? 2 : 1, layers = static_cast<int64_t>(cells.size()) / directions;
  if (direction == Direction::backward && !bidirectional) fail("{}: there is no backward direction", Cell::name);
  const int64_t k = normalize_dim(Cell::name, layer, static_cast<int>(layers));
  return select_state(result.final_state, k * directions + (direction == Direction::backward ? 1 : 0));
}

template <class Cell>
auto Recurrent<Cell>::operator()(Operand x, std::span<const int64_t> lengths, const State& initial, Rng* rng) const
    -> Result {
  UserSite here(x);
  return run_layers(*this, x, lengths, &initial, rng);
}

template <class Cell>
auto Recurrent<Cell>::operator()(Operand x, std::span<const int64_t> lengths, Rng* rng) const -> Result {
  UserSite here(x);
  return run_layers<Cell>(*this, x, lengths, nullptr, rng);
}

template <class Cell>
auto Recurrent<Cell>::operator()(Operand x, Rng* rng) const -> Result {
  UserSite here(x);
  if (x.rank() != 3) fail("{}: expected x (B, T, {}), got {}", Cell::name, input_size(), x.shape());
  CachedVector<int64_t> all(static_cast<size_t>(x.size(0)), x.size(1));
  return run_layers<Cell>(*this, x, all, nullptr, rng);
}

template struct Recurrent<RNNCell>;
template struct Recurrent<LSTMCell>;
template struct Recurrent<GRUCell>;

}  // namespace tapedeck
