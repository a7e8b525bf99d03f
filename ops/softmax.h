// Softmax and its relatives, along one axis. Denominators accumulate in f64; the largest element is subtracted first,
// so nothing overflows.
#pragma once

#include <tapedeck/core/tape.h>

namespace tapedeck {

// y_i = exp x_i / sum_j exp x_j
Var softmax(Operand x, int64_t dim = -1);

// y_i = x_i - ln sum_j exp x_j
Var log_softmax(Operand x, int64_t dim = -1);

// Softmax over the positions where the boolean `mask` (broadcasts to x) is true; exactly 0 elsewhere, with exactly 0
// gradient, whatever stands there. A row without any true position is all 0 with zero gradient, never NaN.
Var masked_softmax(Operand x, Operand mask, int64_t dim = -1);

}  // namespace tapedeck
