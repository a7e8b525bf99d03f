#include <tapedeck/nn/layer_norm.h>
#include <tapedeck/ops/norm.h>

namespace tapedeck {

LayerNorm::LayerNorm(int64_t size, LayerNormOptions options)
    : weight(Tensor::ones({size}, options.dtype)), eps(options.eps) {
  if (size < 1) fail("LayerNorm: expected size >= 1, got {}", size);
  if (!(eps >= 0)) fail("LayerNorm: expected eps >= 0, got {}", eps);
  if (options.bias) bias = Parameter(Tensor::zeros({size}, options.dtype));
}

Var LayerNorm::operator()(Operand x) const {
  UserSite here(x);
  return bias.defined() ? layer_norm(x, weight, bias, eps) : layer_norm(x, weight, eps);
}

}  // namespace tapedeck
