// The linear layer.
#pragma once

#include <tapedeck/nn/init.h>
#include <tapedeck/ops/matmul.h>

namespace tapedeck {

// Settings of Linear.
struct LinearOptions {
  bool bias = true;          // false: the layer has none
  DType dtype = DType::f32;  // of the parameters
};

// y = x W^T + b: x (..., in) -> (..., out). W (out, in) and b (out) start as U(-1/sqrt(in), 1/sqrt(in)).
struct Linear {
  Parameter weight, bias;  // (out, in), (out); bias is absent with .bias = false

  Linear(int64_t in, int64_t out, Rng& rng, LinearOptions options = {});
  Var operator()(Operand x) const;
  static void fields(auto& self, auto&& f) { f("weight", self.weight), f("bias", self.bias); }
};

}  // namespace tapedeck
