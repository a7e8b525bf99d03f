#include <tapedeck/ops/dropout.h>
#include <tapedeck/ops/elementwise.h>

namespace tapedeck {

Var dropout(Operand x, double p, Rng* rng) {
  if (!(p >= 0 && p <= 1)) fail("dropout: expected 0 <= p <= 1, got {}", p);
  if (!rng || p == 0) return x.var();
  Tensor keep = Tensor::empty(x.shape(), x.dtype());  // 1 / (1 - p) or 0
  dispatch_floating("dropout", x.dtype(), [&]<class T> {
    T scale = p < 1 ? static_cast<T>(1 / (1 - p)) : T{0};
    T* k = keep.mutable_data<T>();
    for (int64_t i = 0; i < keep.numel(); ++i) k[i] = rng->bernoulli(p) ? T{0} : scale;
  });
  // A dropped element is 0 whatever it was, inf and NaN included; so is its gradient.
  Tensor dropped = (Var(keep) == 0).value();
  Tensor y = masked_fill(x.value() * keep, dropped, 0).value();
  return record("dropout", std::move(y), Input{x, [keep = Var(keep), dropped = Var(dropped)](const Var& g) {
                                                 return masked_fill(g * keep, dropped, 0);
                                               }});
}

}  // namespace tapedeck
