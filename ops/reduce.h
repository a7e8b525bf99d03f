// Reductions over any axes: one (sum(x, -1)), several (sum(x, {0, 2})) or, by default, all. With keepdim the reduced
// axes stay with extent 1.
#pragma once

#include <tapedeck/core/tape.h>

namespace tapedeck {

// Sum; f32 accumulates in f64. 0 over no elements. f32, f64 or i64.
Var sum(Operand x, const Dims& dims = all_dims, bool keepdim = false);

// Sum divided by the number of elements. Floating; throws over no elements.
Var mean(Operand x, const Dims& dims = all_dims, bool keepdim = false);

// Largest element; NaN if there is one. Ties share the gradient evenly. Floating or i64; throws over no elements.
Var max(Operand x, const Dims& dims = all_dims, bool keepdim = false);

// Index of the largest element along one axis, the lowest on ties; i64, no derivative. NaN throws.
Var argmax(Operand x, int64_t dim = -1, bool keepdim = false);

// ln sum exp x, without overflow. -inf over no elements or where all are -inf (there with zero gradient). Floating.
Var logsumexp(Operand x, const Dims& dims = all_dims, bool keepdim = false);

}  // namespace tapedeck
