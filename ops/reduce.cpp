#include <tapedeck/core/kernels.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/shape.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tapedeck {
namespace {

// The reduced result with its axes back as extent 1, so that it broadcasts against the input.
Var with_axes(const Var& reduced, const Shape& input, uint32_t dims) {
  return reshape(reduced, kernels::reduced_shape(input, dims, true));
}

int64_t count(const Shape& shape, uint32_t dims) {
  int64_t n = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (dims >> i & 1) n *= shape[i];
  }
  return n;
}

void check_not_empty(const char* op, const Operand& x, uint32_t dims) {
  if (count(x.shape(), dims) == 0) fail("{}: no elements to reduce in shape {}", op, x.shape());
}

// One result a row: out[i] = f(row i, length).
template <class T, class Out, class F>
Tensor reduce_rows(const Tensor& x, uint32_t dims, bool keepdim, F f) {
  Shape kept;
  Tensor rows = kernels::as_rows(x, dims, kept);
  Tensor out = Tensor::empty(kernels::reduced_shape(x.shape(), dims, keepdim), dtype_of<Out>);
  const T* p = rows.data<T>();
  Out* y = out.mutable_data<Out>();
  int64_t n = rows.shape()[1];
  for (int64_t i = 0; i < rows.shape()[0]; ++i) y[i] = f(p + i * n, n);
  return out;
}

template <class T>
T largest(const T* x, int64_t n) {
  T best = x[0];
  for (int64_t i = 1; i < n; ++i) {
    if (!(x[i] <= best)) best = x[i];  // also takes a NaN, which nothing then replaces
    if (best != best) break;
  }
  return best;
}

template <class T>
T logsumexp_row(const T* x, int64_t n) {
  if (n == 0) return -std::numeric_limits<T>::infinity();
  T top = largest(x, n);
  if (!std::isfinite(top)) return top;
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += static_cast<double>(simd::exp(static_cast<T>(x[i] - top)));
  return static_cast<T>(static_cast<double>(top) + std::log(total));
}

}  // namespace

Var sum(Operand x, const Dims& dims, bool keepdim) {
  uint32_t axes = dims.mask("sum", x.rank());
  return record(
      "sum", kernels::sum("sum", x.value(), axes, keepdim),
      Input{x, [shape = x.shape(), axes](const Var& g) { return broadcast_to(with_axes(g, shape, axes), shape); }});
}

Var mean(Operand x, const Dims& dims, bool keepdim) {
  uint32_t axes = dims.mask("mean", x.rank());
  if (!is_floating(x.dtype())) fail("mean: expected a floating tensor (f32 or f64), got {}", x.dtype());
  check_not_empty("mean", x, axes);
  double share = 1.0 / static_cast<double>(count(x.shape(), axes));
  Tensor y = kernels::sum("mean", x.value(), axes, keepdim);
  y.mul_(share);
  return record("mean", std::move(y), Input{x, [shape = x.shape(), axes, share](const Var& g) {
                                              return broadcast_to(with_axes(g * share, shape, axes), shape);
                                            }});
}

Var max(Operand x, const Dims& dims, bool keepdim) {
  uint32_t axes = dims.mask("max", x.rank());
  check_not_empty("max", x, axes);
  Tensor y = dispatch_number("max", x.dtype(), [&]<class T> {
    return reduce_rows<T, T>(x.value(), axes, keepdim, [](const T* row, int64_t n) { return largest(row, n); });
  });
  return record("max", std::move(y),
                Input{x, [x = x.var(), axes](const Var& g, const Var& y) {
                        // The elements that attain the maximum share g evenly.
                        const Shape& shape = x.shape();
                        Var attained = where(x == with_axes(y.detach(), shape, axes), Tensor::ones({}, x.dtype()), 0);
                        Var share = attained / sum_to(attained, kernels::reduced_shape(shape, axes, true));
                        return with_axes(g, shape, axes) * share;
                      }});
}

Var min(Operand x, const Dims& dims, bool keepdim) {
  UserSite here(x);
  check_not_empty("min", x, dims.mask("min", x.rank()));
  if (x.dtype() == DType::boolean)
    fail("min: expected numbers, got {} of shape {}; all() is that", x.dtype(), x.shape());
  return -max(-x, dims, keepdim);
}

Var var(Operand x, const Dims& dims, int64_t correction, bool keepdim) {
  UserSite here(x);
  if (!is_floating(x.dtype())) fail("var: expected a floating tensor (f32 or f64), got {}", x.dtype());
  const int64_t n = count(x.shape(), dims.mask("var", x.rank()));
  if (correction < 0 || n <= correction) {
    fail("var: expected more than {} elements and a correction >= 0, got {} in shape {}", correction, n, x.shape());
  }
  Var distance = x - mean(x, dims, true);
  return sum(square(distance), dims, keepdim) * (1.0 / static_cast<double>(n - correction));
}

Var norm(Operand x, const Dims& dims, bool keepdim) {
  uint32_t axes = dims.mask("norm", x.rank());
  Tensor y = dispatch_floating("norm", x.dtype(), [&]<class T> {
    return reduce_rows<T, T>(x.value(), axes, keepdim, [](const T* row, int64_t n) {
      double total = 0;
      for (int64_t i = 0; i < n; ++i) total += static_cast<double>(row[i]) * static_cast<double>(row[i]);
      return static_cast<T>(std::sqrt(total));
    });
  });
  return record("norm", std::move(y), Input{x, [x = x.var(), axes](const Var& g, const Var& y) {
                                              // x / y, and 0 where y = 0: every x is 0 there
                                              Var length = with_axes(where(y == 0, 1, y), x.shape(), axes);
                                              Var gx = with_axes(g, x.shape(), axes);
                                              return gx * detail::singular_factor(x / length, gx);
                                            }});
}

