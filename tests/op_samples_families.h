// The families of the table, one .cpp file each, and what they share. For these files only.
#pragma once

#include "op_samples.h"

#include <tapedeck/ops/ops.h>

#include <limits>

namespace tapedeck::samples {

void add_elementwise(std::vector<Sample>& table);
void add_reductions(std::vector<Sample>& table);
void add_shapes(std::vector<Sample>& table);
void add_indexing(std::vector<Sample>& table);
void add_products(std::vector<Sample>& table);
void add_losses(std::vector<Sample>& table);

namespace values {

inline constexpr double inf = std::numeric_limits<double>::infinity();
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr DType f32 = DType::f32, i64 = DType::i64, boolean = DType::boolean;

inline Tensor counting(const Shape& shape) { return Tensor::arange(shape.numel(), DType::f64).reshape(shape); }
inline Tensor zeros(const Shape& shape) { return Tensor::zeros(shape, DType::f64); }
inline Tensor ones(const Shape& shape) { return Tensor::ones(shape, DType::f64); }

inline const Bad not_floating{.shapes = {{2, 3}}, .dtypes = {i64}, .says = {"i64"}, .names_shapes = false};

}  // namespace values
}  // namespace tapedeck::samples
