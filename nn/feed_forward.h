// The layer between attentions of a Transformer (Vaswani et al. 2017, arXiv:1706.03762).
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/nn/linear.h>

namespace tapedeck {

// The nonlinearity of a feed-forward layer; gelu in its erf form.
enum class Activation { relu, gelu };

// Settings of FeedForward.
struct FeedForwardOptions {
  Activation activation = Activation::relu;  // between the two layers
  double dropout = 0;                        // behind the activation
  DType dtype = DType::f32;                  // of the parameters
};

// The position-wise layer of the Transformer (Vaswani et al. 2017, arXiv:1706.03762, section 3.3):
//   y = W_2 f(W_1 x + b_1) + b_2,   f = relu or gelu;   x (..., size) -> (..., size)
// W_1 (hidden, size), W_2 (size, hidden). An rng draws the dropout of f(...); null: none. Keeps for the backward pass
// x and f(...); with gelu W_1 x + b_1 too; with dropout its mask and what it leaves of f(...).
struct FeedForward {
  Linear linear1, linear2;  // W_1 and W_2
  Activation activation;    // f
  double dropout;           // behind f

  FeedForward(int64_t size, int64_t hidden, Rng& rng, const FeedForwardOptions& options = {});
  Var operator()(Operand x, Rng* rng = nullptr) const;  // y
  static void fields(auto& self, auto&& f) { f("linear1", self.linear1), f("linear2", self.linear2); }
};

}  // namespace tapedeck
