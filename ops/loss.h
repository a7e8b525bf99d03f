// Losses. Shapes of predictions and targets must match exactly; nothing broadcasts.
#pragma once

#include <tapedeck/core/tape.h>

#include <optional>

namespace tapedeck {

// What becomes of the elements' losses: their mean, their sum, or nothing.
enum class Reduction { mean, sum, none };

// Settings of cross_entropy.
struct CrossEntropyOptions {
  std::optional<int64_t> ignore_index =
      std::nullopt;                       // targets with this id count nowhere; the class stays in the softmax
  double label_smoothing = 0;             // e in 0..1
  Reduction reduction = Reduction::mean;  // see there
};

// Cross entropy of logits (..., C) against class ids (...), i64:
//   l = -(1 - e) log p_target - e / C sum_c log p_c,   p = softmax(logits)
// mean divides the sum by the number of targets not ignored (0 with zero gradients if there is none); none has the
// shape of the targets, with 0 at ignored ones. A target outside 0..C-1 that is not ignored throws, naming position
// and value.
Var cross_entropy(Operand logits, Operand targets, const CrossEntropyOptions& options = {});

// Negative log likelihood of log probabilities (..., C) against class ids (...): l = -log_p_target. Options as above,
// without label smoothing.
Var nll(Operand log_p, Operand targets, std::optional<int64_t> ignore_index = std::nullopt,
        Reduction reduction = Reduction::mean);

// Elementwise losses of floating tensors of one shape and dtype; mean divides by the number of elements (0 over none).
Var mse(Operand x, Operand target, Reduction reduction = Reduction::mean);  // (x - t)^2
Var l1(Operand x, Operand target, Reduction reduction = Reduction::mean);   // |x - t|
// Binary cross entropy of sigmoid(x) with t in 0..1, without overflow: softplus(x) - x t
Var bce_with_logits(Operand x, Operand target, Reduction reduction = Reduction::mean);
// Kullback-Leibler divergence of probabilities `target` from log probabilities x: t (ln t - x), 0 where t = 0.
Var kl_div(Operand x, Operand target, Reduction reduction = Reduction::mean);

}  // namespace tapedeck
