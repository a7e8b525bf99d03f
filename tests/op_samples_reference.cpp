#include "op_samples_reference.h"

#include <algorithm>
#include <cmath>

namespace tapedeck::samples {

Array::Array(const Shape& extents, double value) : shape(extents), data(static_cast<size_t>(extents.numel()), value) {}

Array::Array(const Tensor& x) : Array(x.shape()) {
  for_each_index(shape, [&](const Index& index) {
    int64_t offset = 0;
    for (size_t i = 0; i < index.size(); ++i) offset += index[i] * x.strides()[static_cast<int>(i)];
    (*this)(index) = dispatch(x.dtype(), [&]<class T> { return static_cast<double>(x.data<T>()[offset]); });
  });
}

size_t Array::position(const Index& index) const {
  int64_t at = 0;
  for (int i = 0; i < shape.rank(); ++i) at = at * shape[i] + index[static_cast<size_t>(i)];
  return static_cast<size_t>(at);
}

void for_each_index(const Shape& shape, const std::function<void(const Index&)>& visit) {
  Index index(static_cast<size_t>(shape.rank()), 0);
  for (int64_t n = 0; n < shape.numel(); ++n) {
    int64_t rest = n;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      index[static_cast<size_t>(i)] = rest % shape[i];
      rest /= shape[i];
    }
    visit(index);
  }
}

namespace {

Shape common_shape(const std::vector<Array>& in) {
  Shape out;
  for (const Array& x : in) {
    while (out.rank() < x.shape.rank()) out.insert(0, 1);
    for (int i = 0; i < x.shape.rank(); ++i) {
      int64_t& extent = out[out.rank() - x.shape.rank() + i];
      if (x.shape[i] != 1) extent = x.shape[i];
    }
  }
  return out;
}

// A place in x for a place in a shape that x broadcasts to.
Index source_index(const Index& index, const Shape& x) {
  Index from(index.end() - x.rank(), index.end());
  for (int i = 0; i < x.rank(); ++i) {
    if (x[i] == 1) from[static_cast<size_t>(i)] = 0;
  }
  return from;
}

}  // namespace

Array repeated(const Array& x, const Shape& shape) {
  Array y(shape);
  for_each_index(shape, [&](const Index& index) { y(index) = x(source_index(index, x.shape)); });
  return y;
}

Reference each(std::function<double(const double*)> f) {
  return [f](const std::vector<Array>& in) {
    Array y(common_shape(in));
    std::vector<Array> same;
    for (const Array& x : in) same.push_back(repeated(x, y.shape));
    std::vector<double> v(in.size());
    for_each_index(y.shape, [&](const Index& index) {
      for (size_t k = 0; k < in.size(); ++k) v[k] = same[k](index);
      y(index) = f(v.data());
    });
    return y;
  };
}

Reference over(std::vector<int> dims, bool keepdim, std::function<double(const std::vector<double>&)> f) {
  return [dims, keepdim, f](const std::vector<Array>& in) {
    const Array& x = in[0];
    std::vector<bool> reduced(static_cast<size_t>(x.shape.rank()), dims.empty());
    for (int dim : dims) reduced[static_cast<size_t>(dim < 0 ? dim + x.shape.rank() : dim)] = true;
    Shape kept = x.shape, gone = x.shape;
    for (int i = 0; i < x.shape.rank(); ++i) (reduced[static_cast<size_t>(i)] ? kept : gone)[i] = 1;
    Array y(kept);
    for_each_index(kept, [&](const Index& at) {
      std::vector<double> run;
      for_each_index(gone, [&](const Index& step) {
        Index index = at;
        for (size_t i = 0; i < index.size(); ++i) index[i] += step[i];
        run.push_back(x(index));
      });
      y(at) = f(run);
    });
    if (!keepdim) {
      Shape shape;
      for (int i = 0; i < x.shape.rank(); ++i) {
        if (!reduced[static_cast<size_t>(i)]) shape.push_back(x.shape[i]);
      }
      y.shape = shape;
    }
    return y;
  };
}

