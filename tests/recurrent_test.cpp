// What all recurrent layers share, and the LSTM's own numbers. B batch, T time, H hidden size.
#include <tapedeck/nn/gru.h>
#include <tapedeck/nn/lstm.h>
#include <tapedeck/nn/rnn.h>
#include <tapedeck/ops/ops.h>

#include <cmath>

#include "module_audit.h"
#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

using Ints = std::vector<int64_t>;

// All gates different: gate k = 1..4 has input weight .1 k, hidden weight .4 + .1 k, bias .01 k.
LSTMCell scalar_lstm() {
  Rng rng(1);
  LSTMCell cell(1, 1, rng, {.dtype = DType::f64});
  cell.weight_ih.mutable_value().copy_(f64({{.1}, {.2}, {.3}, {.4}}));
  cell.weight_hh.mutable_value().copy_(f64({{.5}, {.6}, {.7}, {.8}}));
  cell.bias_ih.mutable_value().copy_(f64({.01, .02, .03, .04}));
  cell.bias_hh.mutable_value().fill_(0);
  return cell;
}

const Var& h_of(const Var& state) { return state; }
const Var& h_of(const LSTMState& state) { return state.h; }

// A row alone gives what it gives in a batch with any padding: outputs, last states, and the gradient of x.
template <class Layer>
void check_rows_alone() {
  for (DType dtype : {DType::f64, DType::f32}) {
    const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
    Rng rng(2);
    Layer net(3, 4, rng, {.layers = 2, .bidirectional = true, .dtype = dtype});
    const Ints lengths{2, 5, 1};
    Tensor x = normal({3, 6, 3}, dtype, 3), w = normal({3, 6, 8}, dtype, 4);
    x.select(0, 0).slice(0, 2, 6).fill_(not_a_number);  // what stands at pads is nothing
    Tape tape;
    Var leaf = tape.leaf(x);
    auto all = net(leaf, lengths);
    Gradients g = tape.backward(sum(all.output * w) + sum(h_of(all.final_state)));
    for (int64_t b = 0; b < 3; ++b) {
      const int64_t n = lengths[static_cast<size_t>(b)];
      Tape own;
      Var row = own.leaf(x.slice(0, b, b + 1).slice(1, 0, n).clone());
      auto alone = net(row);
      CHECK(close(all.output.value().slice(0, b, b + 1).slice(1, 0, n), alone.output.value(), tolerance));
      CHECK(all_zero(all.output.value().slice(0, b, b + 1).slice(1, n, 6)));
      CHECK(close(h_of(all.final_state).value().slice(1, b, b + 1), h_of(alone.final_state).value(), tolerance));
      Gradients mine =
          own.backward(sum(alone.output * w.slice(0, b, b + 1).slice(1, 0, n)) + sum(h_of(alone.final_state)));
      CHECK(close(g[leaf].slice(0, b, b + 1).slice(1, 0, n), mine[row], tolerance));
      CHECK(all_zero(g[leaf].slice(0, b, b + 1).slice(1, n, 6)));
    }
  }
}

}  // namespace

TEST_SUITE_BEGIN("recurrent");

TEST_CASE("an LSTM's gates stand in the order input and forget and cell and output") {
  LSTMState next = scalar_lstm()(f64({{1.0}}), LSTMState{f64({{.5}}), f64({{-.25}})});
  CHECK(next.h.item() == doctest::Approx(0.1322402387445392).epsilon(1e-14));
  CHECK(next.c.item() == doctest::Approx(0.1916418998609774).epsilon(1e-14));
}

TEST_CASE("a forget bias reaches the second quarter of every layer and direction") {
  Rng rng(5);
  LSTM lstm(3, 2, rng, {.layers = 3, .bidirectional = true, .forget_bias = 1.0});
  REQUIRE(lstm.cells.size() == 6);
  for (const LSTMCell& cell : lstm.cells) {
    Tensor both = (Var(cell.bias_ih.value()) + cell.bias_hh.value()).value();
    for (int64_t i = 0; i < 8; ++i) CHECK((both.at({i}) == 1) == (i >= 2 && i < 4));
  }
  CHECK(says(error_of([&] { LSTMCell(3, 2, rng, {.bias = false, .forget_bias = 1.0}); }), {"lstm", "forget bias"}));
}

