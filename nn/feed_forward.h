#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/nn/linear.h>

namespace tapedeck {

enum class Activation { relu, gelu };

struct FeedForwardOptions {
  Activation activation = Activation::relu;
  double dropout = 0;  // between the two layers
  DType dtype = DType::f32;
};

// The position-wise layer of the Transformer (Vaswani et al. 2017, arXiv:1706.03762, section 3.3):
//   y = W_2 f(W_1 x + b_1) + b_2,   f = relu or gelu;   x (..., size) -> (..., size)
// W_1 (hidden, size), W_2 (size, hidden). An rng draws the dropout of f(...); null: none.
struct FeedForward {
  Linear linear1, linear2;
  Activation activation;
  double dropout;  // between the two layers

  FeedForward(int64_t size, int64_t hidden, Rng& rng, const FeedForwardOptions& options = {});
  Var operator()(Operand x, Rng* rng = nullptr) const;
  static void fields(auto& self, auto&& f) { f("linear1", self.linear1), f("linear2", self.linear2); }
};

}  // namespace tapedeck
