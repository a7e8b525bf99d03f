// The pyramidal and the residual LSTM against their layers put together by hand.
#include <tapedeck/nn/pyramidal_lstm.h>
#include <tapedeck/nn/residual_lstm.h>
#include <tapedeck/ops/ops.h>

#include "module_audit.h"
#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

using Lengths = CachedVector<int64_t>;

// One row of x, cut to its length.
Tensor row_of(const Tensor& x, int64_t b, int64_t length) { return x.slice(0, b, b + 1).slice(1, 0, length).clone(); }

// x with NaN after each row's length: what stands there must not matter.
Tensor spoiled(const Tensor& x, const Lengths& lengths) {
  Tensor result = x.clone();
  for (size_t b = 0; b < lengths.size(); ++b) {
    result.select(0, static_cast<int64_t>(b)).slice(0, lengths[b], x.size(1)).fill_(not_a_number);
  }
  return result;
}

// Rows alone give what they give in a batch: outputs and gradients of x and of the weights. outputs(x, lengths) ->
// output (B, T', H) and the state's parts (_, B, H).
template <class M, class Outputs>
void check_rows(const M& module, int64_t input, const Outputs& outputs) {
  const Lengths lengths = {5, 1, 7, 2, 4};
  const Tensor x = spoiled(normal({5, 7, input}, DType::f64, 5), lengths);
  Tape tape;
  Var leaf = tape.leaf(x);
  const std::vector<Var> together = outputs(leaf, lengths);
  Var total;
  for (const Var& y : together) total = total.defined() ? total + sum(square(y)) : sum(square(y));
  Gradients grads = tape.backward(total), sums;
  for (int64_t b = 0; b < 5; ++b) {
    CAPTURE(b);
    const int64_t n = lengths[static_cast<size_t>(b)];
    Tape one;
    Var alone = one.leaf(row_of(x, b, n));
    const std::vector<Var> single = outputs(alone, {n});
    const Tensor y = together[0].value().select(0, b), wanted = single[0].value().select(0, 0);
    CHECK(distance(y.slice(0, 0, wanted.size(0)), wanted) < 1e-12);
    CHECK(all_zero(y.slice(0, wanted.size(0), y.size(0))));
    Var part = sum(square(single[0]));
    for (size_t k = 1; k < single.size(); ++k) {
      CHECK(distance(together[k].value().slice(1, b, b + 1), single[k].value()) < 1e-12);
      part = part + sum(square(single[k]));
    }
    Gradients of_row = one.backward(part);
    CHECK(distance(grads[leaf].select(0, b).slice(0, 0, n), of_row[alone].select(0, 0)) < 1e-12);
    CHECK(all_zero(grads[leaf].select(0, b).slice(0, n, 7)));
    sums += of_row;
  }
  for (const NamedParameter& p : named_parameters(module)) {
    CAPTURE(p.name);
    CHECK(distance(grads[p.parameter], sums[p.parameter]) < 1e-12);
  }
}

}  // namespace

TEST_SUITE("encoders") {
TEST_CASE("pyramidal lstm: each layer reads pairs of the layer below") {
  Rng rng(1);
  const PyramidalLSTM lstm(3, 2, rng, {.halvings = 2, .dtype = DType::f64});
  REQUIRE(lstm.layers.size() == 3);
  const Tensor x = normal({2, 7, 3}, DType::f64, 2);
  const PyramidalLSTM::Result result = lstm(x, Lengths{7, 5});
  CHECK(result.lengths == Lengths{2, 2});
  CHECK(result.output.shape() == Shape{2, 2, 4});
  Tensor y = x;
  Lengths lengths = {7, 5};
  LSTM::Result read;
  for (size_t k = 0; k < 3; ++k) {
    if (k > 0) {
      const int64_t T = y.size(1), D = y.size(2);
      Tensor pairs = Tensor::zeros({2, (T + 1) / 2, 2 * D}, DType::f64);
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t t = 0; t < T; ++t) {
          for (int64_t d = 0; d < D; ++d) pairs.set({b, t / 2, t % 2 * D + d}, y.at({b, t, d}));
        }
      }
      y = pairs;
      for (int64_t& n : lengths) n = (n + 1) / 2;
    }
    read = lstm.layers[k](y, lengths);
    y = read.output.value();
  }
  CHECK(same_bits(result.output.value(), y));
  CHECK(same_bits(result.final_state.h.value(), read.final_state.h.value()));
  CHECK(same_bits(result.final_state.c.value(), read.final_state.c.value()));
}

