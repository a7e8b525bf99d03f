// What kernels around a GRU share: one step, forward and backward, and dense matrices. Internal: for .cpp files.
#pragma once

#include <tapedeck/core/blas.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/core/tensor.h>

#include <algorithm>

namespace tapedeck::fused {

// One step of `rows` rows. gates (rows, 3H) holds W_i x + b_i and becomes r, z, n; hidden (rows, 3H) holds
// W_h h + b_h, whose candidate part is kept in `candidate` (rows, H).
template <class T>
TAPEDECK_KERNEL void step_forward(int64_t rows, int64_t H, T* gates, const T* hidden, const T* before, T* candidate,
                                  T* after) {
  for (int64_t k = 0; k < rows; ++k) {
    simd::each_vector<T>(H, [&](auto at) TAPEDECK_LANES {
      const auto r = simd::sigmoid(at.load(gates) + at.load(hidden));
      const auto z = simd::sigmoid(at.load(gates + H) + at.load(hidden + H));
      const auto c = at.load(hidden + 2 * H);
      const auto n = simd::tanh(at.load(gates + 2 * H) + r * c);
      at.store(gates, r), at.store(gates + H, z), at.store(gates + 2 * H, n);
      at.store(candidate, c);
      at.store(after, n + z * (at.load(before) - n));
    });
    gates += 3 * H, hidden += 3 * H, before += H, candidate += H, after += H;
  }
}

// The same step backwards: dh (rows, H), the gradient of the state after it, becomes the part of the gradient of the
// state before it that does not go through the product; d_input and d_hidden (rows, 3H) are those of the gates.
template <class T>
TAPEDECK_KERNEL void step_backward(int64_t rows, int64_t H, const T* gates, const T* candidate, const T* before, T* dh,
                                   T* d_input, T* d_hidden) {
  for (int64_t k = 0; k < rows; ++k) {
    simd::each_vector<T>(H, [&](auto at) TAPEDECK_LANES {
      const auto r = at.load(gates), z = at.load(gates + H), n = at.load(gates + 2 * H), g = at.load(dh);
      const auto dn = g * (T(1) - z) * (T(1) - n * n);
      const auto dz = g * (at.load(before) - n) * z * (T(1) - z);
      const auto dr = dn * at.load(candidate) * r * (T(1) - r);
      at.store(dh, g * z);
      at.store(d_input, dr), at.store(d_input + H, dz), at.store(d_input + 2 * H, dn);
      at.store(d_hidden, dr), at.store(d_hidden + H, dz), at.store(d_hidden + 2 * H, dn * r);
    });
    gates += 3 * H, candidate += H, before += H, dh += H, d_input += 3 * H, d_hidden += 3 * H;
  }
}

template <class T>
blas::Matrix<T> rows_of(const T* p, int64_t rows, int64_t cols) {
  return {p, rows, cols, cols, 1};
}
template <class T>
blas::Matrix<T> transposed(const T* p, int64_t rows, int64_t cols) {  // of a dense (cols, rows) matrix
  return {p, rows, cols, 1, rows};
}

template <class T>
void repeat_row(T* to, const T* row, int64_t rows, int64_t n) {
  for (int64_t i = 0; i < rows; ++i, to += n) std::copy_n(row, n, to);
}

inline Tensor matrix(int64_t rows, int64_t cols, DType dtype) { return Tensor::empty({rows, cols}, dtype); }

// Sums over the rows of a dense (rows, n) matrix, in f64.
template <class T>
Tensor column_sums(const T* x, int64_t rows, int64_t n, DType dtype) {
  CachedVector<double> sums(static_cast<size_t>(n), 0.0);
  for (int64_t i = 0; i < rows; ++i, x += n) {
    for (int64_t j = 0; j < n; ++j) sums[static_cast<size_t>(j)] += static_cast<double>(x[j]);
  }
  Tensor result = Tensor::empty({n}, dtype);
  T* out = result.mutable_data<T>();
  for (int64_t j = 0; j < n; ++j) out[j] = static_cast<T>(sums[static_cast<size_t>(j)]);
  return result;
}

}  // namespace tapedeck::fused
