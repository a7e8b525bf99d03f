// Ops that only change shape. All but cat, stack and contiguous give views where strides allow: no data moves.
#pragma once

#include <tapedeck/core/tape.h>

#include <vector>

namespace tapedeck {

// Row-major order of elements is kept. One extent may be -1: computed from the others.
Var reshape(Operand x, const Shape& shape);

// Swaps two axes; the last two by default.
Var transpose(Operand x, int64_t dim0 = -2, int64_t dim1 = -1);

// Axis i of the result is axis order[i] of x: y.shape()[i] = x.shape()[order[i]].
Var permute(Operand x, std::initializer_list<int64_t> order);
Var permute(Operand x, std::span<const int64_t> order);

// Repeats axes of extent 1, and adds leading axes, to reach `shape`.
Var expand(Operand x, const Shape& shape);

// Adds an axis of extent 1 before axis `dim` (-1: at the end); squeeze drops one, which must have extent 1.
Var unsqueeze(Operand x, int64_t dim);
Var squeeze(Operand x, int64_t dim);

// x[..., start:stop:step, ...] by Python's rules (ends clip, negative counts from the end); step >= 1. Keeps the axis.
Var slice(Operand x, int64_t dim, int64_t start, int64_t stop, int64_t step = 1);

// x[..., index, ...]: drops the axis.
Var select(Operand x, int64_t dim, int64_t index);

// Joins along an existing axis; the other extents must agree.
Var cat(std::span<const Var> parts, int64_t dim = 0, Site site = {__builtin_FILE(), __builtin_LINE()});
Var cat(std::initializer_list<Operand> parts, int64_t dim = 0);

// Joins along a new axis; all shapes must be equal.
Var stack(std::span<const Var> parts, int64_t dim = 0, Site site = {__builtin_FILE(), __builtin_LINE()});
Var stack(std::initializer_list<Operand> parts, int64_t dim = 0);

// Cuts along `dim` into slices of `size` (the last may be smaller), or of the given sizes, which must add up to the
// extent. Keeps the axis; select drops it.
std::vector<Var> split(Operand x, int64_t size, int64_t dim = 0);
std::vector<Var> split(Operand x, std::initializer_list<int64_t> sizes, int64_t dim = 0);

// `count` slices along `dim`, as equal as possible: the first ones may be one longer. Throws unless 1 <= count <=
// extent.
std::vector<Var> chunk(Operand x, int64_t count, int64_t dim = 0);

// The order along one axis reversed; or moved on by `shift` places, what falls off one end coming in at the other.
Var flip(Operand x, int64_t dim);
Var roll(Operand x, int64_t shift, int64_t dim);

// `before` and `after` more elements of `value` along one axis; both >= 0.
Var pad(Operand x, int64_t dim, int64_t before, int64_t after, Scalar value = 0);

// x itself if row-major, else a row-major copy.
Var contiguous(Operand x);

// The adjoint of slice: zeros of `shape`, with x in the places that slice(., dim, start, stop, step) would read.
Var slice_scatter(Operand x, const Shape& shape, int64_t dim, int64_t start, int64_t step);

}  // namespace tapedeck
