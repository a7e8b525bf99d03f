// Matrix products, all by CBLAS, which reads transposed and strided operands where they are.
#pragma once

#include <tapedeck/core/tape.h>

namespace tapedeck {

// NumPy's rules: (..., M, K) @ (..., K, N) -> (..., M, N), leading axes broadcast; a vector on the left is a row, on
// the right a column, and its axis is dropped again. Floating, dtypes equal.
Var matmul(Operand a, Operand b);

// Batched product without broadcasting: (B, M, K) @ (B, K, N) -> (B, M, N).
Var bmm(Operand a, Operand b);

// y = x W^T + b: x (..., in), weight (out, in), bias (out) or none -> (..., out).
Var linear(Operand x, Operand weight, Operand bias);
Var linear(Operand x, Operand weight);

// Einstein summation of two operands: einsum("bij,bjk->bik", a, b). A letter names an axis; letters that are not in the
// result are summed over. Without "->" the result has the letters that occur once, in alphabetical order. Throws on a
// letter that occurs twice in one operand, on extents that disagree, and on a result letter that no operand has.
Var einsum(std::string_view equation, Operand a, Operand b);

}  // namespace tapedeck
