// Matrix products by CBLAS, on one thread: the library's own threads would change results with the machine's load.
#pragma once

#include <cstdint>
#include <string>

namespace tapedeck::blas {

// A strided matrix, strides in elements; any of them may be 0 or arbitrary where an extent is 1.
template <class T>
struct Matrix {
  const T* data;                   // of element (0, 0)
  int64_t rows, cols;              // extents
  int64_t row_stride, col_stride;  // from one row, or column, to the next
};

// True if CBLAS can read the matrix where it lies: one of its axes is dense, and the other's stride can be a leading
// dimension (at least the dense extent).
template <class T>
bool readable(const Matrix<T>& m);

// C = A B + beta C, with C row-major and dense, (a.rows, b.cols). A and B must be readable. C is not read if beta = 0:
// it may hold anything, NaN included.
template <class T>
void gemm(const Matrix<T>& a, const Matrix<T>& b, T beta, T* c);

// The library's name, version and kernels, and the threads it was left with: "OpenBLAS 0.3.21 ... Zen, 1 thread".
std::string description();

}  // namespace tapedeck::blas
