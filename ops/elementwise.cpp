#include <tapedeck/core/kernels.h>
#include <tapedeck/ops/elementwise.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tapedeck {
using detail::singular_factor;

namespace {

// An arithmetic kernel for f32 and f64 (by lanes) and i64.
template <class F>
Tensor arithmetic(const char* op, const Tensor& a, const Tensor& b, F f) {
  if (a.dtype() != DType::i64) return kernels::map(op, a, b, f);
  Tensor y = Tensor::empty(broadcast_shapes(op, a.shape(), b.shape()), DType::i64);
  kernels::transform<int64_t>(y, f, kernels::as<int64_t>(a), kernels::as<int64_t>(b));
  return y;
}

template <class F>
Var compare(const char* op, const Operand& a, const Operand& b, F f) {
  auto [x, y] = same_dtype(op, a, b);
  Tensor out = Tensor::empty(broadcast_shapes(op, x.shape(), y.shape()), DType::boolean);
  const Tensor &u = x.value(), &v = y.value();
  dispatch(x.dtype(), [&]<class T> { kernels::transform<bool>(out, f, kernels::as<T>(u), kernels::as<T>(v)); });
  return record_constant(op, std::move(out));
}

void check_mask(const char* op, const Operand& mask) {
  if (mask.dtype() != DType::boolean) {
    fail("{}: expected a boolean mask, got {} of shape {}; compare first (x > 0)", op, mask.dtype(), mask.shape());
  }
}

bool all_finite(const Tensor& x) {
  Tensor dense = x.contiguous();
  return dispatch_floating("all_finite", x.dtype(), [&]<class T> {
    const T* p = dense.data<T>();
    return std::all_of(p, p + dense.numel(), [](T v) { return std::isfinite(v); });
  });
}

// y = f(x) for functions without a vector form, an element at a time.
template <class F>
Tensor map_each(const char* op, const Tensor& x, F f) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  dispatch_floating(op, x.dtype(), [&]<class T> { kernels::transform<T>(y, f, kernels::as<T>(x)); });
  return y;
}

template <class F>
Var logical(const char* op, const Operand& a, const Operand& b, F f) {
  check_mask(op, a);
  check_mask(op, b);
  Tensor out = Tensor::empty(broadcast_shapes(op, a.shape(), b.shape()), DType::boolean);
  kernels::transform<bool>(out, f, kernels::as<bool>(a.value()), kernels::as<bool>(b.value()));
  return record_constant(op, std::move(out));
}

}  // namespace

Var detail::singular_factor(const Var& factor, const Var& g) {
  if (all_finite(factor.value())) return factor;
  Tensor idle = Tensor::empty(broadcast_shapes("singular_factor", factor.shape(), g.shape()), DType::boolean);
  dispatch_floating("singular_factor", g.dtype(), [&]<class T> {
    kernels::transform<bool>(
        idle, [](T f, T v) { return v == 0 && !std::isfinite(f); }, kernels::as<T>(factor.value()),
        kernels::as<T>(g.value()));
  });
  return masked_fill(broadcast_to(factor, idle.shape()), idle, 0);
}

Var sub(Operand a, Operand b) {
  auto [x, y] = same_dtype("sub", a, b);
  Tensor difference = arithmetic("sub", x.value(), y.value(), [](auto u, auto v) TAPEDECK_LANES { return u - v; });
  return record("sub", std::move(difference), Input{a, [](const Var& g) { return g; }},
                Input{b, [](const Var& g) { return -g; }});
}

Var mul(Operand a, Operand b) {
  auto [x, y] = same_dtype("mul", a, b);
  Tensor product = arithmetic("mul", x.value(), y.value(), [](auto u, auto v) TAPEDECK_LANES { return u * v; });
  return record("mul", std::move(product), Input{a, [y = Var(y)](const Var& g) { return g * y; }},
                Input{b, [x = Var(x)](const Var& g) { return g * x; }});
}

