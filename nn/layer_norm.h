// Layer normalisation.
#pragma once

#include <tapedeck/core/tape.h>

namespace tapedeck {

// Settings of LayerNorm.
struct LayerNormOptions {
  double eps = 1e-5;         // added to the variance, >= 0
  bool bias = true;          // false: the layer has none
  DType dtype = DType::f32;  // of the parameters
};

// y = (x - mean) / sqrt(variance + eps) * weight + bias over the last axis, with the biased variance: x (..., size).
// The weight (size) starts as ones, the bias (size) as zeros. (Ba et al. 2016, arXiv:1607.06450)
struct LayerNorm {
  Parameter weight, bias;  // bias is absent with .bias = false
  double eps;              // added to the variance

  explicit LayerNorm(int64_t size, LayerNormOptions options = {});
  Var operator()(Operand x) const;
  static void fields(auto& self, auto&& f) { f("weight", self.weight), f("bias", self.bias); }
};

}  // namespace tapedeck