namespace {

Var reduce_boolean(const char* op, const Operand& x, const Dims& dims, bool keepdim, bool start) {
  if (x.dtype() != DType::boolean) {
    fail("{}: expected a boolean tensor, got {} of shape {}; compare first (x > 0)", op, x.dtype(), x.shape());
  }
  return record_constant(
      op, reduce_rows<bool, bool>(x.value(), dims.mask(op, x.rank()), keepdim, [start](const bool* row, int64_t n) {
        return std::find(row, row + n, !start) == row + n ? start : !start;
      }));
}

}  // namespace

Var any(Operand x, const Dims& dims, bool keepdim) { return reduce_boolean("any", x, dims, keepdim, false); }
Var all(Operand x, const Dims& dims, bool keepdim) { return reduce_boolean("all", x, dims, keepdim, true); }

Var cumsum(Operand x, int64_t dim) {
  int d = normalize_dim("cumsum", dim, x.rank());
  const Tensor in = x.value().transpose(d, -1).contiguous();
  Tensor out = Tensor::empty(in.shape(), x.dtype());
  const int64_t n = in.size(-1), rows = n > 0 ? in.numel() / n : 0;
  dispatch_number("cumsum", x.dtype(), [&]<class T> {
    using Sum = std::conditional_t<std::is_same_v<T, int64_t>, int64_t, double>;
    const T* from = in.data<T>();
    T* to = out.mutable_data<T>();
    for (int64_t r = 0; r < rows; ++r) {
      Sum total = 0;
      for (int64_t i = 0; i < n; ++i) *to++ = static_cast<T>(total += static_cast<Sum>(*from++));
    }
  });
  // Each x_j counts in y_j, y_j+1, ...: the sums from the other end.
  return record("cumsum", out.transpose(d, -1), Input{x, [d](const Var& g) { return flip(cumsum(flip(g, d), d), d); }});
}

namespace {

Tensor order_along(const char* op, const Tensor& x, int d, bool descending) {
  const Tensor in = x.transpose(d, -1).contiguous();
  Tensor order = Tensor::empty(in.shape(), DType::i64);
  const int64_t n = in.size(-1), rows = n > 0 ? in.numel() / n : 0;
  dispatch_number(op, x.dtype(), [&]<class T> {
    int64_t* index = order.mutable_data<int64_t>();
    for (int64_t r = 0; r < rows; ++r, index += n) {
      const T* row = in.data<T>() + r * n;
      for (int64_t i = 0; i < n; ++i) {
        if (row[i] != row[i]) fail("{}: NaN at position {} along the axis", op, i);
        index[i] = i;
      }
      std::stable_sort(index, index + n, [row, descending](int64_t a, int64_t b) {
        return descending ? row[a] > row[b] : row[a] < row[b];
      });
    }
  });
  return order.transpose(d, -1);
}

}  // namespace

Ordered sort(Operand x, int64_t dim, bool descending) {
  UserSite here(x);
  int d = normalize_dim("sort", dim, x.rank());
  Var indices = record_constant("sort", order_along("sort", x.value(), d, descending));
  return {gather(x, d, indices), indices};
}

Ordered topk(Operand x, int64_t k, int64_t dim) {
  UserSite here(x);
  int d = normalize_dim("topk", dim, x.rank());
  if (k < 0 || k > x.shape()[d])
    fail("topk: expected 0 <= k <= {}, axis {} of shape {}, got {}", x.shape()[d], dim, x.shape(), k);
  Var indices = record_constant("topk", order_along("topk", x.value(), d, true).slice(d, 0, k));
  return {gather(x, d, indices), indices};
}

Var argmax(Operand x, int64_t dim, bool keepdim) {
  uint32_t axes = 1u << normalize_dim("argmax", dim, x.rank());
  check_not_empty("argmax", x, axes);
  Tensor y = dispatch_number("argmax", x.dtype(), [&]<class T> {
    return reduce_rows<T, int64_t>(x.value(), axes, keepdim, [](const T* row, int64_t n) {
      int64_t best = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (row[i] != row[i]) fail("argmax: NaN at position {} along the axis", i);
        if (row[i] > row[best]) best = i;
      }
      return best;
    });
  });
  return record_constant("argmax", std::move(y));
}

Var logsumexp(Operand x, const Dims& dims, bool keepdim) {
  uint32_t axes = dims.mask("logsumexp", x.rank());
  Tensor y = dispatch_floating("logsumexp", x.dtype(), [&]<class T> {
    return reduce_rows<T, T>(x.value(), axes, keepdim, [](const T* row, int64_t n) { return logsumexp_row(row, n); });
  });
  return record("logsumexp", std::move(y), Input{x, [x = x.var(), axes](const Var& g, const Var& y) {
                                                   // softmax(x). exp(x - y) alone would have y's rounding error, large
                                                   // where y is. Where y = -inf every x is, and 0 is right.
                                                   Var shift = masked_fill(y, y == -HUGE_VAL, 0).detach();
                                                   Var e = exp(x - with_axes(shift, x.shape(), axes));
                                                   Var total = sum_to(e, kernels::reduced_shape(x.shape(), axes, true));
                                                   return with_axes(g, x.shape(), axes) *
                                                          (e / masked_fill(total, total == 0, 1));
                                                 }});
}

}  // namespace tapedeck
