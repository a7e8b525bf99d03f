#include <tapedeck/nn/feed_forward.h>
#include <tapedeck/ops/dropout.h>
#include <tapedeck/ops/elementwise.h>

namespace tapedeck {

FeedForward::FeedForward(int64_t size, int64_t hidden, Rng& rng, const FeedForwardOptions& o)
    : linear1(size, hidden, rng, {.dtype = o.dtype}),
      linear2(hidden, size, rng, {.dtype = o.dtype}),
      activation(o.activation),
      dropout(o.dropout) {}

Var FeedForward::operator()(Operand x, Rng* rng) const {
  UserSite here(x);
  const Var inner = linear1(x);
  return linear2(tapedeck::dropout(activation == Activation::relu ? relu(inner) : gelu(inner), dropout, rng));
}

}  // namespace tapedeck
