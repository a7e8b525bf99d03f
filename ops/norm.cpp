#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/reduce.h>

namespace tapedeck {
namespace {

void check_factor(const char* what, const Operand& x, const Operand& factor) {
  if (x.rank() < 1 || factor.rank() != 1 || factor.size(0) != x.size(-1)) {
    fail("layer_norm: expected x (..., D) and {} (D), got x {}, {} {}", what, x.shape(), what, factor.shape());
  }
  if (x.dtype() != factor.dtype() || !is_floating(x.dtype())) {
    fail("layer_norm: expected one floating dtype, got x {} {}, {} {} {}", x.dtype(), x.shape(), what, factor.dtype(),
         factor.shape());
  }
}

Var normalized(const Operand& x, double eps) {
  if (!(eps >= 0)) fail("layer_norm: expected eps >= 0, got {}", eps);
  if (x.size(-1) == 0) return x.var();
  Var centered = x - mean(x, -1, true);
  return centered / sqrt(mean(square(centered), -1, true) + eps);
}

}  // namespace

Var layer_norm(Operand x, Operand weight, Operand bias, double eps) {
  UserSite here(x);
  check_factor("weight", x, weight);
  check_factor("bias", x, bias);
  return normalized(x, eps) * weight + bias;
}

Var layer_norm(Operand x, Operand weight, double eps) {
  UserSite here(x);
  check_factor("weight", x, weight);
  return normalized(x, eps) * weight;
}

}  // namespace tapedeck
