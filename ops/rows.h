// Row kernels that softmax and cross entropy share. Internal: for .cpp files, inside kernels.
#pragma once

#include <tapedeck/core/simd.h>

#include <cstdint>
#include <limits>

namespace tapedeck::rows {

// Sum of the first n lanes, in f64.
template <class T>
TAPEDECK_INLINE double sum_lanes(simd::Vec<T> v) {
  double total = 0;
  for (size_t i = 0; i < simd::Lanes<T>::width; ++i) total += static_cast<double>(v[i]);
  return total;
}

template <class T>
TAPEDECK_INLINE T row_max(const T* x, int64_t n) {
  T top = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < n; ++i) top = x[i] > top || x[i] != x[i] ? x[i] : top;
  return top;
}

// y = exp(x - top); returns the sum.
template <class T>
TAPEDECK_INLINE double exp_row(T* y, const T* x, T top, int64_t n) {
  constexpr int64_t width = static_cast<int64_t>(simd::Lanes<T>::width);
  double total = 0;
  int64_t i = 0;
  for (; i + width <= n; i += width) {
    simd::Vec<T> e = simd::exp(simd::load(x + i) - top);
    simd::store(y + i, e);
    total += sum_lanes<T>(e);
  }
  if (i < n) {
    simd::Vec<T> e = simd::exp(simd::load(x + i, static_cast<size_t>(n - i)) - top);
    simd::store(y + i, e, static_cast<size_t>(n - i));
    for (int64_t j = i; j < n; ++j) total += static_cast<double>(y[j]);
  }
  return total;
}

// The same sum without keeping the terms.
template <class T>
TAPEDECK_INLINE double exp_sum(const T* x, T top, int64_t n) {
  constexpr int64_t width = static_cast<int64_t>(simd::Lanes<T>::width);
  double total = 0;
  int64_t i = 0;
  for (; i + width <= n; i += width) total += sum_lanes<T>(simd::exp(simd::load(x + i) - top));
  for (; i < n; ++i) total += static_cast<double>(simd::exp(static_cast<T>(x[i] - top)));
  return total;
}

}  // namespace tapedeck::rows
