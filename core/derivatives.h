// Whole Jacobians and products with them, built on the tape. f is called with leaves of its own tape; it must reach
// what it depends on through its argument, and may use parameters as constants.
#pragma once

#include <tapedeck/core/tape.h>

#include <functional>

namespace tapedeck {

// A differentiable function of one tensor.
using Function = std::function<Var(const Var&)>;

// J[i..., j...] = d f(x)[i...] / d x[j...]: shape f(x).shape() + x.shape(). One backward pass for each output element.
Tensor jacobian(const Function& f, const Tensor& x);

// J^T g for g of f(x)'s shape: one backward pass.
Tensor vjp(const Function& f, const Tensor& x, const Tensor& g);

// J v for v of x's shape, by differentiating the vector-Jacobian product u -> J^T u, which is linear in u, along v
// ("double vjp"): two backward passes, and no forward rules to get wrong.
Tensor jvp(const Function& f, const Tensor& x, const Tensor& v);

// H v of an f with one element, H[j..., k...] = d^2 f / d x[j...] d x[k...]: the gradient of <grad f, v>.
Tensor hessian_vector_product(const Function& f, const Tensor& x, const Tensor& v);

}  // namespace tapedeck
