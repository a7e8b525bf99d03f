#include <tapedeck/core/kernels.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/rows.h>
#include <tapedeck/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tapedeck {
namespace {

using rows::exp_row;
using rows::row_max;

template <class T>
TAPEDECK_KERNEL void softmax_rows(T* y, const T* x, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    double total = exp_row(y, x, row_max(x, n), n);
    T scale = static_cast<T>(1 / total);
    for (int64_t i = 0; i < n; ++i) y[i] *= scale;
  }
}

template <class T>
TAPEDECK_KERNEL void log_softmax_rows(T* y, const T* x, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    T top = row_max(x, n);
    double log_total = std::log(exp_row(y, x, top, n));
    // (x - top) - log: subtracting their sum would round it to top's precision
    for (int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(static_cast<double>(x[i] - top) - log_total);
  }
}

// What is masked counts as -inf; a row with nothing left is all 0.
template <class T>
TAPEDECK_KERNEL void masked_softmax_rows(T* y, const T* x, const bool* mask, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n, mask += n) {
    constexpr T nothing = -std::numeric_limits<T>::infinity();
    bool any = false;
    for (int64_t i = 0; i < n; ++i) {
      y[i] = mask[i] ? x[i] : nothing;
      any = any || mask[i];
    }
    if (!any) {
      std::fill_n(y, n, T{0});
      continue;
    }
    double total = exp_row(y, y, row_max(y, n), n);
    T scale = static_cast<T>(1 / total);
    for (int64_t i = 0; i < n; ++i) y[i] = mask[i] ? y[i] * scale : T{0};
  }
}

// Runs rows(y, x, number of rows, length) along axis `dim` and gives the result x's order of axes.
template <class Rows>
Tensor along(const char* op, const Tensor& x, int dim, Rows rows) {
  Tensor in = x.transpose(dim, -1).contiguous();
  Tensor out = Tensor::empty(in.shape(), x.dtype());
  int64_t n = in.shape()[in.rank() - 1];
  dispatch_floating(op, x.dtype(), [&]<class T> {
    if (n > 0) rows(out.mutable_data<T>(), in.data<T>(), in.numel() / n, n);
  });
  return dim == x.rank() - 1 ? out : out.transpose(dim, -1);
}

// J^T g = y (g - <g, y>)
Var softmax_vjp(const Var& g, const Var& y, int dim) {
  Var gy = g * y;
  return gy - y * sum(gy, dim, true);
}

}  // namespace

Var softmax(Operand x, int64_t dim) {
  int d = normalize_dim("softmax", dim, x.rank());
  Tensor y = along("softmax", x.value(), d,
                   [](auto* to, const auto* from, int64_t rows, int64_t n) { softmax_rows(to, from, rows, n); });
  return record("softmax", std::move(y), Input{x, [d](const Var& g, const Var& y) { return softmax_vjp(g, y, d); }});
}

Var log_softmax(Operand x, int64_t dim) {
  int d = normalize_dim("log_softmax", dim, x.rank());
  Tensor y = along("log_softmax", x.value(), d,
                   [](auto* to, const auto* from, int64_t rows, int64_t n) { log_softmax_rows(to, from, rows, n); });
  return record("log_softmax", std::move(y),
                Input{x, [d](const Var& g, const Var& y) { return g - exp(y) * sum(g, d, true); }});
}

Var masked_softmax(Operand x, Operand mask, int64_t dim) {
  int d = normalize_dim("masked_softmax", dim, x.rank());
  if (mask.dtype() != DType::boolean || !broadcasts_to(mask.shape(), x.shape())) {
    fail("masked_softmax: expected a boolean mask (true: counts) that broadcasts to x {}, got {} {}", x.shape(),
         mask.dtype(), mask.shape());
  }
  Tensor valid = mask.value().expand(x.shape()).transpose(d, -1).contiguous();
  Tensor y = along("masked_softmax", x.value(), d, [&](auto* to, const auto* from, int64_t rows, int64_t n) {
    masked_softmax_rows(to, from, valid.data<bool>(), rows, n);
  });
  return record("masked_softmax", std::move(y),
                Input{x, [d](const Var& g, const Var& y) { return softmax_vjp(g, y, d); }});
}

}  // namespace tapedeck
