// Hard attention: each query reads one value, drawn by the weights of a soft attention layer (Xu et al. 2015,
// arXiv:1502.03044). A draw has no derivative; there are two ways to train through it.
//
// REINFORCE (Williams 1992) scores draws by what came of them:
//
//   AttentionResult soft = attention(query, memory);
//   HardAttention hard = draw_attention(soft, memory, &rng);
//   Var loss = reinforce(losses_of_rows(hard.context), hard.log_p, hard.entropy);   // reinforce: a Reinforce
//
// Straight-through Gumbel-softmax (Jang et al. 2017, arXiv:1611.01144) differentiates a soft draw in its place:
//
//   AttentionResult hard = gumbel_attention(soft, memory, temperature, &rng);
//
// B batch, T queries a row, S source positions, K value size. One query a row has no T axis.
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/nn/attention.h>

namespace tapedeck {

// Every function below draws one word from `rng`; what row b draws for its query t depends on that word, b and t alone.
// Null means evaluation: the largest weight, the first one of equals, without chance.

// The layer; see above.
struct HardAttention {
  Var context;     // (B, T, K): the values drawn
  Tensor weights;  // (B, T, S): 1 at the position drawn, else 0
  Tensor drawn;    // i64 (B, T): the positions
  Var log_p;       // (B, T): ln p of each draw, p = weight / sum of weights
  Var entropy;     // (B, T): -sum p ln p
};

// Draws position j with probability p_j. Positions of weight 0, masked ones among them, are never drawn.
HardAttention draw_attention(const AttentionResult& soft, const Memory& memory, Rng* rng);

// A relaxed draw from weights (..., S), all >= 0: softmax((ln w + g) / temperature), g = -ln(-ln u) with u uniform. The
// lower the temperature, the nearer to one-hot; where w is 0 it is 0. Its largest element is at j with probability
// w_j / sum w. Throws unless temperature > 0.
Var gumbel_softmax(Operand weights, double temperature, Rng& rng);

// Forward exactly one-hot at the largest element along the last axis, the first one of equals; backward the identity.
Var straight_through(Operand soft);

// Reads the value at the largest element of a relaxed draw; gradients are those of the relaxed draw.
AttentionResult gumbel_attention(const AttentionResult& soft, const Memory& memory, double temperature, Rng* rng);

// Settings of Reinforce.
struct ReinforceOptions {
  double decay = .9;   // of the baseline, 0 ... 1, 1 excluded
  double weight = 1;   // of the draws' gradient, lambda_r of the paper
  double entropy = 0;  // reward for entropy, lambda_e: keeps draws from settling too early
};

// Losses of draws, made such that their gradient is, in expectation, that of the expected loss (for weight 1 and
// entropy 0):
//   1/N sum_n [loss_n + weight (loss_n - b) ln p_n - entropy H_n],   (loss_n - b) a constant
// The baseline b, a moving average of the mean losses of the calls before, changes no expectation but makes the
// gradient less noisy.
class Reinforce {
 public:
  // Throws on options outside their range, naming the option.
  explicit Reinforce(const ReinforceOptions& options = {});

  // losses and log_p: (N,); of several draws that led to one loss, log_p is the sum. entropy: (N,), or undefined with
  // weight 0. Throws on other shapes, and on losses that are not finite.
  Var operator()(Operand losses, Operand log_p, const Var& entropy = {});

  double baseline() const { return baseline_; }  // b, for the next call
  void set_baseline(double baseline);            // to continue from a checkpoint; throws unless finite

 private:
  ReinforceOptions options_;
  double baseline_ = 0;
};

}  // namespace tapedeck
