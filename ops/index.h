// Ops that pick elements by i64 indices. Indices are checked in release builds too and never count from the end.
#pragma once

#include <tapedeck/core/tape.h>

#include <optional>

namespace tapedeck {

// y = weight[ids]: weight (V, D), ids of any shape (...) -> (..., D). Repeated ids add up in the gradient. No gradient
// reaches row `padding_idx` through the lookup; its values are used as they are. Throws on an id outside 0..V-1,
// naming position and value.
Var embedding(Operand weight, Operand ids, std::optional<int64_t> padding_idx = std::nullopt);

// y[i][j][k] = x[i][index[i][j][k]][k] for dim = 1; index has x's rank, and at most its extents on the other axes.
Var gather(Operand x, int64_t dim, Operand index);

// y[..., j, ...] = x[..., index[j], ...] along `dim`; index has rank 1.
Var index_select(Operand x, int64_t dim, Operand index);

// x with src added where index points along `dim`: y[index[i][j]][j] += src[i][j] for dim = 0. Repeated indices add up.
// Floating; index and src have one shape.
Var scatter_add(Operand x, int64_t dim, Operand index, Operand src);

// ids (...) -> (..., classes): 1 at the id, else 0. No derivative.
Var one_hot(Operand ids, int64_t classes, DType dtype = DType::f32);

// In place, on Tensors only: row index[j] along `dim` of `target` is set to row j of `source`, or added to it. Repeated
// indices: the last one wins, or all add up.
void index_put_(Tensor& target, int64_t dim, const Tensor& index, const Tensor& source, bool accumulate = false);

// Adjoints of the above; zeros, to which x is added where the forward op read. Repeated indices add up.
Var gather_adjoint(Operand x, const Shape& shape, int64_t dim, Operand index);
Var index_add(Operand x, int64_t extent, int64_t dim, Operand index);  // extent: of the result along `dim`

}  // namespace tapedeck
