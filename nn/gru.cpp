#include <tapedeck/nn/gru.h>
#include <tapedeck/nn/init.h>
#include <tapedeck/ops/ops.h>

#include <algorithm>

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

Var GRUCell::step(Operand input_gates, Operand h) const {
  const int64_t H = hidden_size();
  if (h.rank() != 2 || h.size(1) != H || input_gates.shape() != Shape{h.size(0), 3 * H}) {
    fail("gru cell: expected state h (B, {}) beside input gates (B, {}), got {} and {}", H, 3 * H, h.shape(),
         input_gates.shape());
  }
  Var hidden_gates = bias_hh.defined() ? linear(h, weight_hh, bias_hh) : linear(h, weight_hh);
  Var rz = sigmoid(slice(input_gates, 1, 0, 2 * H) + slice(hidden_gates, 1, 0, 2 * H));
  Var r = slice(rz, 1, 0, H), z = slice(rz, 1, H, 2 * H);
  Var n = tanh(slice(input_gates, 1, 2 * H, 3 * H) + r * slice(hidden_gates, 1, 2 * H, 3 * H));
  return n + z * (h - n);
}

GRU::GRU(int64_t input, int64_t hidden, Rng& rng, GRUOptions options) : bidirectional(options.bidirectional) {
  if (options.layers < 1) fail("gru: expected layers >= 1, got {}", options.layers);
  const int64_t directions = bidirectional ? 2 : 1;
  for (int64_t k = 0; k < options.layers * directions; ++k) {
    int64_t in = k < directions ? input : directions * hidden;
    cells.emplace_back(in, hidden, rng, GRUCellOptions{.bias = options.bias, .dtype = options.dtype});
  }
}

namespace {

// Which (row, step) pairs hold a token; built once a call.
struct Lengths {
  std::vector<int64_t> of_row;
  int64_t shortest, T;

  Lengths(std::span<const int64_t> lengths, int64_t B, int64_t steps)
      : of_row(lengths.begin(), lengths.end()), T(steps) {
    if (static_cast<int64_t>(lengths.size()) != B) {
      fail("gru: expected one length for each of {} rows, got {}", B, lengths.size());
    }
    for (int64_t b = 0; b < B; ++b) {
      int64_t n = of_row[static_cast<size_t>(b)];
      if (n < 1 || n > T) fail("gru: row {} has length {}; expected 1 to {} (the steps of x)", b, n, T);
    }
    shortest = of_row.empty() ? T : *std::min_element(of_row.begin(), of_row.end());
  }

  bool has_pads() const { return shortest < T; }

  // (B, T, 1): true at pads.
  Tensor pads() const {
    Tensor mask = Tensor::empty({static_cast<int64_t>(of_row.size()), T, 1}, DType::boolean);
    bool* p = mask.mutable_data<bool>();
    for (int64_t n : of_row) {
      for (int64_t t = 0; t < T; ++t) *p++ = t >= n;
    }
    return mask;
  }
};

// One layer in one direction: x (B, T, I), h0 (B, H) -> states of all steps (stacked along time) and the final one.
struct Run {
  std::vector<Var> states;
  Var last;
};
Run run(const GRUCell& cell, const Var& x, Var h, const Lengths& lengths, const Tensor& pads, bool backward) {
  Var gates = cell.input_gates(x);  // (B, T, 3H), all steps in one product
  Run result{std::vector<Var>(static_cast<size_t>(lengths.T)), {}};
  for (int64_t i = 0; i < lengths.T; ++i) {
    int64_t t = backward ? lengths.T - 1 - i : i;
    Scope scope(backward ? "backward" : "forward", t);
    Var next = cell.step(select(gates, 1, t), h);
    h = t < lengths.shortest ? next : where(pads.select(1, t), h, next);  // rows that have ended keep their state
    result.states[static_cast<size_t>(t)] = h;
  }
  result.last = h;
  return result;
}

GRU::Result run_layers(const GRU& gru, const Operand& input, std::span<const int64_t> row_lengths, const Var* h0) {
  const GRUCell& first = gru.cells[0];
  const int64_t I = first.input_size(), H = first.hidden_size(), count = static_cast<int64_t>(gru.cells.size());
  if (input.rank() != 3 || input.size(2) != I || input.size(1) < 1) {
    fail("gru: expected x (B, T, {}) with T >= 1, got {}", I, input.shape());
  }
  const int64_t B = input.size(0), T = input.size(1);
  if (h0 && h0->shape() != Shape{count, B, H}) {
    fail("gru: expected h0 ({}, {}, {}) (layers x directions, B, H), got {}", count, B, H, h0->shape());
  }
  Lengths lengths(row_lengths, B, T);
  Tensor pads = lengths.has_pads() ? lengths.pads() : Tensor();
  Var x = pads.defined() ? masked_fill(input, pads, 0) : input.var();

  std::vector<Var> final_states;
  const size_t directions = gru.bidirectional ? 2 : 1;
  for (size_t layer = 0; layer < gru.cells.size() / directions; ++layer) {
    Scope scope("layer", static_cast<int64_t>(layer));
    std::vector<Var> outputs;
    for (size_t d = 0; d < directions; ++d) {
      size_t k = layer * directions + d;
      Var h = h0 ? select(*h0, 0, static_cast<int64_t>(k)) : Var(Tensor::zeros({B, H}, first.weight_hh.dtype()));
      Run r = run(gru.cells[k], x, h, lengths, pads, d == 1);
      outputs.push_back(stack(r.states, 1));
      final_states.push_back(r.last);
    }
    x = directions == 2 ? cat(outputs, 2) : outputs[0];
    if (pads.defined()) x = masked_fill(x, pads, 0);
  }
  return {x, stack(final_states, 0)};
}

}  // namespace

GRU::Result GRU::operator()(Operand x, std::span<const int64_t> lengths, Operand h0) const {
  UserSite here(x);
  return run_layers(*this, x, lengths, &h0.var());
}

GRU::Result GRU::operator()(Operand x, std::span<const int64_t> lengths) const {
  UserSite here(x);
  return run_layers(*this, x, lengths, nullptr);
}

GRU::Result GRU::operator()(Operand x) const {
  UserSite here(x);
  if (x.rank() != 3) fail("gru: expected x (B, T, {}), got {}", cells[0].input_size(), x.shape());
  std::vector<int64_t> all(static_cast<size_t>(x.size(0)), x.size(1));
  return run_layers(*this, x, all, nullptr);
}

}  // namespace tapedeck
