#include <tapedeck/nn/init.h>

#include <cmath>

namespace tapedeck {

namespace {

template <class Draw>
void fill(const char* op, Tensor& x, Draw draw) {
  dispatch_floating(op, x.dtype(), [&]<class T> {
    Tensor dense = x.is_contiguous() ? x : Tensor::empty(x.shape(), x.dtype());
    T* p = dense.mutable_data<T>();
    for (int64_t i = 0, n = dense.numel(); i < n; ++i) p[i] = static_cast<T>(draw());
    if (!x.is_contiguous()) x.copy_(dense);
  });
}

Parameter uniform(const Shape& shape, int64_t n, DType dtype, Rng& rng) {
  Tensor x = Tensor::empty(shape, dtype);
  uniform_(x, n > 0 ? 1 / std::sqrt(static_cast<double>(n)) : 0, rng);
  return Parameter(x);
}

}  // namespace

void uniform_(Tensor& x, double bound, Rng& rng) {
  if (!(std::isfinite(bound) && bound >= 0)) fail("uniform_: the bound must be a finite number >= 0, got {}", bound);
  fill("uniform_", x, [&] { return rng.uniform(-bound, bound); });
}

void normal_(Tensor& x, Rng& rng) {
  fill("normal_", x, [&] { return rng.normal(); });
}

Parameter linear_init(const Shape& shape, int64_t in, DType dtype, Rng& rng) { return uniform(shape, in, dtype, rng); }

Parameter rnn_init(const Shape& shape, int64_t hidden, DType dtype, Rng& rng) {
  return uniform(shape, hidden, dtype, rng);
}

Parameter embedding_init(int64_t count, int64_t dim, std::optional<int64_t> padding_idx, DType dtype, Rng& rng) {
  if (padding_idx && (*padding_idx < 0 || *padding_idx >= count)) {
    fail("embedding: padding_idx {} is outside 0..{}", *padding_idx, count - 1);
  }
  Tensor x = Tensor::empty({count, dim}, dtype);
  normal_(x, rng);
  if (padding_idx) x.select(0, *padding_idx).fill_(0);
  return Parameter(x);
}

}  // namespace tapedeck
