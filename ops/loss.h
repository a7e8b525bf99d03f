// Losses. Shapes of predictions and targets must match exactly; nothing broadcasts.
#pragma once

#include <tapedeck/core/tape.h>

#include <optional>

namespace tapedeck {

enum class Reduction { mean, sum, none };

struct CrossEntropyOptions {
  std::optional<int64_t> ignore_index =
      std::nullopt;            // targets with this id count nowhere; the class stays in the softmax
  double label_smoothing = 0;  // e in 0..1
  Reduction reduction = Reduction::mean;
};

// Cross entropy of logits (..., C) against class ids (...), i64:
//   l = -(1 - e) log p_target - e / C sum_c log p_c,   p = softmax(logits)
// mean divides the sum by the number of targets not ignored (0 with zero gradients if there is none); none has the
// shape of the targets, with 0 at ignored ones. A target outside 0..C-1 that is not ignored throws, naming position
// and value.
Var cross_entropy(Operand logits, Operand targets, const CrossEntropyOptions& options = {});

}  // namespace tapedeck