Reference along(int dim, std::function<std::vector<double>(const std::vector<double>&, const std::vector<double>&)> f) {
  return [dim, f](const std::vector<Array>& in) {
    const Array& x = in[0];
    const size_t d = static_cast<size_t>(dim < 0 ? dim + x.shape.rank() : dim);
    Array second = in.size() > 1 ? repeated(in[1], x.shape) : Array();
    Shape starts = x.shape;
    starts[static_cast<int>(d)] = std::min<int64_t>(1, x.shape[static_cast<int>(d)]);
    Array y(x.shape);
    for_each_index(starts, [&](const Index& at) {
      Index index = at;
      std::vector<double> u, v;
      for (int64_t i = 0; i < x.shape[static_cast<int>(d)]; ++i) {
        index[d] = i;
        u.push_back(x(index));
        if (in.size() > 1) v.push_back(second(index));
      }
      std::vector<double> result = f(u, v);
      for (size_t i = 0; i < result.size(); ++i) {
        index[d] = static_cast<int64_t>(i);
        y(index) = result[i];
      }
    });
    return y;
  };
}

Reference moved(const Shape& shape, std::function<Index(const Index&)> from) {
  return [shape, from](const std::vector<Array>& in) {
    Array y(shape);
    for_each_index(shape, [&](const Index& index) { y(index) = in[0](from(index)); });
    return y;
  };
}

Array product(const Array& a_in, const Array& b_in) {
  Array a = a_in, b = b_in;
  bool row = a.shape.rank() == 1, column = b.shape.rank() == 1;
  if (row) a.shape.insert(0, 1);
  if (column) b.shape.push_back(1);
  auto leading = [](const Array& x) {
    Shape shape = x.shape;
    shape.erase(shape.rank() - 1);
    shape.erase(shape.rank() - 1);
    return Array(shape);
  };
  Shape batch = common_shape({leading(a), leading(b)});
  int64_t m = a.shape[a.shape.rank() - 2], inner = a.shape[a.shape.rank() - 1], n = b.shape[b.shape.rank() - 1];
  auto with = [&](int64_t rows, int64_t cols) {
    Shape shape = batch;
    shape.push_back(rows);
    shape.push_back(cols);
    return shape;
  };
  a = repeated(a, with(m, inner));
  b = repeated(b, with(inner, n));
  Array y(with(m, n));
  for_each_index(y.shape, [&](const Index& index) {
    Index i = index, j = index;
    for (int64_t k = 0; k < inner; ++k) {
      i[i.size() - 1] = j[j.size() - 2] = k;
      y(index) += a(i) * b(j);
    }
  });
  if (column) y.shape.erase(y.shape.rank() - 1);
  if (row) y.shape.erase(y.shape.rank() - (column ? 1 : 2));
  return y;
}

double sum_of(const std::vector<double>& x) {
  double total = 0;
  for (double v : x) total += v;
  return total;
}

double mean_of(const std::vector<double>& x) { return sum_of(x) / static_cast<double>(x.size()); }

double max_of(const std::vector<double>& x) {
  double best = x[0];
  for (double v : x) {
    if (v > best || std::isnan(v)) best = v;
  }
  return best;
}

double argmax_of(const std::vector<double>& x) {
  size_t best = 0;
  for (size_t i = 1; i < x.size(); ++i) {
    if (x[i] > x[best]) best = i;
  }
  return static_cast<double>(best);
}

double logsumexp_of(const std::vector<double>& x) {
  double total = 0;
  for (double v : x) total += std::exp(v);
  return std::log(total);
}

std::vector<double> softmax_of(const std::vector<double>& x, const std::vector<double>&) {
  return masked_softmax_of(x, std::vector<double>(x.size(), 1));
}

std::vector<double> log_softmax_of(const std::vector<double>& x, const std::vector<double>&) {
  std::vector<double> y;
  for (double v : x) y.push_back(v - logsumexp_of(x));
  return y;
}

std::vector<double> masked_softmax_of(const std::vector<double>& x, const std::vector<double>& mask) {
  double total = 0;
  for (size_t i = 0; i < x.size(); ++i) total += mask[i] != 0 ? std::exp(x[i]) : 0;
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(mask[i] != 0 ? std::exp(x[i]) / total : 0);
  return y;
}

}  // namespace tapedeck::samples
