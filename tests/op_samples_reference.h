// References for the table of ops: plain loops over row-major doubles that share no code with the kernels they judge.
#pragma once

#include <tapedeck/core/tensor.h>

#include <functional>
#include <vector>

namespace tapedeck::samples {

using Index = std::vector<int64_t>;

struct Array {
  Shape shape;
  std::vector<double> data;

  Array() = default;
  explicit Array(const Shape& shape, double value = 0);
  explicit Array(const Tensor& x);  // any dtype; read one by one, through the strides

  double& operator()(const Index& index) { return data[position(index)]; }
  double operator()(const Index& index) const { return data[position(index)]; }

 private:
  size_t position(const Index& index) const;
};

// visit(index) in row-major order.
void for_each_index(const Shape& shape, const std::function<void(const Index&)>& visit);

// What an op should give for its inputs.
using Reference = std::function<Array(const std::vector<Array>&)>;

// y[i] = f(v) with v[k] the element of input k at i; all inputs are repeated to one shape.
Reference each(std::function<double(const double*)> f);

// y = f(the elements along `dims`, in row-major order). No dims: all of them.
Reference over(std::vector<int> dims, bool keepdim, std::function<double(const std::vector<double>&)> f);

// y's elements along `dim` = f(x's, and those of a second input that broadcasts to x, if there is one).
Reference along(int dim, std::function<std::vector<double>(const std::vector<double>&, const std::vector<double>&)> f);

// y[i] = x[from(i)], of the given shape.
Reference moved(const Shape& shape, std::function<Index(const Index&)> from);

// x repeated to `shape` by NumPy's rules.
Array repeated(const Array& x, const Shape& shape);

// (..., M, K) @ (..., K, N), with vectors and leading axes as in NumPy.
Array product(const Array& a, const Array& b);

// The functions that `over` and `along` are given.
double sum_of(const std::vector<double>& x);
double mean_of(const std::vector<double>& x);
double max_of(const std::vector<double>& x);
double argmax_of(const std::vector<double>& x);
double logsumexp_of(const std::vector<double>& x);
std::vector<double> softmax_of(const std::vector<double>& x, const std::vector<double>& = {});
std::vector<double> log_softmax_of(const std::vector<double>& x, const std::vector<double>& = {});
std::vector<double> masked_softmax_of(const std::vector<double>& x, const std::vector<double>& mask);

}  // namespace tapedeck::samples