Var div(Operand a, Operand b) {
  auto [x, y] = same_dtype("div", a, b);
  Tensor quotient = kernels::map("div", x.value(), y.value(), [](auto u, auto v) TAPEDECK_LANES { return u / v; });
  return record("div", std::move(quotient),
                Input{a, [y = Var(y)](const Var& g) { return g * singular_factor(1 / y, g); }},
                Input{b, [y = Var(y)](const Var& g, const Var& q) { return g * singular_factor(-q / y, g); }});
}

Var neg(Operand x) {
  const Tensor& value = x.value();
  Tensor y;
  if (value.dtype() == DType::i64) {
    y = Tensor::empty(value.shape(), DType::i64);
    kernels::transform<int64_t>(
        y, [](int64_t v) { return -v; }, kernels::as<int64_t>(value));
  } else {
    y = kernels::map("neg", value, [](auto v) TAPEDECK_LANES { return -v; });
  }
  return record("neg", std::move(y), Input{x, [](const Var& g) { return -g; }});
}

Var exp(Operand x) {
  Tensor y = kernels::map("exp", x.value(), [](auto v) TAPEDECK_LANES { return simd::exp(v); });
  return record("exp", std::move(y), Input{x, [](const Var& g, const Var& y) { return g * singular_factor(y, g); }});
}

Var log(Operand x) {
  Tensor y = kernels::map("log", x.value(), [](auto v) TAPEDECK_LANES { return simd::log(v); });
  return record("log", std::move(y), Input{x, [x = x.var()](const Var& g) { return g * singular_factor(1 / x, g); }});
}

Var sqrt(Operand x) {
  Tensor y = kernels::map("sqrt", x.value(), [](auto v) TAPEDECK_LANES { return simd::sqrt(v); });
  return record("sqrt", std::move(y),
                Input{x, [](const Var& g, const Var& y) { return g * singular_factor(0.5 / y, g); }});
}

Var tanh(Operand x) {
  Tensor y = kernels::map("tanh", x.value(), [](auto v) TAPEDECK_LANES { return simd::tanh(v); });
  return record("tanh", std::move(y), Input{x, [](const Var& g, const Var& y) { return g * (1 - y * y); }});
}

Var sigmoid(Operand x) {
  Tensor y = kernels::map("sigmoid", x.value(), [](auto v) TAPEDECK_LANES { return simd::sigmoid(v); });
  return record("sigmoid", std::move(y), Input{x, [](const Var& g, const Var& y) { return g * (y * (1 - y)); }});
}

Var relu(Operand x) {
  Tensor y = kernels::map("relu", x.value(), [](auto v) TAPEDECK_LANES { return simd::max(v, decltype(v){}); });
  return record("relu", std::move(y), Input{x, [](const Var& g, const Var& y) { return masked_fill(g, y <= 0, 0); }});
}

Var erf(Operand x) {
  Tensor y = map_each("erf", x.value(), [](auto v) { return std::erf(v); });
  return record("erf", std::move(y),
                Input{x, [x = x.var()](const Var& g) { return g * (2 * std::numbers::inv_sqrtpi * exp(-square(x))); }});
}

