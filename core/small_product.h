// Matrix products by kernels of our own, for sizes where CBLAS spends its time on calls and packing. Engine-internal:
// blas::gemm chooses.
#pragma once

#include <tapedeck/core/blas.h>

namespace tapedeck::blas {

// C = A B + beta C for matrices of any strides and an inner axis of at least 1; C row-major with row stride ldc, not
// read if beta = 0. How one element is summed depends on its row of A and its column of B, and on neither's neighbours.
//
// A block of 6 rows x 2 vectors of C stays in registers while the inner axis runs by; where prefers_dots says so, dot
// products of 4 rows x 4 columns take its place.
template <class T>
void small_product(const Matrix<T>& a, const Matrix<T>& b, T beta, T* c, int64_t ldc);

// Few rows against a matrix whose columns are dense (the weight of a linear layer): packing it, as CBLAS does, would
// cost more than the product.
template <class T>
bool prefers_dots(const Matrix<T>& a, const Matrix<T>& b) {
  return b.row_stride == 1 && a.col_stride == 1 && (a.rows == 1 || (a.rows <= 20 && a.cols >= 128));
}

}  // namespace tapedeck::blas
