// B batch, T time, I input size, H hidden size, D directions.
#include <tapedeck/core/gradcheck.h>
#include <tapedeck/nn/gru.h>
#include <tapedeck/ops/ops.h>

#include <cmath>
#include <map>

#include "module_audit.h"
#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

using Ints = std::vector<int64_t>;
using Names = std::vector<std::string>;

Tensor rows_of(const Tensor& x, const Ints& order) {
  std::vector<Var> rows;
  for (int64_t b : order) rows.push_back(x.select(0, b));
  return stack(rows, 0).value();
}

// ---- The cell with one input and one unit --------------------------------------------------------------------------

struct Gates {
  double r, z, n;
};
struct ScalarWeights {
  Gates input{.5, -.3, .8}, hidden{.4, .7, -.6}, input_bias{.1, .2, .3}, hidden_bias{-.1, .05, .25};
};

GRUCell scalar_cell(const ScalarWeights& w = {}) {
  Rng rng(1);
  GRUCell cell(1, 1, rng, {.dtype = DType::f64});
  auto set = [](const Parameter& p, const Gates& g) {
    p.mutable_value().copy_(tensor({g.r, g.z, g.n}, DType::f64).reshape(p.shape()));
  };
  set(cell.weight_ih, w.input), set(cell.weight_hh, w.hidden);
  set(cell.bias_ih, w.input_bias), set(cell.bias_hh, w.hidden_bias);
  return cell;
}

Tensor one(double v) { return Tensor::full({1, 1}, v, DType::f64); }

std::vector<double> three_points(const GRUCell& cell) {
  return {cell(one(1), one(.5)).item(), cell(one(0), one(.5)).item(), cell(one(0), one(0)).item()};
}

void check_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(a[i] - b[i]) <= tolerance);
  }
}

// ---- The definition in loops, by PyTorch's names -------------------------------------------------------------------

using Grid = std::vector<double>;  // row-major

struct Naive {
  Grid output, final_state;
};

Naive naive_gru(const GRU& gru, const Tensor& input, const Ints& lengths, const Grid& h0, int64_t layers, int64_t H) {
  std::map<std::string, Grid> weights;
  for (const NamedParameter& p : named_parameters(gru)) weights[p.name] = values(p.parameter.value());
  auto sigma = [](double v) { return 1 / (1 + std::exp(-v)); };
  const int64_t B = input.size(0), T = input.size(1), D = gru.bidirectional ? 2 : 1;
  int64_t in_size = input.size(2);
  Grid x = values(input);
  Naive result{{}, Grid(static_cast<size_t>(layers * D * B * H))};
  auto at = [](Grid& grid, int64_t i) -> double& { return grid[static_cast<size_t>(i)]; };
  for (int64_t layer = 0; layer < layers; ++layer) {
    Grid y(static_cast<size_t>(B * T * D * H), 0.0);
    for (int64_t d = 0; d < D; ++d) {
      const std::string suffix = "_l" + std::to_string(layer) + (d == 1 ? "_reverse" : "");
      Grid &w_ih = weights.at("weight_ih" + suffix), &w_hh = weights.at("weight_hh" + suffix);
      Grid b_ih = weights.count("bias_ih" + suffix) ? weights["bias_ih" + suffix] : Grid(static_cast<size_t>(3 * H));
      Grid b_hh = weights.count("bias_hh" + suffix) ? weights["bias_hh" + suffix] : Grid(static_cast<size_t>(3 * H));
      for (int64_t b = 0; b < B; ++b) {
        Grid h(static_cast<size_t>(H), 0.0);
        const int64_t state = ((layer * D + d) * B + b) * H;
        for (int64_t j = 0; j < H && !h0.empty(); ++j) at(h, j) = h0[static_cast<size_t>(state + j)];
        const int64_t n = lengths[static_cast<size_t>(b)];
        for (int64_t i = 0; i < n; ++i) {
          const int64_t t = d == 1 ? n - 1 - i : i;
          Grid next = h;
          for (int64_t j = 0; j < H; ++j) {
            double from_x[3], from_h[3];
            for (int64_t gate = 0; gate < 3; ++gate) {
              const int64_t row = gate * H + j;
              from_x[gate] = at(b_ih, row), from_h[gate] = at(b_hh, row);
              for (int64_t k = 0; k < in_size; ++k) {
                from_x[gate] += at(w_ih, row * in_size + k) * at(x, (b * T + t) * in_size + k);
              }
              for (int64_t k = 0; k < H; ++k) from_h[gate] += at(w_hh, row * H + k) * at(h, k);
            }
            const double r = sigma(from_x[0] + from_h[0]), z = sigma(from_x[1] + from_h[1]);
            const double candidate = std::tanh(from_x[2] + r * from_h[2]);
            at(next, j) = (1 - z) * candidate + z * at(h, j);
          }
          h = next;
          for (int64_t j = 0; j < H; ++j) at(y, ((b * T + t) * D + d) * H + j) = at(h, j);
        }
        for (int64_t j = 0; j < H; ++j) at(result.final_state, state + j) = at(h, j);
      }
    }
    x = y;
    in_size = D * H;
  }
  result.output = x;
  return result;
}