Var gelu(Operand x) {
  // Beyond 40, Phi(x) is 0 or 1 and phi(x) 0 in f64 too: there the bound stands for x, so that no inf meets a 0.
  constexpr double far = 40;
  Tensor y = map_each("gelu", x.value(), [](auto v) {
    using T = decltype(v);
    return std::max(v, T(-far)) * (T(0.5) * std::erfc(v * T(-1 / std::numbers::sqrt2)));
  });
  // Phi(x) + x phi(x)
  return record("gelu", std::move(y), Input{x, [x = x.var()](const Var& g) {
                                              Var below = 0.5 * (1 + erf(x * (1 / std::numbers::sqrt2)));
                                              Var density = exp(-0.5 * square(x)) *
                                                            (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
                                              return g * (below + clamp(x, -far, far) * density);
                                            }});
}

Var softplus(Operand x) {
  Tensor y = kernels::map("softplus", x.value(), [](auto v) TAPEDECK_LANES {
    return simd::max(v, decltype(v){}) + simd::log1p(simd::exp(-simd::abs(v)));  // exp of non-positive numbers only
  });
  return record("softplus", std::move(y), Input{x, [x = x.var()](const Var& g) { return g * sigmoid(x); }});
}

Var log_sigmoid(Operand x) {
  Tensor y = kernels::map("log_sigmoid", x.value(), [](auto v) TAPEDECK_LANES {
    return simd::min(v, decltype(v){}) - simd::log1p(simd::exp(-simd::abs(v)));
  });
  return record("log_sigmoid", std::move(y), Input{x, [x = x.var()](const Var& g) { return g * sigmoid(-x); }});
}

Var sin(Operand x) {
  Tensor y = map_each("sin", x.value(), [](auto v) { return std::sin(v); });
  return record("sin", std::move(y), Input{x, [x = x.var()](const Var& g) { return g * cos(x); }});
}

Var cos(Operand x) {
  Tensor y = map_each("cos", x.value(), [](auto v) { return std::cos(v); });
  return record("cos", std::move(y), Input{x, [x = x.var()](const Var& g) { return g * -sin(x); }});
}

Var abs(Operand x) {
  const Tensor& value = x.value();
  Tensor y = Tensor::empty(value.shape(), value.dtype());
  dispatch_number("abs", value.dtype(), [&]<class T> {
    kernels::transform<T>(
        y, [](T v) { return v < 0 ? -v : v + T{0}; }, kernels::as<T>(value));
  });
  return record("abs", std::move(y),
                Input{x, [x = x.var()](const Var& g) { return masked_fill(where(x < 0, -g, g), x == 0, 0); }});
}

Var square(Operand x) {
  const Tensor& value = x.value();
  return record("square", arithmetic("square", value, value, [](auto u, auto v) TAPEDECK_LANES { return u * v; }),
                Input{x, [x = x.var()](const Var& g) { return g * (2 * x); }});
}

Var pow(Operand x, double exponent) {
  Tensor y = map_each("pow", x.value(), [exponent](auto v) { return std::pow(v, static_cast<decltype(v)>(exponent)); });
  return record("pow", std::move(y), Input{x, [x = x.var(), exponent](const Var& g) {
                                             if (exponent == 0) return Var(Tensor::zeros(x.shape(), x.dtype()));
                                             return g * singular_factor(exponent * pow(x, exponent - 1), g);
                                           }});
}

namespace {

// Each of two equal ones gets half.
template <class Wins>
Var extremum(const char* op, const Operand& a, const Operand& b, Wins wins) {
  auto [x, y] = same_dtype(op, a, b);
  Tensor out = Tensor::empty(broadcast_shapes(op, x.shape(), y.shape()), x.dtype());
  const Tensor &u = x.value(), &v = y.value();
  dispatch_number(op, x.dtype(), [&]<class T> {
    kernels::transform<T>(
        out, [wins](T p, T q) { return p != p || wins(p, q) ? p : q; }, kernels::as<T>(u), kernels::as<T>(v));
  });
  auto share = [wins](const Var& mine, const Var& other) {
    Tensor part = Tensor::empty(broadcast_shapes("share", mine.shape(), other.shape()), mine.dtype());
    dispatch_floating("share", mine.dtype(), [&]<class T> {
      kernels::transform<T>(
          part, [wins](T p, T q) { return p == q       ? T(0.5)
                                          : wins(p, q) ? T(1)
                                                       : T(0); }, kernels::as<T>(mine.value()),
          kernels::as<T>(other.value()));
    });
    return Var(part);
  };
  return record(op, std::move(out), Input{a, [x = Var(x), y = Var(y), share](const Var& g) { return g * share(x, y); }},
                Input{b, [x = Var(x), y = Var(y), share](const Var& g) { return g * share(y, x); }});
}

}  // namespace

Var maximum(Operand a, Operand b) {
  return extremum("maximum", a, b, [](auto p, auto q) { return p > q; });
}

Var minimum(Operand a, Operand b) {
  return extremum("minimum", a, b, [](auto p, auto q) { return p < q; });
}

Var clamp(Operand x, double low, double high) {
  if (!(low <= high)) fail("clamp: expected low <= high, got {} and {}", low, high);
  const Tensor& value = x.value();
  Tensor y = map_each("clamp", value, [low, high](auto v) {
    using T = decltype(v);
    return v < T(low) ? T(low) : v > T(high) ? T(high) : v;
  });
  return record("clamp", std::move(y),
                Input{x, [x = x.var(), low, high](const Var& g) { return masked_fill(g, (x < low) | (x > high), 0); }});
}

Var where(Operand condition, Operand a, Operand b) {
  check_mask("where", condition);
  auto [x, y] = same_dtype("where", a, b);
  Shape shape = broadcast_shapes("where", broadcast_shapes("where", x.shape(), y.shape()), condition.shape());
  Tensor out = Tensor::empty(shape, x.dtype());
  const Tensor &c = condition.value(), &u = x.value(), &v = y.value();
  dispatch(x.dtype(), [&]<class T> {
    kernels::transform<T>(
        out, [](bool chosen, T p, T q) { return chosen ? p : q; }, kernels::as<bool>(c), kernels::as<T>(u),
        kernels::as<T>(v));
  });
  return record("where", std::move(out), Input{a, [c = condition.var()](const Var& g) { return where(c, g, 0); }},
                Input{b, [c = condition.var()](const Var& g) { return where(c, 0, g); }});
}

Var masked_fill(Operand x, Operand mask, Scalar value) {
  check_mask("masked_fill", mask);
  if (!broadcasts_to(mask.shape(), x.shape())) {
    fail("masked_fill: mask {} does not broadcast to x {}", mask.shape(), x.shape());
  }
  Tensor out = Tensor::empty(x.shape(), x.dtype());
  const Tensor &from = x.value(), &m = mask.value();
  dispatch(x.dtype(), [&]<class T> {
    T filler = value.to<T>("masked_fill");
    kernels::transform<T>(
        out, [filler](T v, bool masked) { return masked ? filler : v; }, kernels::as<T>(from), kernels::as<bool>(m));
  });
  return record("masked_fill", std::move(out),
                Input{x, [m = mask.var()](const Var& g) { return masked_fill(g, m, 0); }});
}

Var eq(Operand a, Operand b) {
  return compare("eq", a, b, [](auto u, auto v) { return u == v; });
}
Var ne(Operand a, Operand b) {
  return compare("ne", a, b, [](auto u, auto v) { return u != v; });
}
Var lt(Operand a, Operand b) {
  return compare("lt", a, b, [](auto u, auto v) { return u < v; });
}
Var le(Operand a, Operand b) {
  return compare("le", a, b, [](auto u, auto v) { return u <= v; });
}
Var gt(Operand a, Operand b) {
  return compare("gt", a, b, [](auto u, auto v) { return u > v; });
}
Var ge(Operand a, Operand b) {
  return compare("ge", a, b, [](auto u, auto v) { return u >= v; });
}

Var logical_and(Operand a, Operand b) {
  return logical("logical_and", a, b, [](bool u, bool v) { return u && v; });
}
Var logical_or(Operand a, Operand b) {
  return logical("logical_or", a, b, [](bool u, bool v) { return u || v; });
}
Var logical_xor(Operand a, Operand b) {
  return logical("logical_xor", a, b, [](bool u, bool v) { return u != v; });
}
Var logical_not(Operand x) {
  check_mask("logical_not", x);
  Tensor y = Tensor::empty(x.shape(), DType::boolean);
  kernels::transform<bool>(
      y, [](bool v) { return !v; }, kernels::as<bool>(x.value()));
  return record_constant("logical_not", std::move(y));
}

}  // namespace tapedeck
