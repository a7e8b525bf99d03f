// Elementwise ops. Operands broadcast as in NumPy; numbers take the other operand's dtype; mixed dtypes throw.
#pragma once

#include <tapedeck/core/tape.h>

namespace tapedeck {

// y = a - b, a * b. f32, f64 or i64.
Var sub(Operand a, Operand b);
Var mul(Operand a, Operand b);
// y = a / b. f32 or f64. Where the incoming gradient is 0 the gradients are 0, also at b = 0.
Var div(Operand a, Operand b);
inline Var operator-(Operand a, Operand b) { return sub(a, b); }
inline Var operator*(Operand a, Operand b) { return mul(a, b); }
inline Var operator/(Operand a, Operand b) { return div(a, b); }

// y = -x. f32, f64 or i64.
Var neg(Operand x);
inline Var operator-(Operand x) { return neg(x); }

// Floating x only:
Var exp(Operand x);      // e^x
Var log(Operand x);      // ln x; -inf at 0, NaN below
Var sqrt(Operand x);     // NaN below 0; gradient g / (2 y): inf at 0 unless g = 0, then 0
Var tanh(Operand x);     // (e^2x - 1) / (e^2x + 1)
Var sigmoid(Operand x);  // 1 / (1 + e^-x)
Var relu(Operand x);     // max(x, 0); derivative 0 at 0; NaN stays NaN

Var erf(Operand x);          // 2/sqrt(pi) times the integral of e^-t^2 from 0 to x
Var gelu(Operand x);         // x (1 + erf(x / sqrt 2)) / 2 (Hendrycks & Gimpel 2016); 0 at -inf
Var softplus(Operand x);     // ln(1 + e^x), without overflow
Var log_sigmoid(Operand x);  // ln sigmoid(x) = -softplus(-x)
Var sin(Operand x);          // radians
Var cos(Operand x);          // radians

// f32, f64 or i64:
Var abs(Operand x);     // derivative 0 at 0
Var square(Operand x);  // x * x

// y = x^exponent, floating. NaN for a negative x and a fractional exponent. The derivative for exponent 0 is 0.
Var pow(Operand x, double exponent);

// The larger and the smaller one; NaN if either is NaN. Equal ones share the gradient evenly. f32, f64 or i64.
Var maximum(Operand a, Operand b);
Var minimum(Operand a, Operand b);

// x brought into [low, high], floating; the derivative is 1 at both bounds, 0 outside. Throws if low > high. NaN stays.
Var clamp(Operand x, double low, double high);

// y = condition ? a : b. `condition` is boolean; all three broadcast. No gradient flows to what was not chosen.
Var where(Operand condition, Operand a, Operand b);

// y = mask ? value : x, with a boolean mask that broadcasts to x. Filled places get exactly 0 gradient.
Var masked_fill(Operand x, Operand mask, Scalar value);

// Comparisons give boolean tensors and have no derivative: the result is a constant. NaN compares false, but unequal.
Var eq(Operand a, Operand b);
Var ne(Operand a, Operand b);
Var lt(Operand a, Operand b);
Var le(Operand a, Operand b);
Var gt(Operand a, Operand b);
Var ge(Operand a, Operand b);
inline Var operator==(Operand a, Operand b) { return eq(a, b); }
inline Var operator!=(Operand a, Operand b) { return ne(a, b); }
inline Var operator<(Operand a, Operand b) { return lt(a, b); }
inline Var operator<=(Operand a, Operand b) { return le(a, b); }
inline Var operator>(Operand a, Operand b) { return gt(a, b); }
inline Var operator>=(Operand a, Operand b) { return ge(a, b); }

// Logic on boolean tensors; no derivative.
Var logical_and(Operand a, Operand b);
Var logical_or(Operand a, Operand b);
Var logical_xor(Operand a, Operand b);
Var logical_not(Operand x);
inline Var operator&(Operand a, Operand b) { return logical_and(a, b); }
inline Var operator|(Operand a, Operand b) { return logical_or(a, b); }
inline Var operator^(Operand a, Operand b) { return logical_xor(a, b); }
inline Var operator~(Operand x) { return logical_not(x); }

namespace detail {
// For rules: the derivative `factor`, with 0 in place of inf and NaN wherever no gradient comes in, so that 0 incoming
// gives exactly 0. The factor is masked and not the product, which would be wrong in second order.
Var singular_factor(const Var& factor, const Var& g);
}  // namespace detail

}  // namespace tapedeck