// ---- Values and gradients of a batch -------------------------------------------------------------------------------

struct Seen {
  Tensor output, final_state;
  Tensor grad_x, grad_h0;
  std::vector<Tensor> grads;  // in the order of named_parameters
};

// Gradients of sum(output * w) + sum(final_state * v).
Seen look(const GRU& gru, const Tensor& x, const Ints& lengths, const Tensor& h0, const Tensor& w, const Tensor& v) {
  Tape tape;
  Var input = tape.leaf(x), start = tape.leaf(h0);
  auto [output, final_state] = gru(input, lengths, start);
  Gradients g = tape.backward(sum(output * w) + sum(final_state * v));
  Seen seen{output.value(), final_state.value(), g[input], g[start], {}};
  for (const NamedParameter& p : named_parameters(gru)) seen.grads.push_back(g[p.parameter]);
  return seen;
}

// Rows with everything that belongs to them, padded to T steps in any order.
struct Rows {
  Ints lengths;
  Tensor x, h0, w, v;  // (B, T, I), (cells, B, H), (B, T, D H), (cells, B, H)

  Rows(const GRU& gru, Ints row_lengths, int64_t T, DType dtype, Rng& rng) : lengths(std::move(row_lengths)) {
    const int64_t B = static_cast<int64_t>(lengths.size()), H = gru.cells[0].hidden_size();
    const int64_t cells = static_cast<int64_t>(gru.cells.size()), D = gru.bidirectional ? 2 : 1;
    x = random({B, T, gru.cells[0].input_size()}, dtype, rng);
    h0 = random({cells, B, H}, dtype, rng);
    w = random({B, T, D * H}, dtype, rng);
    v = random({cells, B, H}, dtype, rng);
  }

  Seen look(const GRU& gru, const Ints& order, int64_t T) const {
    Ints chosen;
    for (int64_t b : order) chosen.push_back(lengths[static_cast<size_t>(b)]);
    auto by_row = [&](const Tensor& states) { return rows_of(states.transpose(0, 1), order).transpose(0, 1); };
    return ::look(gru, rows_of(x, order).slice(1, 0, T), chosen, by_row(h0), rows_of(w, order).slice(1, 0, T),
                  by_row(v));
  }
};

