#include <tapedeck/nn/layer_norm.h>
#include <tapedeck/nn/module.h>
#include <tapedeck/ops/ops.h>

#include "module_audit.h"
#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

TEST_SUITE("layer_norm") {
TEST_CASE("layer norm: parameters and their names and first values") {
  const LayerNorm layer(3, {.dtype = DType::f64}), bare(3, {.bias = false});
  std::vector<NamedParameter> parameters = named_parameters(layer);
  REQUIRE(parameters.size() == 2);
  CHECK(parameters[0].name == "weight");
  CHECK(parameters[1].name == "bias");
  CHECK(same_bits(layer.weight.value(), Tensor::ones({3}, DType::f64)));
  CHECK(same_bits(layer.bias.value(), Tensor::zeros({3}, DType::f64)));
  CHECK(parameter_count(bare) == 3);
  CHECK(bare.weight.dtype() == DType::f32);
  CHECK(audit_module([] { return LayerNorm(3); }) == "");
  CHECK(audit_module([] { return LayerNorm(3, {.bias = false}); }) == "");
}

TEST_CASE("layer norm: the variance is biased and eps is 1e-5") {
  // {1, 2, 3}: mean 2, variance 2/3; a constant row is 0
  const double y = 1 / std::sqrt(2. / 3 + 1e-5);
  const Tensor x = f64({{1, 2, 3}, {5, 5, 5}}), expected = f64({{-y, 0, y}, {0, 0, 0}});
  CHECK(close(LayerNorm(3, {.dtype = DType::f64})(x).value(), expected, 1e-14));
  CHECK(close(LayerNorm(3, {.bias = false, .dtype = DType::f64})(x).value(), expected, 1e-14));
  CHECK(close(LayerNorm(3)(x.to(DType::f32)).value(), expected.to(DType::f32), 1e-6));
  CHECK(close(layer_norm(x, Tensor::ones({3}, DType::f64)).value(), expected, 1e-14));
}

TEST_CASE("layer norm: a constant row and a single row have finite gradients") {
  const LayerNorm layer(3, {.dtype = DType::f64});
  Tape tape;
  Var x = tape.leaf(f64({{5, 5, 5}, {1, 2, 4}}));
  Gradients grads = tape.backward(sum(layer(x) * f64({{1, 2, 3}, {1, 2, 3}})));
  // g is centred by the mean and scaled by 1 / sqrt(eps)
  CHECK(close(grads[x].select(0, 0), (f64({-1, 0, 1}) * (1 / std::sqrt(1e-5))).value(), 1e-12));
  CHECK(std::isfinite(norm(grads[x]).item()));
  CHECK(same_bits(grads[layer.bias], f64({2, 4, 6})));
}

TEST_CASE("layer norm: wrong sizes and options and inputs are errors") {
  CHECK(says(error_of([] { LayerNorm(0); }), {"LayerNorm", "size", "0"}));
  CHECK(says(error_of([] { LayerNorm(3, {.eps = -1}); }), {"LayerNorm", "eps", "-1"}));
  const LayerNorm layer(3);
  CHECK(says(error_of([&] { layer(Tensor::zeros({2, 4})); }), {"layer_norm", "(2, 4)", "(3,)"}));
  CHECK(says(error_of([&] { layer(Tensor::zeros({2, 3}, DType::f64)); }), {"layer_norm", "f64", "f32"}));
}
}
