#include <tapedeck/core/blas.h>
#include <tapedeck/core/error.h>
#include <tapedeck/core/small_product.h>

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

// Thread controls of the libraries that may stand behind CBLAS; null where another one does.
extern "C" {
// NOLINTBEGIN(readability-redundant-declaration): OpenBLAS's cblas.h has some of them, but not as weak
[[gnu::weak]] void openblas_set_num_threads(int);
[[gnu::weak]] int openblas_get_num_threads(void);
[[gnu::weak]] char* openblas_get_config(void);
[[gnu::weak]] char* openblas_get_corename(void);
[[gnu::weak]] void gotoblas_dynamic_quit(void);
[[gnu::weak]] void gotoblas_dynamic_init(void);
[[gnu::weak]] void bli_thread_set_num_threads(long);
[[gnu::weak]] void MKL_Set_Num_Threads(int);
// NOLINTEND(readability-redundant-declaration)
}

namespace tapedeck::blas {
namespace {

void raw_gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, const float* a, int lda, const float* b,
              int ldb, float beta, float* c, int ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
}
void raw_gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, const double* a, int lda, const double* b,
              int ldb, double beta, double* c, int ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1.0, a, lda, b, ldb, beta, c, ldc);
}

// How CBLAS is told to read a matrix. The stride of an axis of extent 1 means nothing, so the leading dimension is
// made from the extents there.
struct Layout {
  bool ok;
  CBLAS_TRANSPOSE transpose;
  int leading;
};

template <class T>
Layout layout(const Matrix<T>& m) {
  int64_t limit = 0x7fffffff;
  int64_t row_stride = m.rows == 1 ? std::max<int64_t>(m.cols, 1) : m.row_stride;
  int64_t col_stride = m.cols == 1 ? std::max<int64_t>(m.rows, 1) : m.col_stride;
  if ((m.cols == 1 || m.col_stride == 1) && row_stride >= std::max<int64_t>(m.cols, 1) && row_stride <= limit) {
    return {true, CblasNoTrans, static_cast<int>(row_stride)};
  }
  if ((m.rows == 1 || m.row_stride == 1) && col_stride >= std::max<int64_t>(m.rows, 1) && col_stride <= limit) {
    return {true, CblasTrans, static_cast<int>(col_stride)};
  }
  return {false, CblasNoTrans, 0};
}

// Some BLAS builds compute wrong products on processors newer than themselves; better to know before training.
template <class T>
bool multiplies_correctly() {
  constexpr int m = 37, n = 29, k = 41;
  std::vector<T> a(m * k), b(k * n), c(m * n);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<T>(static_cast<int>(i * 7 % 13) - 6);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<T>(static_cast<int>(i * 5 % 11) - 5);
  auto at = [](const std::vector<T>& x, int row, int cols, int col) {
    return x[static_cast<size_t>(row) * static_cast<size_t>(cols) + static_cast<size_t>(col)];
  };
  for (auto [ta, tb] :
       {std::pair{CblasNoTrans, CblasNoTrans}, {CblasNoTrans, CblasTrans}, {CblasTrans, CblasNoTrans}}) {
    raw_gemm(ta, tb, m, n, k, a.data(), ta == CblasTrans ? m : k, b.data(), tb == CblasTrans ? k : n, T{0}, c.data(),
             n);
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        T sum = 0;  // small integers: exact
        for (int l = 0; l < k; ++l) {
          sum += (ta == CblasTrans ? at(a, l, m, i) : at(a, i, k, l)) *
                 (tb == CblasTrans ? at(b, j, k, l) : at(b, l, n, j));
        }
        if (at(c, i, n, j) != sum) return false;
      }
    }
  }
  return true;
}

// OpenBLAS falls back to its oldest kernels (Prescott, SSE3) on a processor that it does not know: 2 to 5 times slower
// than those that the processor can run. Unless the user has chosen, choose for it.
void wake_openblas() {
#if defined(__x86_64__)
  if (!openblas_get_corename || !gotoblas_dynamic_quit || !gotoblas_dynamic_init) return;
  if (std::string_view(openblas_get_corename()) != "Prescott" || std::getenv("OPENBLAS_CORETYPE")) return;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
  bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  ::setenv("OPENBLAS_CORETYPE", avx512 ? "SkylakeX" : "Haswell", 0);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  ::unsetenv("OPENBLAS_CORETYPE");
#endif
}

// Once, before the first product.
struct Library {
  Library() {
    wake_openblas();
    if (openblas_set_num_threads) openblas_set_num_threads(1);
    if (bli_thread_set_num_threads) bli_thread_set_num_threads(1);
    if (MKL_Set_Num_Threads) MKL_Set_Num_Threads(1);
    if (!multiplies_correctly<float>() || !multiplies_correctly<double>()) {
      fail(
          "blas: this library computes wrong products on this processor ({}); install a newer OpenBLAS, or choose "
          "another kernel with OPENBLAS_CORETYPE=Haswell",
          name());
    }
  }
  static std::string name() {
    std::string text = openblas_get_config ? openblas_get_config() : "CBLAS";
    if (openblas_get_corename) text += fmt::format(", kernels for {}", openblas_get_corename());
    return text;
  }
};

void prepare() { static const Library library; }

}  // namespace

// Up to so many multiplications our own kernel is as fast as OpenBLAS's for AVX-512 and 1.3 to 2 times faster than
// those for AVX2 (bench/products). OpenBLAS's kernel for small products asks the system for memory at every call.
constexpr int64_t small = int64_t{256} * 256 * 256;

template <class T>
bool readable(const Matrix<T>& m) {
  return layout(m).ok;
}

template <class T>
void gemm(const Matrix<T>& a, const Matrix<T>& b, T beta, T* c) {
  prepare();
  if (a.rows == 0 || b.cols == 0) return;
  if (a.cols == 0) {  // an empty sum; CBLAS may not be asked with extents of 0
    if (beta == 0) std::fill_n(c, a.rows * b.cols, T{0});
    return;
  }
  if (prefers_dots(a, b) || a.rows * b.cols * a.cols <= small) return small_product(a, b, beta, c, b.cols);
  Layout la = layout(a), lb = layout(b);
  raw_gemm(la.transpose, lb.transpose, static_cast<int>(a.rows), static_cast<int>(b.cols), static_cast<int>(a.cols),
           a.data, la.leading, b.data, lb.leading, beta, c, static_cast<int>(b.cols));
}

std::string description() {
  prepare();
  int threads = openblas_get_num_threads ? openblas_get_num_threads() : 1;
  return fmt::format("{}, {} thread{}", Library::name(), threads, threads == 1 ? "" : "s");
}

template bool readable(const Matrix<float>&);
template bool readable(const Matrix<double>&);
template void gemm(const Matrix<float>&, const Matrix<float>&, float, float*);
template void gemm(const Matrix<double>&, const Matrix<double>&, double, double*);

}  // namespace tapedeck::blas