TEST_CASE("a row alone is the same row in any batch") {
  check_rows_alone<RNN>();
  check_rows_alone<LSTM>();
  check_rows_alone<GRU>();
}

TEST_CASE("last states have names") {
  Rng rng(6);
  LSTM lstm(3, 4, rng, {.layers = 2, .bidirectional = true});
  LSTM::Result r = lstm(normal({2, 5, 3}, DType::f32, 7), Ints{5, 3});
  CHECK(same_bits(lstm.last(r).h.value(), r.final_state.h.value().select(0, 2)));
  CHECK(same_bits(lstm.last(r, -1, Direction::backward).c.value(), r.final_state.c.value().select(0, 3)));
  CHECK(same_bits(lstm.last(r, 0).h.value(), r.final_state.h.value().select(0, 0)));
  CHECK(same_bits(lstm.last(r).h.value().select(0, 0), r.output.value().select(0, 0).select(0, 4).slice(0, 0, 4)));
  CHECK(says(error_of([&] { lstm.last(r, 2); }), {"lstm", "2"}));
  GRU one(3, 4, rng);
  GRU::Result single = one(normal({2, 5, 3}, DType::f32, 8));
  CHECK(says(error_of([&] { one.last(single, 0, Direction::backward); }), {"gru", "backward"}));
}

TEST_CASE("dropout acts between layers and in training only") {
  Rng rng(9), coins(10);
  LSTM lstm(3, 16, rng, {.layers = 2, .dropout = .5});
  Tensor x = normal({2, 4, 3}, DType::f32, 11);
  Tensor plain = lstm(x).output.value(), again = lstm(x).output.value(), dropped = lstm(x, &coins).output.value();
  CHECK(same_bits(plain, again));
  CHECK_FALSE(same_bits(plain, dropped));
  LSTM single(3, 16, rng, {.dropout = .5});
  CHECK(same_bits(single(x).output.value(), single(x, &coins).output.value()));  // nothing lies between
  CHECK(says(error_of([&] { GRU(3, 4, rng, {.dropout = 1.5}); }), {"gru", "dropout", "1.5"}));
}

TEST_CASE("a relu network computes what its formula says") {
  Rng rng(12);
  RNNCell cell(2, 3, rng, {.activation = RNNActivation::relu, .dtype = DType::f64});
  Tensor x = normal({4, 2}, DType::f64, 13), h = normal({4, 3}, DType::f64, 14);
  Var sum_of_both = matmul(x, cell.weight_ih.value().transpose()) + cell.bias_ih.value() +
                    matmul(h, cell.weight_hh.value().transpose()) + cell.bias_hh.value();
  CHECK(close(cell(x, h).value(), relu(sum_of_both).value(), 1e-14));
}

TEST_CASE("wrong states and lengths are refused by name") {
  Rng rng(15);
  LSTM lstm(3, 4, rng);
  Tensor x = normal({2, 5, 3}, DType::f32, 16), bad = Tensor::zeros({1, 2, 5}), good = Tensor::zeros({1, 2, 4});
  CHECK(says(error_of([&] { lstm(x, Ints{5, 5}, LSTMState{good, bad}); }), {"lstm", "c0", "(1, 2, 5)"}));
  CHECK(says(error_of([&] { lstm(x, Ints{5, 0}); }), {"lstm", "row 1", "length 0"}));
  CHECK(says(error_of([&] { lstm(x, Ints{5}); }), {"lstm", "2 rows"}));
  RNN rnn(3, 4, rng);
  CHECK(says(error_of([&] { rnn(x, Ints{5, 6}); }), {"rnn", "row 1", "length 6"}));
  CHECK(says(error_of([&] { rnn.cells[0](x.select(1, 0), bad.select(0, 0)); }), {"rnn cell", "(2, 5)"}));
}

TEST_CASE("every parameter is listed under PyTorch's name") {
  auto make = [] {
    Rng rng(17);
    return LSTM(3, 4, rng, {.layers = 2, .bidirectional = true});
  };
  CHECK(audit_module(make) == "");
  const LSTM lstm = make();
  const std::vector<NamedParameter> names = named_parameters(lstm);
  CHECK(names.front().name == "weight_ih_l0");
  CHECK(names.back().name == "bias_hh_l1_reverse");
  CHECK(names.size() == 16);
}

TEST_SUITE_END();
