// A sparsely gated mixture of experts in place of one feed-forward layer (Shazeer et al. 2017, arXiv:1701.06538), with
// the top-2 gating and the load-balancing loss of GShard and NLLB (Lepikhin et al. 2020, arXiv:2006.16668; NLLB team
// 2022, arXiv:2207.04672).
//
//   p = softmax(W_g x)                       E experts; a, b: the two with the largest p, ties the lowest index
//   y = p_a / (p_a + p_b) FF_a(x) + p_b / (p_a + p_b) FF_b(x)
//
// Only the chosen experts are computed for a token. There is no noise and no capacity: no token is dropped, and where a
// token goes depends on that token alone, so a row alone equals the row in any batch.
#pragma once

#include <tapedeck/nn/feed_forward.h>

#include <vector>

namespace tapedeck {

// What a mixture gives for x (..., size), and where it sent it.
struct MixtureResult {
  Var output;  // (..., size); 0 where not valid
  // E sum_e f_e m_e, f_e: the share of tokens whose first choice is e, a constant; m_e: the mean of p_e. 1 where the
  // load is even, E where one expert gets everything. A statistic of the whole batch: unlike the output it is not the
  // sum or mean of what its rows give alone. 0 over no tokens.
  Var balance;
  Tensor choice;              // i64 (..., 2): a and b; -1 where not valid
  std::vector<int64_t> load;  // tokens each expert was computed for: (E); sums to twice the valid ones
};

// W_g is gate.weight (E, size), without bias. An expert that no token has chosen gets no gradient (absent where no
// token of any call has chosen it). The choice is constant between the kinks at which p_b equals the third largest p.
//
// Keeps for the backward pass: x, p, the gates, and for each token and chosen expert what the expert keeps, and its
// output.
struct MixtureOfExperts {
  Linear gate;                       // W_g
  std::vector<FeedForward> experts;  // all of one size

  // `count` experts of `hidden` inner units; at least two.
  MixtureOfExperts(int64_t size, int64_t hidden, int64_t count, Rng& rng, const FeedForwardOptions& options = {});

  // x (..., size). valid: boolean (...), true: a token. What is not valid is routed nowhere, counts in nothing and may
  // be anything; undefined: all are. An rng draws the experts' dropout; null: none.
  MixtureResult operator()(Operand x, const Tensor& valid = {}, Rng* rng = nullptr) const;

  static void fields(auto& self, auto&& f) { f("gate", self.gate), f("experts", self.experts); }
};

}  // namespace tapedeck
