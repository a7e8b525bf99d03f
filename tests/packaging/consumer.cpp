// A user's program: the gradient of sum(tanh(x W)), which needs the tape, BLAS and fmt.
#include <tapedeck/core/version.h>
#include <tapedeck/ops/ops.h>

#ifdef EXPECTED_VERSION  // what the package says of itself
static_assert(tapedeck::version() == EXPECTED_VERSION);
#endif

int main() {
  tapedeck::Tape tape;
  tapedeck::Var x = tape.leaf(tapedeck::tensor({{0.0, 0.0}}, tapedeck::DType::f64));
  tapedeck::Tensor weight = tapedeck::tensor({{1.0, 2.0}, {3.0, 4.0}}, tapedeck::DType::f64);
  tapedeck::Gradients grads = tape.backward(tapedeck::sum(tapedeck::tanh(tapedeck::matmul(x, weight))));
  fmt::print("{}\n", grads[x]);
}
