#include "op_samples.h"

#include <tapedeck/ops/ops.h>

namespace tapedeck::samples {
namespace {

Tensor drawn(const Draw& draw, uint64_t seed) {
  Rng rng(seed);
  return draw.make(draw.shape, rng);
}

// Two layers and a loss, of ops and bare parameters.
ModuleCase two_layers() {
  Parameter w1(drawn(real({4, 3}), 1)), b1(drawn(real({4}), 2)), w2(drawn(real({2, 4}), 3)), b2(drawn(real({2}), 4));
  Tensor targets = tensor({1, 0, 1, 1, 0});
  return {.f = [=](In x) -> std::vector<Var> {
            return {cross_entropy(linear(tanh(linear(x[0], w1, b1)), w2, b2), targets)};
          },
          .inputs = {{"x", drawn(real({5, 3}), 5)}},
          .parameters = {{"hidden.weight", w1}, {"hidden.bias", b1}, {"out.weight", w2}, {"out.bias", b2}}};
}

}  // namespace

const std::vector<ModuleSample>& module_samples() {
  static const std::vector<ModuleSample> samples = {
      {"two layers and cross entropy", two_layers},
  };
  return samples;
}

}  // namespace tapedeck::samples