void check_row_alone_equals_row_in_a_batch(DType dtype, double tolerance) {
  Rng rng(5);
  for (bool bidirectional : {false, true}) {
    GRU gru(3, 4, rng, {.layers = 2, .bidirectional = bidirectional, .dtype = dtype});
    Rows rows(gru, {3, 1, 5, 2, 5}, 8, dtype, rng);
    std::vector<Seen> alone;
    for (int64_t b = 0; b < 5; ++b) alone.push_back(rows.look(gru, {b}, rows.lengths[static_cast<size_t>(b)]));
    for (const Ints& order : {Ints{0, 1, 2, 3, 4}, Ints{4, 3, 2, 1, 0}, Ints{1, 3, 0}, Ints{3, 1}, Ints{2, 0}}) {
      int64_t longest = 0;
      for (int64_t b : order) longest = std::max(longest, rows.lengths[static_cast<size_t>(b)]);
      for (int64_t T : {longest, longest + 1, int64_t{8}}) {
        CAPTURE(bidirectional);
        CAPTURE(T);
        CAPTURE(order.size());
        Seen batch = rows.look(gru, order, T);
        std::vector<Tensor> sums;
        for (size_t i = 0; i < order.size(); ++i) {
          const int64_t at = static_cast<int64_t>(i), n = rows.lengths[static_cast<size_t>(order[i])];
          CAPTURE(order[i]);
          const Seen& single = alone[static_cast<size_t>(order[i])];
          CHECK(distance(batch.output.select(0, at).slice(0, 0, n), single.output.select(0, 0)) <= tolerance);
          CHECK(all_zero(batch.output.select(0, at).slice(0, n, T)));
          CHECK(distance(batch.final_state.select(1, at), single.final_state.select(1, 0)) <= tolerance);
          CHECK(distance(batch.grad_x.select(0, at).slice(0, 0, n), single.grad_x.select(0, 0)) <= tolerance);
          CHECK(all_zero(batch.grad_x.select(0, at).slice(0, n, T)));
          CHECK(distance(batch.grad_h0.select(1, at), single.grad_h0.select(1, 0)) <= tolerance);
          for (size_t k = 0; k < single.grads.size(); ++k) {
            if (i == 0) sums.push_back(Tensor::zeros(single.grads[k].shape(), dtype));
            sums[k].add_(single.grads[k]);
          }
        }
        for (size_t k = 0; k < sums.size(); ++k) CHECK(distance(batch.grads[k], sums[k]) <= tolerance);
      }
    }
  }
}

}  // namespace

