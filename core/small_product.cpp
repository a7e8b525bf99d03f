#include <tapedeck/core/simd.h>
#include <tapedeck/core/small_product.h>

#include <algorithm>
#include <utility>

namespace tapedeck::blas {
namespace {

// Vectors of so many bytes; simd.h has one size for all machines, but this kernel gains from the widest.
template <class T, int bytes>
struct Wide {
  typedef T type __attribute__((vector_size(bytes)));
  static constexpr size_t lanes = bytes / sizeof(T);
  static constexpr int64_t width = lanes;
};

constexpr size_t block_inner = 256;  // of B at once: 256 x 2 vectors stay in the first-level cache

// The first n < 16 elements, in pieces of powers of two.
template <class T>
TAPEDECK_INLINE void copy_part(T* to, const T* from, int64_t n) {
  int64_t done = 0;
  auto piece = [&]<size_t count>(std::integral_constant<size_t, count>) TAPEDECK_LANES {
    if (!(n & static_cast<int64_t>(count))) return;
    __builtin_memcpy(to + done, from + done, count * sizeof(T));
    done += static_cast<int64_t>(count);
  };
  piece(std::integral_constant<size_t, 8>());
  piece(std::integral_constant<size_t, 4>());
  piece(std::integral_constant<size_t, 2>());
  piece(std::integral_constant<size_t, 1>());
}

// Rows r... and two vectors of C. Written as a fold, because g++ 12 keeps an array of sums in registers only if all its
// indices are constants.
template <class T, int bytes, size_t... r>
TAPEDECK_INLINE void block(std::index_sequence<r...>, const T* a, int64_t row_stride, int64_t col_stride, const T* b,
                           int64_t b_stride, int64_t inner, T beta, T* c, int64_t ldc, int64_t columns) {
  using V = typename Wide<T, bytes>::type;
  constexpr int64_t w = Wide<T, bytes>::width;
  V left[sizeof...(r)] = {}, right[sizeof...(r)] = {};
  for (int64_t k = 0; k < inner; ++k, a += col_stride, b += b_stride) {
    V b0, b1;
    __builtin_memcpy(&b0, b, sizeof b0);
    __builtin_memcpy(&b1, b + w, sizeof b1);
    ((left[r] += a[static_cast<int64_t>(r) * row_stride] * b0,
      right[r] += a[static_cast<int64_t>(r) * row_stride] * b1),
     ...);
  }
  auto put = [&](T* to, V sum, int64_t n) TAPEDECK_LANES {
    if (n >= w) {
      if (beta != 0) {
        V before;
        __builtin_memcpy(&before, to, sizeof before);
        sum += beta * before;
      }
      __builtin_memcpy(to, &sum, sizeof sum);
    } else if (n > 0) {
      T lanes[Wide<T, bytes>::lanes] = {};
      if (beta != 0) {
        V before;
        copy_part(lanes, static_cast<const T*>(to), n);
        __builtin_memcpy(&before, lanes, sizeof before);
        sum += beta * before;
      }
      __builtin_memcpy(lanes, &sum, sizeof sum);
      copy_part(to, static_cast<const T*>(lanes), n);
    }
  };
  ((put(c + static_cast<int64_t>(r) * ldc, left[r], columns),
    put(c + static_cast<int64_t>(r) * ldc + w, right[r], columns - w)),
   ...);
}

// Rows first..first + inner and `n` <= 2 vectors of columns of B, filled up with zeros.
template <class T, int64_t columns>
TAPEDECK_INLINE void pack(T* to, const T* from, int64_t row_stride, int64_t col_stride, int64_t inner, int64_t n) {
  for (int64_t k = 0; k < inner; ++k, from += row_stride, to += columns) {
    for (int64_t x = 0; x < n; ++x) to[x] = from[x * col_stride];
    for (int64_t x = n; x < columns; ++x) to[x] = 0;
  }
}

template <class T, int bytes>
TAPEDECK_INLINE void product(const Matrix<T>& a, const Matrix<T>& b, T beta, T* c, int64_t ldc) {
  constexpr int64_t columns = 2 * Wide<T, bytes>::width;
  alignas(64) T packed[block_inner * 2 * Wide<T, bytes>::lanes];
  for (int64_t k = 0; k < a.cols; k += static_cast<int64_t>(block_inner), beta = 1) {
    const int64_t inner = std::min(a.cols - k, static_cast<int64_t>(block_inner));
    for (int64_t j = 0; j < b.cols; j += columns) {
      const int64_t n = std::min(b.cols - j, columns);
      const T* piece = b.data + k * b.row_stride + j * b.col_stride;
      int64_t piece_stride = b.row_stride;
      if (n < columns || b.col_stride != 1) {
        pack<T, columns>(packed, piece, b.row_stride, b.col_stride, inner, n);
        piece = packed;
        piece_stride = columns;
      }
      int64_t i = 0;
      auto rows = [&]<size_t count>(std::integral_constant<size_t, count>) TAPEDECK_LANES {
        block<T, bytes>(std::make_index_sequence<count>(), a.data + i * a.row_stride + k * a.col_stride, a.row_stride,
                        a.col_stride, piece, piece_stride, inner, beta, c + i * ldc + j, ldc, n);
        i += static_cast<int64_t>(count);
      };
      while (a.rows - i >= 6) rows(std::integral_constant<size_t, 6>());
      if (a.rows - i >= 3) rows(std::integral_constant<size_t, 3>());
      while (a.rows - i >= 1) rows(std::integral_constant<size_t, 1>());
    }
  }
}

// The sum of all lanes, by halves.
template <class T, class V, size_t... i>
TAPEDECK_INLINE T lane_sum(V v, std::index_sequence<i...>) {
  if constexpr (sizeof...(i) == 1) {
    return v[0] + v[1];
  } else {
    return lane_sum<T>(__builtin_shufflevector(v, v, i...) + __builtin_shufflevector(v, v, (i + sizeof...(i))...),
                       std::make_index_sequence<sizeof...(i) / 2>());
  }
}

// The same where A has few rows and both inner axes are dense: dot products of rows r... with 4 columns of B at a time
// (or the last few), so that B is read where it lies.
template <class T, int bytes, size_t... r>
TAPEDECK_INLINE void dots(std::index_sequence<r...>, const T* a, int64_t row_stride, const T* b, int64_t col_stride,
                          int64_t inner, int64_t columns, T beta, T* c, int64_t ldc) {
  using V = typename Wide<T, bytes>::type;
  constexpr int64_t w = Wide<T, bytes>::width;
  const int64_t whole = inner / w * w;
  auto read = [](const T* p) TAPEDECK_LANES {
    V v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  };
  auto finish = [&](const T* x, const T* column, T* to, V sums) TAPEDECK_LANES {
    T total = lane_sum<T>(sums, std::make_index_sequence<Wide<T, bytes>::lanes / 2>());
    for (int64_t k = whole; k < inner; ++k) total += x[k] * column[k];
    *to = beta == 0 ? total : total + beta * *to;
  };
  int64_t j = 0;
  for (; j + 4 <= columns; j += 4, b += 4 * col_stride, c += 4) {
    const T *b1 = b + col_stride, *b2 = b1 + col_stride, *b3 = b2 + col_stride;
    V s0[sizeof...(r)] = {}, s1[sizeof...(r)] = {}, s2[sizeof...(r)] = {}, s3[sizeof...(r)] = {}, x[sizeof...(r)];
    for (int64_t k = 0; k < whole; k += w) {
      ((x[r] = read(a + static_cast<int64_t>(r) * row_stride + k)), ...);
      V y = read(b + k);
      ((s0[r] += x[r] * y), ...);
      y = read(b1 + k);
      ((s1[r] += x[r] * y), ...);
      y = read(b2 + k);
      ((s2[r] += x[r] * y), ...);
      y = read(b3 + k);
      ((s3[r] += x[r] * y), ...);
    }
    (finish(a + static_cast<int64_t>(r) * row_stride, b, c + static_cast<int64_t>(r) * ldc, s0[r]), ...);
    (finish(a + static_cast<int64_t>(r) * row_stride, b1, c + static_cast<int64_t>(r) * ldc + 1, s1[r]), ...);
    (finish(a + static_cast<int64_t>(r) * row_stride, b2, c + static_cast<int64_t>(r) * ldc + 2, s2[r]), ...);
    (finish(a + static_cast<int64_t>(r) * row_stride, b3, c + static_cast<int64_t>(r) * ldc + 3, s3[r]), ...);
  }
  for (; j < columns; ++j, b += col_stride, ++c) {
    V s0[sizeof...(r)] = {};
    for (int64_t k = 0; k < whole; k += w) {
      const V y = read(b + k);
      ((s0[r] += read(a + static_cast<int64_t>(r) * row_stride + k) * y), ...);
    }
    (finish(a + static_cast<int64_t>(r) * row_stride, b, c + static_cast<int64_t>(r) * ldc, s0[r]), ...);
  }
}

template <class T, int bytes>
TAPEDECK_INLINE void few_rows(const Matrix<T>& a, const Matrix<T>& b, T beta, T* c, int64_t ldc) {
  constexpr size_t at_once = bytes == 64 ? 4 : 2;  // rows, by registers
  for (int64_t j = 0; j < b.cols; j += 4) {        // all rows pass 4 columns while these are in the cache
    int64_t i = 0;
    auto rows = [&]<size_t count>(std::integral_constant<size_t, count>) TAPEDECK_LANES {
      dots<T, bytes>(std::make_index_sequence<count>(), a.data + i * a.row_stride, a.row_stride,
                     b.data + j * b.col_stride, b.col_stride, a.cols, std::min<int64_t>(4, b.cols - j), beta,
                     c + i * ldc + j, ldc);
      i += static_cast<int64_t>(count);
    };
    while (a.rows - i >= static_cast<int64_t>(at_once)) rows(std::integral_constant<size_t, at_once>());
    while (a.rows - i >= 1) rows(std::integral_constant<size_t, 1>());
  }
}

template <class T, int bytes>
TAPEDECK_INLINE void chosen(const Matrix<T>& a, const Matrix<T>& b, T beta, T* c, int64_t ldc) {
  if (prefers_dots(a, b)) return few_rows<T, bytes>(a, b, beta, c, ldc);
  product<T, bytes>(a, b, beta, c, ldc);
}

template <class T>
TAPEDECK_KERNEL void product_32(const Matrix<T>& a, const Matrix<T>& b, T beta, T* c, int64_t ldc) {
  chosen<T, 32>(a, b, beta, c, ldc);
}

#ifdef TAPEDECK_CLONES
template <class T>
[[gnu::target("arch=x86-64-v4,prefer-vector-width=512"), gnu::flatten]] void product_64(const Matrix<T>& a,
                                                                                        const Matrix<T>& b, T beta,
                                                                                        T* c, int64_t ldc) {
  chosen<T, 64>(a, b, beta, c, ldc);
}
#endif

}  // namespace

template <class T>
void small_product(const Matrix<T>& a, const Matrix<T>& b, T beta, T* c, int64_t ldc) {
#ifdef TAPEDECK_CLONES
  static const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (avx512) return product_64(a, b, beta, c, ldc);
#endif
  product_32(a, b, beta, c, ldc);
}

template void small_product(const Matrix<float>&, const Matrix<float>&, float, float*, int64_t);
template void small_product(const Matrix<double>&, const Matrix<double>&, double, double*, int64_t);

}  // namespace tapedeck::blas
