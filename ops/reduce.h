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

// Smallest element, by the same rules.
Var min(Operand x, const Dims& dims = all_dims, bool keepdim = false);

// Mean squared distance from the mean, times n / (n - correction); floating. Throws where n <= correction.
Var var(Operand x, const Dims& dims = all_dims, int64_t correction = 1, bool keepdim = false);

// 2-norm, sqrt(sum x^2), accumulated in f64. Its gradient at 0 is 0. Floating.
Var norm(Operand x, const Dims& dims = all_dims, bool keepdim = false);

// Whether any, or every, element of a boolean tensor is true (over no elements: false, and true). No derivative.
Var any(Operand x, const Dims& dims = all_dims, bool keepdim = false);
Var all(Operand x, const Dims& dims = all_dims, bool keepdim = false);

// y_i = x_0 + ... + x_i along one axis; f32 accumulates in f64. Floating or i64.
Var cumsum(Operand x, int64_t dim);

// Values in order along one axis, and where they stood (i64, no derivative). Equal ones keep their order: the lowest
// index first, in both directions. NaN throws.
struct Ordered {
  Var values, indices;  // of one shape
};
Ordered sort(Operand x, int64_t dim = -1, bool descending = false);

// The k largest along one axis, the largest first; ties: the lowest index. Throws unless 0 <= k <= extent.
Ordered topk(Operand x, int64_t k, int64_t dim = -1);

// Index of the largest element along one axis, the lowest on ties; i64, no derivative. NaN throws.
Var argmax(Operand x, int64_t dim = -1, bool keepdim = false);

// ln sum exp x, without overflow. -inf over no elements or where all are -inf (there with zero gradient). Floating.
Var logsumexp(Operand x, const Dims& dims = all_dims, bool keepdim = false);

}  // namespace tapedeck
