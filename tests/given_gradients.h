// Gradients of chosen values, for tests of what consumes them.
#pragma once

#include <tapedeck/core/tape.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/reduce.h>

#include <utility>
#include <vector>

namespace tapedeck {

// The gradient of sum_i sum(p_i * g_i) with respect to p_i is g_i.
inline Gradients given_gradients(const std::vector<std::pair<Parameter, Tensor>>& wanted) {
  Tape tape;
  Gradients result;
  for (const auto& [parameter, gradient] : wanted) result += tape.backward(sum(parameter * gradient), Keep::tape);
  return result;
}

}  // namespace tapedeck
