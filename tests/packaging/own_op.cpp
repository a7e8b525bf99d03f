#include <tapedeck/core/gradcheck.h>
#include <tapedeck/core/kernels.h>
#include <tapedeck/ops/ops.h>

#include <cmath>

using namespace tapedeck;

// y = sqrt(a^2 + b^2); a and b broadcast. At a = b = 0 there is no derivative.
Var hypot(Operand a, Operand b) {
  auto [u, v] = same_dtype("hypot", a, b);
  Tensor y = kernels::map("hypot", u.value(), v.value(), [](auto p, auto q) { return simd::sqrt(p * p + q * q); });
  return record("hypot", std::move(y), Input{a, [u = Var(u)](const Var& g, const Var& y) { return g * u / y; }},
                Input{b, [v = Var(v)](const Var& g, const Var& y) { return g * v / y; }});
}

// The function that rms_norm computes, by small ops: x / sqrt(mean(x^2) + eps) along the last axis.
Var rms_norm_of_ops(const Var& x, double eps) { return x / sqrt(mean(square(x), -1, true) + eps); }

Var rms_norm(Operand x, double eps = 1e-6) {
  if (x.rank() < 1 || x.numel() == 0 || !is_floating(x.dtype()))
    fail("rms_norm: expected a floating x (..., n) with elements, got {} {}", x.dtype(), x.shape());
  const Tensor in = x.value().contiguous();
  const int64_t n = in.size(-1), rows = in.numel() / n;
  Tensor y = Tensor::empty(in.shape(), in.dtype()), scale = Tensor::empty({rows}, in.dtype());
  dispatch_floating("rms_norm", in.dtype(), [&]<class T> {
    const T* from = in.data<T>();
    T *to = y.mutable_data<T>(), *s = scale.mutable_data<T>();
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(from[r * n + i]) * from[r * n + i];
      s[r] = static_cast<T>(1 / std::sqrt(squares / static_cast<double>(n) + eps));
      for (int64_t i = 0; i < n; ++i) to[r * n + i] = s[r] * from[r * n + i];
    }
  });

  // dx = s (g - y <g, y> / n), one row after the other.
  auto vjp = [n, rows](const FusedPass& pass) {
    const Tensor g = pass.g.contiguous(), y = pass.y.contiguous();
    Tensor dx = Tensor::empty(y.shape(), y.dtype());
    dispatch_floating("rms_norm", y.dtype(), [&]<class T> {
      const T *dy = g.data<T>(), *out = y.data<T>(), *s = pass.saved[0].data<T>();
      T* to = dx.mutable_data<T>();
      for (int64_t r = 0; r < rows; ++r, dy += n, out += n, to += n) {
        double dot = 0;
        for (int64_t i = 0; i < n; ++i) dot += static_cast<double>(dy[i]) * out[i];
        const T along = static_cast<T>(dot / static_cast<double>(n));
        for (int64_t i = 0; i < n; ++i) to[i] = s[r] * (dy[i] - along * out[i]);
      }
    });
    return std::vector{dx};
  };
  auto definition = [eps](std::span<const Var> in) { return rms_norm_of_ops(in[0], eps); };
  return record_fused("rms_norm", {x}, FusedValue{y, {scale}}, vjp, definition);
}

int main() {
  const Tensor a = tensor({{3.0, -5.0, 0.5}, {1.0, 8.0, -2.0}}, DType::f64);
  const Tensor b = tensor({4.0, 12.0, -1.5}, DType::f64);
  const Tensor far = (Var(rms_norm(a)) - rms_norm_of_ops(a, 1e-6)).value();
  bool right = max(abs(far)).item() < 1e-12;
  fmt::print("hypot {}\n", select(hypot(a, b), 0, 0).value());
  for (int order : {1, 2}) {
    const GradcheckOptions options{.order = order};
    auto first = gradcheck([](auto x) { return hypot(x[0], x[1]); }, {{"a", a}, {"b", b}}, {}, options);
    auto second = gradcheck([](auto x) { return rms_norm(x[0]); }, {{"x", a}}, {}, options);
    fmt::print("order {}: hypot {}, rms_norm {}\n", order, name(first.verdict), name(second.verdict));
    right = right && first.ok() && second.ok();
  }
  return right ? 0 : 1;
}
