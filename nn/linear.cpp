#include <tapedeck/nn/linear.h>

namespace tapedeck {

Linear::Linear(int64_t in, int64_t out, Rng& rng, LinearOptions options) {
  weight = linear_init({out, in}, in, options.dtype, rng);
  if (options.bias) bias = linear_init({out}, in, options.dtype, rng);
}

Var Linear::operator()(Operand x) const {
  UserSite here(x);
  return bias.defined() ? linear(x, weight, bias) : linear(x, weight);
}

}  // namespace tapedeck
