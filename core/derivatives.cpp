#include <tapedeck/core/derivatives.h>

namespace tapedeck {
namespace {

// A recorded f(x).
struct Recorded {
  Tape tape;
  Var x, y;
  Recorded(const Function& f, const Tensor& at) : x(tape.leaf(at)), y(f(x)) {}
};

void check_like(const char* op, const char* what, const Tensor& v, const Shape& shape, DType dtype) {
  if (v.shape() != shape || v.dtype() != dtype) {
    fail("{}: expected {} {} of shape {}, got {} of shape {}", op, what, dtype, shape, v.dtype(), v.shape());
  }
}

// The gradient of y with respect to x, zeros where y does not depend on it.
Var gradient(const Var& y, const Var& x, const GradOptions& options) {
  if (!y.tracked()) return Var(Tensor::zeros(x.shape(), x.dtype()));
  GradOptions lenient = options;
  lenient.allow_unused = true;
  Var g = grad(y, {x}, lenient)[0];
  return g.defined() ? g : Var(Tensor::zeros(x.shape(), x.dtype()));
}

// What leaves the tape, as a dense tensor of its own.
Tensor finished(const Var& g) { return g.value().clone(); }

}  // namespace

Tensor jacobian(const Function& f, const Tensor& x) {
  Recorded r(f, x);
  Shape shape = r.y.shape();
  for (int64_t extent : x.shape()) shape.push_back(extent);
  Tensor rows = Tensor::zeros({r.y.numel(), x.numel()}, x.dtype());
  for (int64_t i = 0; i < r.y.numel(); ++i) {
    Tensor unit = Tensor::zeros({r.y.numel()}, r.y.dtype());
    unit.set({i}, 1);
    Var g = gradient(r.y, r.x, {.seed = unit.reshape(r.y.shape())});
    rows.select(0, i).copy_(g.value().reshape({x.numel()}));
  }
  return rows.reshape(shape);
}

Tensor vjp(const Function& f, const Tensor& x, const Tensor& g) {
  Recorded r(f, x);
  check_like("vjp", "g", g, r.y.shape(), r.y.dtype());
  return finished(gradient(r.y, r.x, {.seed = g}));
}

Tensor jvp(const Function& f, const Tensor& x, const Tensor& v) {
  check_like("jvp", "v", v, x.shape(), x.dtype());
  Recorded r(f, x);
  Var u = r.tape.leaf(Tensor::zeros(r.y.shape(), r.y.dtype()));
  Var back = gradient(r.y, r.x, {.create_graph = true, .seed = u});  // J^T u
  return finished(gradient(back, u, {.seed = v}));
}

Tensor hessian_vector_product(const Function& f, const Tensor& x, const Tensor& v) {
  check_like("hessian_vector_product", "v", v, x.shape(), x.dtype());
  Recorded r(f, x);
  if (r.y.numel() != 1) fail("hessian_vector_product: expected an f with one element, got shape {}", r.y.shape());
  return finished(gradient(gradient(r.y, r.x, {.create_graph = true}), r.x, {.seed = v}));
}

}  // namespace tapedeck