TEST_SUITE("gru") {
TEST_CASE("gru cell: reset after the product and the variants that are not meant") {
  check_close(three_points(scalar_cell()), {0.6226342910001346, 0.4170684332810807, 0.1756260162505830}, 1e-15);

  // With one unit, the other variants are this cell with other weights: the reset gate before the product moves the
  // candidate's hidden bias out of its reach; a swapped update gate has the opposite sign.
  ScalarWeights before;
  before.input_bias.n += before.hidden_bias.n, before.hidden_bias.n = 0;
  check_close(three_points(scalar_cell(before)), {0.6351582690, 0.4529023648, 0.2191395102}, 1e-10);
  ScalarWeights swapped;
  for (Gates* g : {&swapped.input, &swapped.hidden, &swapped.input_bias, &swapped.hidden_bias}) g->z = -g->z;
  check_close(three_points(scalar_cell(swapped)), {0.6655389778, 0.3488888331, 0.2255082687}, 1e-10);
  ScalarWeights dropped;
  dropped.hidden_bias.n = 0;
  check_close(three_points(scalar_cell(dropped)), {0.5919525893, 0.3703933774, 0.1275435073}, 1e-10);

  const Gates ones{1, 1, 1};
  CHECK(std::abs(scalar_cell({ones, ones, ones, ones})(one(0), one(0)).item() - 0.1137866935) <= 1e-10);
}

TEST_CASE("gru cell: gradients of all weights with all gates different") {
  GRUCell cell = scalar_cell();
  Tape tape;
  Var x = tape.leaf(one(1)), h = tape.leaf(one(.5));
  Gradients g = tape.backward(cell(x, h));
  CHECK(std::abs(g[x].item() - 0.149195553687566) <= 1e-15);
  CHECK(std::abs(g[h].item() - 0.4597906215244625) <= 1e-15);
  const std::vector<double> of_input = {-0.0017869381, -0.0704463508, 0.1611938969};
  check_close(values(g[cell.weight_ih]), of_input, 1e-10);
  check_close(values(g[cell.weight_hh]), {-0.0008934691, -0.0352231754, 0.0538538954}, 1e-10);
  check_close(values(g[cell.bias_ih]), of_input, 1e-10);  // x = 1
  check_close(values(g[cell.bias_hh]), {-0.0017869381, -0.0704463508, 0.1077077908}, 1e-10);
}

TEST_CASE("gru cell: input gates and step are the two halves of a call") {
  Rng rng(2);
  GRUCell cell(3, 4, rng, {.dtype = DType::f64});
  Tensor x = random({2, 3}, DType::f64, rng), h = random({2, 4}, DType::f64, rng);
  CHECK(same_bits(cell.step(cell.input_gates(x), h).value(), cell(x, h).value()));
  CHECK(cell.input_size() == 3);
  CHECK(cell.hidden_size() == 4);
}

TEST_CASE("gru cell: names and shapes and initial values as in PyTorch") {
  Rng rng(3);
  GRUCell cell(3, 16, rng);
  Names names;
  for (const NamedParameter& p : named_parameters(cell)) {
    names.push_back(p.name);
    double largest = 0;
    for (double v : values(p.parameter.value())) largest = std::max(largest, std::abs(v));
    CHECK(largest <= .25);  // 1 / sqrt(16)
    CHECK(largest > .2);
  }
  CHECK(names == Names{"weight_ih", "weight_hh", "bias_ih", "bias_hh"});
  CHECK(cell.weight_ih.shape() == Shape{48, 3});
  CHECK(cell.weight_hh.shape() == Shape{48, 16});
  CHECK(cell.bias_ih.shape() == Shape{48});
  CHECK(cell.bias_hh.shape() == Shape{48});
  CHECK(cell.weight_ih.dtype() == DType::f32);
  CHECK(audit_module([] {
          Rng own(1);
          return GRUCell(3, 4, own);
        }) == "");
}

TEST_CASE("gru cell: without bias it is the cell whose biases are 0") {
  Rng rng(4), again(4);
  GRUCell bare(3, 4, rng, {.bias = false, .dtype = DType::f64}), full(3, 4, again, {.dtype = DType::f64});
  full.bias_ih.mutable_value().fill_(0);
  full.bias_hh.mutable_value().fill_(0);
  CHECK(!bare.bias_ih.defined());
  CHECK(!bare.bias_hh.defined());
  CHECK(named_parameters(bare).size() == 2);
  REQUIRE(same_bits(bare.weight_hh.value(), full.weight_hh.value()));
  Tensor x = random({2, 3}, DType::f64, rng), h = random({2, 4}, DType::f64, rng);
  CHECK(distance(bare(x, h).value(), full(x, h).value()) <= 1e-15);
}

TEST_CASE("gru cell: wrong shapes are named") {
  Rng rng(1);
  GRUCell cell(3, 4, rng);
  const Tensor x = Tensor::zeros({2, 3}), h = Tensor::zeros({2, 4});
  CHECK(says(error_of([&] { cell(Tensor::zeros({2, 5}), h); }), {"gru cell", "(B, 3)", "(2, 5)"}));
  CHECK(says(error_of([&] { cell(Tensor::zeros({3}), h); }), {"gru cell", "(B, 3)", "(3,)"}));
  CHECK(says(error_of([&] { cell(x, Tensor::zeros({2, 5})); }), {"gru cell", "(B, 4)", "(2, 5)"}));
  CHECK(says(error_of([&] { cell(x, Tensor::zeros({3, 4})); }), {"gru cell", "(3, 4)", "(2, 12)"}));
  CHECK(says(error_of([&] { cell(Tensor::zeros({2, 3}, DType::f64), h); }), {"f32", "f64"}));
  CHECK(says(error_of([&] { cell(x, Tensor::zeros({2, 4}, DType::f64)); }), {"f32", "f64"}));
}

TEST_CASE("gru cell: gradients of inputs and parameters to order two") {
  Rng rng(6);
  for (bool bias : {true, false}) {
    CAPTURE(bias);
    GRUCell cell(2, 3, rng, {.bias = bias, .dtype = DType::f64});
    auto f = [&](auto v) { return cell(v[0], v[1]); };
    const std::vector<NamedTensor> inputs = {{"x", random({2, 2}, DType::f64, rng)},
                                             {"h", random({2, 3}, DType::f64, rng)}};
    GradcheckReport first = gradcheck(f, inputs, named_parameters(cell));
    CHECK_MESSAGE(first.ok(), to_string(first));
    CHECK(first.elements == 2 * (4 + 6 + 18 + 27 + (bias ? 18 : 0)));
    GradcheckReport second = gradcheck(f, inputs, named_parameters(cell), {.order = 2, .directions = 6});
    CHECK_MESSAGE(second.ok(), to_string(second));
  }
}

TEST_CASE("gru: any number of layers and directions against the definition in loops") {
  Rng rng(7);
  const int64_t B = 4, T = 6, I = 3, H = 5;
  const Ints lengths = {2, 6, 1, 5};
  for (int64_t layers : {1, 2, 3}) {
    for (bool bidirectional : {false, true}) {
      for (bool bias : {true, false}) {
        CAPTURE(layers);
        CAPTURE(bidirectional);
        CAPTURE(bias);
        GRU gru(I, H, rng, {.layers = layers, .bidirectional = bidirectional, .bias = bias, .dtype = DType::f64});
        const int64_t D = bidirectional ? 2 : 1;
        Tensor x = random({B, T, I}, DType::f64, rng), h0 = random({layers * D, B, H}, DType::f64, rng);
        for (bool with_state : {true, false}) {
          for (const Ints& n : {lengths, Ints(4, T)}) {
            GRU::Result got = with_state ? gru(x, n, h0) : gru(x, n);
            Naive want = naive_gru(gru, x, n, with_state ? values(h0) : Grid(), layers, H);
            CHECK(distance(got.output.value(), Tensor::from(want.output, {B, T, D * H})) <= 1e-14);
            CHECK(distance(got.final_state.value(), Tensor::from(want.final_state, {layers * D, B, H})) <= 1e-14);
          }
        }
      }
    }
  }
}

TEST_CASE("gru: no lengths means all steps and no state means zeros") {
  Rng rng(8);
  GRU gru(3, 4, rng, {.layers = 2, .bidirectional = true});
  Tensor x = random({2, 5, 3}, DType::f32, rng);
  GRU::Result plain = gru(x), full = gru(x, Ints{5, 5}), zero = gru(x, Ints{5, 5}, Tensor::zeros({4, 2, 4}));
  for (const GRU::Result& other : {full, zero}) {
    CHECK(same_bits(plain.output.value(), other.output.value()));
    CHECK(same_bits(plain.final_state.value(), other.final_state.value()));
  }
  // Final states are where each direction ends, in the order of the cells.
  CHECK(same_bits(plain.output.value().select(1, 4).slice(1, 0, 4), plain.final_state.value().select(0, 2)));
  CHECK(same_bits(plain.output.value().select(1, 0).slice(1, 4, 8), plain.final_state.value().select(0, 3)));
}

TEST_CASE("gru: time-major input through a transpose") {
  Rng rng(9);
  GRU gru(3, 4, rng, {.bidirectional = true, .dtype = DType::f64});
  Tensor x = random({5, 2, 3}, DType::f64, rng);
  Tensor view = x.transpose(0, 1), dense = view.clone();
  REQUIRE(!view.is_contiguous());
  CHECK(same_bits(gru(view, Ints{5, 3}).output.value(), gru(dense, Ints{5, 3}).output.value()));
}

TEST_CASE("gru: the backward direction starts at the last step of the row") {
  // Both directions share one cell: on a palindrome they are mirror images, in any batch.
  Rng rng(10);
  GRU gru(1, 3, rng, {.bidirectional = true, .dtype = DType::f64});
  gru.cells[1] = gru.cells[0];
  Tensor x = Tensor::zeros({2, 5, 1}, DType::f64);
  x.select(0, 0).slice(0, 0, 3).copy_(tensor({{2}, {4}, {2}}, DType::f64));
  x.select(0, 1).copy_(tensor({{1}, {-1}, {3}, {.5}, {2}}, DType::f64));
  auto [output, final_state] = gru(x, Ints{3, 5});
  Tensor row = output.value().select(0, 0);
  for (int64_t t = 0; t < 3; ++t) {
    CHECK(distance(row.select(0, t).slice(0, 0, 3), row.select(0, 2 - t).slice(0, 3, 6)) <= 1e-15);
  }
  CHECK(distance(final_state.value().select(0, 0).select(0, 0), final_state.value().select(0, 1).select(0, 0)) <=
        1e-15);
  CHECK(distance(row.select(0, 2).slice(0, 0, 3), final_state.value().select(0, 0).select(0, 0)) == 0);
  // Over the pads, which are zeros, the bias would have moved the state.
  Tensor over = gru(x).output.value().select(0, 0);
  CHECK(distance(over.select(0, 2).slice(0, 3, 6), row.select(0, 2).slice(0, 3, 6)) > 1e-3);
}

TEST_CASE("gru: a row alone equals the row in any batch in f64") {
  check_row_alone_equals_row_in_a_batch(DType::f64, 1e-12);
}

TEST_CASE("gru: a row alone equals the row in any batch in f32") {
  check_row_alone_equals_row_in_a_batch(DType::f32, 1e-5);
}

TEST_CASE("gru: what stands at pads changes no bit of values and gradients") {
  Rng rng(11);
  for (DType dtype : {DType::f32, DType::f64}) {
    GRU gru(3, 4, rng, {.layers = 2, .bidirectional = true, .dtype = dtype});
    Rows rows(gru, {3, 6, 1}, 6, dtype, rng);
    auto with_pads = [&](auto pad) {
      Rows changed = rows;
      changed.x = rows.x.clone();
      for (int64_t b = 0; b < 3; ++b) {
        for (int64_t t = rows.lengths[static_cast<size_t>(b)]; t < 6; ++t) {
          for (int64_t i = 0; i < 3; ++i) changed.x.set({b, t, i}, pad());
        }
      }
      return changed.look(gru, {0, 1, 2}, 6);
    };
    const Seen zero = with_pads([] { return 0.0; });
    for (double pad : {not_a_number, inf, -inf, 1e30, 7.0}) {
      CAPTURE(pad);
      const bool noise = pad == 7.0;
      Seen other = with_pads([&] { return noise ? rng.normal() : pad; });
      CHECK(same_bits(zero.output, other.output));
      CHECK(same_bits(zero.final_state, other.final_state));
      CHECK(same_bits(zero.grad_x, other.grad_x));
      CHECK(same_bits(zero.grad_h0, other.grad_h0));
      for (size_t k = 0; k < zero.grads.size(); ++k) CHECK(same_bits(zero.grads[k], other.grads[k]));
    }
    for (const Tensor& g : zero.grads) CHECK(!all_zero(g));  // nothing above compared zeros
    CHECK(!all_zero(zero.grad_x));
  }
}

TEST_CASE("gru: wrong lengths and shapes are named") {
  Rng rng(12);
  GRU gru(3, 4, rng, {.bidirectional = true});
  const Tensor x = Tensor::zeros({3, 5, 3}), h0 = Tensor::zeros({2, 3, 4});
  CHECK(says(error_of([&] { gru(x, Ints{3, 0, 5}); }), {"gru", "row 1", "length 0", "1 to 5"}));
  CHECK(says(error_of([&] { gru(x, Ints{3, 5, 6}); }), {"gru", "row 2", "length 6", "1 to 5"}));
  CHECK(says(error_of([&] { gru(x, Ints{-1, 5, 6}); }), {"gru", "row 0", "length -1"}));
  CHECK(says(error_of([&] { gru(x, Ints{3, 5}); }), {"gru", "3 rows", "got 2"}));
  CHECK(says(error_of([&] { gru(x, Ints{3, 5, 1, 1}); }), {"gru", "3 rows", "got 4"}));
  CHECK(says(error_of([&] { gru(Tensor::zeros({3, 0, 3}), Ints{1, 1, 1}); }), {"gru", "T >= 1", "(3, 0, 3)"}));
  CHECK(says(error_of([&] { gru(Tensor::zeros({3, 0, 3})); }), {"gru", "T >= 1", "(3, 0, 3)"}));
  CHECK(says(error_of([&] { gru(Tensor::zeros({3, 5, 2})); }), {"gru", "(B, T, 3)", "(3, 5, 2)"}));
  CHECK(says(error_of([&] { gru(Tensor::zeros({5, 3})); }), {"gru", "(B, T, 3)", "(5, 3)"}));
  CHECK(says(error_of([&] { gru(x, Ints{5, 5, 5}, Tensor::zeros({1, 3, 4})); }), {"gru", "h0 (2, 3, 4)", "(1, 3, 4)"}));
  CHECK(says(error_of([&] { gru(x, Ints{5, 5, 5}, Tensor::zeros({3, 4})); }), {"gru", "h0 (2, 3, 4)", "(3, 4)"}));
  CHECK(says(error_of([&] { gru(x.to(DType::f64)); }), {"f32", "f64"}));
  CHECK(says(error_of([&] { gru(x, Ints{5, 5, 5}, h0.to(DType::f64)); }), {"f32", "f64"}));
  CHECK(says(error_of([&] { GRU(3, 4, rng, {.layers = 0}); }), {"gru", "layers", "0"}));
}

TEST_CASE("gru: a batch without rows") {
  Rng rng(13);
  GRU gru(3, 4, rng, {.bidirectional = true});
  auto [output, final_state] = gru(Tensor::zeros({0, 5, 3}), Ints{});
  CHECK(output.shape() == Shape{0, 5, 8});
  CHECK(final_state.shape() == Shape{2, 0, 4});
}

TEST_CASE("gru: parameter names as in PyTorch") {
  Rng rng(14);
  auto names = [&](GRUOptions options) {
    Names result;
    for (const NamedParameter& p : named_parameters(GRU(3, 4, rng, options))) result.push_back(p.name);
    return result;
  };
  CHECK(names({}) == Names{"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"});
  CHECK(names({.layers = 2, .bias = false}) == Names{"weight_ih_l0", "weight_hh_l0", "weight_ih_l1", "weight_hh_l1"});
  CHECK(names({.layers = 2, .bidirectional = true}) ==
        Names{"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_ih_l0_reverse",
              "weight_hh_l0_reverse", "bias_ih_l0_reverse", "bias_hh_l0_reverse", "weight_ih_l1", "weight_hh_l1",
              "bias_ih_l1", "bias_hh_l1", "weight_ih_l1_reverse", "weight_hh_l1_reverse", "bias_ih_l1_reverse",
              "bias_hh_l1_reverse"});
  GRU gru(3, 4, rng, {.layers = 2, .bidirectional = true});
  CHECK(gru.cells[1].weight_ih.shape() == Shape{12, 3});
  CHECK(gru.cells[2].weight_ih.shape() == Shape{12, 8});  // reads both directions
  CHECK(audit_module([] {
          Rng own(1);
          return GRU(3, 4, own, {.layers = 2, .bidirectional = true});
        }) == "");
}

TEST_CASE("gru: gradients of inputs and states and parameters to order two") {
  Rng rng(15);
  for (int64_t layers : {1, 2}) {
    for (bool bidirectional : {false, true}) {
      CAPTURE(layers);
      CAPTURE(bidirectional);
      GRU gru(2, 2, rng, {.layers = layers, .bidirectional = bidirectional, .dtype = DType::f64});
      std::function<std::vector<Var>(std::span<const Var>)> f = [&](std::span<const Var> v) {
        auto [output, final_state] = gru(v[0], Ints{2, 3}, v[1]);
        return std::vector<Var>{output, final_state};
      };
      const std::vector<NamedTensor> inputs = {
          {"x", random({2, 3, 2}, DType::f64, rng)},
          {"h0", random({layers * (bidirectional ? 2 : 1), 2, 2}, DType::f64, rng)}};
      GradcheckReport first = gradcheck(f, inputs, named_parameters(gru));
      CHECK_MESSAGE(first.ok(), to_string(first));
      CHECK(first.elements > 0);
      GradcheckReport second = gradcheck(f, inputs, named_parameters(gru), {.order = 2, .directions = 2});
      CHECK_MESSAGE(second.ok(), to_string(second));
    }
  }
}

TEST_CASE("gru: nodes say where in the layer they were made") {
  Rng rng(16);
  GRU gru(2, 3, rng, {.layers = 2, .bidirectional = true});
  Tape tape(TapeOptions{.fused = Fused::definitions});
  gru(tape.leaf(random({1, 2, 2}, DType::f32, rng)));
  std::map<std::string, int> scopes;
  for (uint32_t id = 0; id < tape.size(); ++id) ++scopes[tape.node(id).scope];
  for (const char* scope : {"layer[0]/forward[0]", "layer[0]/backward[1]", "layer[1]/forward[1]"}) {
    CAPTURE(scope);
    CHECK(scopes[scope] > 0);
  }
}
}