TEST_CASE("pyramidal lstm: lengths are halved upwards and a step alone is enough") {
  Rng rng(1);
  const PyramidalLSTM lstm(1, 1, rng, {.halvings = 3, .dtype = DType::f64});
  const Tensor x = normal({9, 9, 1}, DType::f64, 2);
  CHECK(lstm(x, Lengths{1, 2, 3, 4, 5, 6, 7, 8, 9}).lengths == Lengths{1, 1, 1, 1, 1, 1, 1, 1, 2});
  CHECK(lstm(x.slice(1, 0, 1), Lengths(9, 1)).output.shape() == Shape{9, 1, 2});
  CHECK(same_bits(join_pairs(range({1, 3, 1})).value(), f64({{{0, 1}, {2, 0}}})));
}

TEST_CASE("pyramidal lstm: a row alone equals the row in a batch and pads change nothing") {
  Rng rng(3);
  for (int64_t halvings : {1, 2}) {
    const PyramidalLSTM lstm(3, 2, rng, {.halvings = halvings, .dtype = DType::f64});
    check_rows(lstm, 3, [&](const Var& x, const Lengths& lengths) -> std::vector<Var> {
      PyramidalLSTM::Result r = lstm(x, lengths);
      return {r.output, r.final_state.h, r.final_state.c};
    });
  }
}

TEST_CASE("residual lstm: layers from the third on add what they read") {
  Rng rng(4);
  const ResidualLSTM lstm(3, 2, rng, {.layers = 4, .dtype = DType::f64});
  const Tensor x = normal({2, 5, 3}, DType::f64, 2);
  const Lengths lengths = {5, 3};
  const ResidualLSTM::Result result = lstm(x, lengths);
  Var y0 = lstm.layers[0](x, lengths).output, y1 = lstm.layers[1](y0, lengths).output,
      y2 = lstm.layers[2](y1, lengths).output + y1, y3 = lstm.layers[3](y2, lengths).output + y2;
  CHECK(y0.shape() == Shape{2, 5, 4});
  CHECK(same_bits(result.output.value(), y3.value()));
  REQUIRE(result.final_states.size() == 4);
  CHECK(result.final_states[0].h.shape() == Shape{2, 2, 2});
  CHECK(same_bits(result.final_states[3].c.value(), lstm.layers[3](y2, lengths).final_state.c.value()));
}

TEST_CASE("residual lstm: a row alone equals the row in a batch and pads change nothing") {
  Rng rng(5);
  const ResidualLSTM lstm(3, 2, rng, {.layers = 3, .dtype = DType::f64});
  check_rows(lstm, 3, [&](const Var& x, const Lengths& lengths) -> std::vector<Var> {
    ResidualLSTM::Result r = lstm(x, lengths);
    return {r.output, r.final_states[0].h, r.final_states[1].c, r.final_states[2].h};
  });
}

TEST_CASE("encoders drop in training only and take their options") {
  Rng rng(6);
  const Tensor x = normal({2, 4, 3}, DType::f64, 2);
  const Lengths lengths = {4, 4};
  const PyramidalLSTM pyramid(3, 2, rng, {.halvings = 1, .dropout = .5, .dtype = DType::f64});
  const ResidualLSTM deep(3, 2, rng, {.layers = 3, .dropout = .5, .forget_bias = 1, .dtype = DType::f64});
  Rng coins(7), same_coins(7), other_coins(8);
  const Tensor dropped = pyramid(x, lengths, &coins).output.value();
  CHECK(same_bits(pyramid(x, lengths, &same_coins).output.value(), dropped));
  CHECK_FALSE(same_bits(pyramid(x, lengths, &other_coins).output.value(), dropped));
  CHECK_FALSE(same_bits(pyramid(x, lengths).output.value(), dropped));
  CHECK_FALSE(same_bits(deep(x, lengths, &coins).output.value(), deep(x, lengths).output.value()));
  CHECK(deep.layers[2].cells[0].bias_ih.value().at({2}) == 1);
  CHECK(says(error_of([&] { PyramidalLSTM(3, 2, rng, {.halvings = 0}); }), {"pyramidal lstm", "halvings", "0"}));
  CHECK(says(error_of([&] { PyramidalLSTM(3, 2, rng, {.dropout = 2}); }), {"pyramidal lstm", "dropout", "2"}));
  CHECK(says(error_of([&] { ResidualLSTM(3, 2, rng, {.layers = 1}); }), {"residual lstm", "layers", "1"}));
  CHECK(says(error_of([&] { ResidualLSTM(3, 2, rng, {.dropout = -1}); }), {"residual lstm", "dropout", "-1"}));
  CHECK(says(error_of([&] { pyramid(x, Lengths{5, 1}); }), {"row 0", "5"}));
  CHECK(says(error_of([&] { join_pairs(range({2, 3})); }), {"join_pairs", "(2, 3)"}));
}

TEST_CASE("encoders list their parameters") {
  CHECK(audit_module([] {
          Rng rng(1);
          return PyramidalLSTM(3, 2, rng);
        }) == "");
  CHECK(audit_module([] {
          Rng rng(1);
          return ResidualLSTM(3, 2, rng);
        }) == "");
}
}
