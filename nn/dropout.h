// Dropout as a layer.
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/ops/dropout.h>

namespace tapedeck {

// Training mode is an argument: with an rng, elements are dropped with probability p and the others scaled by
// 1 / (1 - p); with null, evaluation, y = x.
struct Dropout {
  double p = 0.5;  // probability of a zero, 0..1

  Var operator()(Operand x, Rng* rng) const { return dropout(x, p, rng); }
  static void fields(auto&, auto&&) {}
};

}  // namespace tapedeck
