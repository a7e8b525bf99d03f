#include <tapedeck/ops/index.h>
#include <tapedeck/ops/shape.h>

#include <algorithm>

namespace tapedeck {

Var reshape(Operand x, const Shape& shape) {
  return record("reshape", x.value().reshape(shape),
                Input{x, [from = x.shape()](const Var& g) { return reshape(g, from); }});
}

Var transpose(Operand x, int64_t dim0, int64_t dim1) {
  return record("transpose", x.value().transpose(dim0, dim1),
                Input{x, [dim0, dim1](const Var& g) { return transpose(g, dim0, dim1); }});
}

Var permute(Operand x, std::initializer_list<int64_t> order) {
  return permute(x, std::span(order.begin(), order.size()));
}

Var permute(Operand x, std::span<const int64_t> order) {
  Tensor y = x.value().permute(order);
  Shape inverse(order);
  for (int i = 0; i < x.rank(); ++i) inverse[normalize_dim("permute", order[static_cast<size_t>(i)], x.rank())] = i;
  return record("permute", std::move(y),
                Input{x, [inverse](const Var& g) { return permute(g, std::span(inverse.begin(), inverse.end())); }});
}

Var expand(Operand x, const Shape& shape) {
  return record("expand", x.value().expand(shape), Input{x, [](const Var& g) { return g; }});
}

Var unsqueeze(Operand x, int64_t dim) {
  int d = normalize_dim("unsqueeze", dim, x.rank() + 1);
  return record("unsqueeze", x.value().unsqueeze(d), Input{x, [d](const Var& g) { return squeeze(g, d); }});
}

Var squeeze(Operand x, int64_t dim) {
  int d = normalize_dim("squeeze", dim, x.rank());
  return record("squeeze", x.value().squeeze(dim), Input{x, [d](const Var& g) { return unsqueeze(g, d); }});
}

Var slice(Operand x, int64_t dim, int64_t start, int64_t stop, int64_t step) {
  int d = normalize_dim("slice", dim, x.rank());
  Tensor y = x.value().slice(d, start, stop, step);
  int64_t extent = x.shape()[d], first = std::clamp<int64_t>(start < 0 ? start + extent : start, 0, extent);
  return record(
      "slice", std::move(y),
      Input{x, [shape = x.shape(), d, first, step](const Var& g) { return slice_scatter(g, shape, d, first, step); },
            [d, first, step](Tensor& sum, const Tensor& g) {
              int64_t end = g.shape()[d] > 0 ? first + (g.shape()[d] - 1) * step + 1 : first;
              sum.slice(d, first, end, step).add_(g);
            }});
}

Var slice_scatter(Operand x, const Shape& shape, int64_t dim, int64_t start, int64_t step) {
  int d = normalize_dim("slice_scatter", dim, shape.rank());
  Tensor y = Tensor::zeros(shape, x.dtype());
  int64_t stop = x.rank() == shape.rank() && x.shape()[d] > 0 ? start + (x.shape()[d] - 1) * step + 1 : start;
  Tensor place = y.slice(d, start, stop, step);
  if (start < 0 || stop > shape[d] || place.shape() != x.shape()) {
    fail("slice_scatter: x {} does not fit into {} from {} in steps of {} along axis {}", x.shape(), shape, start, step,
         dim);
  }
  place.copy_(x.value());
  return record("slice_scatter", std::move(y),
                Input{x, [d, start, stop, step](const Var& g) { return slice(g, d, start, stop, step); }});
}

Var select(Operand x, int64_t dim, int64_t index) {
  int d = normalize_dim("select", dim, x.rank());
  Tensor y = x.value().select(dim, index);
  if (index < 0) index += x.shape()[d];
  return record(
      "select", std::move(y),
      Input{x,
            [shape = x.shape(), d, index](const Var& g) { return slice_scatter(unsqueeze(g, d), shape, d, index, 1); },
            [d, index](Tensor& sum, const Tensor& g) { sum.select(d, index).add_(g); }});
}

namespace {

// part(k) is the k-th part; each gets its slice of the incoming gradient.
template <class Part>
Var join(const char* op, size_t count, const Part& part, int64_t dim) {
  if (count == 0) fail("{}: expected at least one tensor", op);
  const Operand& first = part(0);
  int d = normalize_dim(op, dim, first.rank());
  Shape shape = first.shape();
  shape[d] = 0;
  for (size_t k = 0; k < count; ++k) {
    const Operand& x = part(k);
    bool fits = x.rank() == first.rank() && x.dtype() == first.dtype();
    for (int i = 0; fits && i < shape.rank(); ++i) fits = i == d || x.shape()[i] == shape[i];
    if (!fits) {
      fail("{}: part {} is {} {}, part 0 is {} {}: dtypes, and all extents but that of axis {}, must agree", op, k,
           x.dtype(), x.shape(), first.dtype(), first.shape(), dim);
    }
    shape[d] += x.shape()[d];
  }
  Tensor y = Tensor::empty(shape, first.dtype());
  auto rule_of = [d](int64_t start, int64_t stop) {
    return [d, start, stop](const Var& g) { return slice(g, d, start, stop); };
  };
  using Rule = decltype(rule_of(0, 0));
  CachedVector<Input<Rule>> inputs;
  int64_t start = 0;
  for (size_t k = 0; k < count; ++k) {
    const Operand& x = part(k);
    int64_t stop = start + x.shape()[d];
    y.slice(d, start, stop).copy_(x.value());
    inputs.emplace_back(x, rule_of(start, stop));
    start = stop;
  }
  return record(op, std::move(y), std::span<Input<Rule>>(inputs));
}

void check_stacked(const Var& first, const Var& part, size_t k) {
  if (part.shape() != first.shape() || part.dtype() != first.dtype()) {
    fail("stack: part {} is {} {}, part 0 is {} {}; all must be equal", k, part.dtype(), part.shape(), first.dtype(),
         first.shape());
  }
}

}  // namespace

Var cat(std::span<const Var> parts, int64_t dim, Site site) {
  CachedVector<Operand> operands;
  for (const Var& part : parts) operands.emplace_back(part, site.file, site.line);
  return join(
      "cat", operands.size(), [&](size_t k) -> const Operand& { return operands[k]; }, dim);
}

Var cat(std::initializer_list<Operand> parts, int64_t dim) {
  return join(
      "cat", parts.size(), [&](size_t k) -> const Operand& { return parts.begin()[k]; }, dim);
}

Var stack(std::span<const Var> parts, int64_t dim, Site site) {
  if (parts.empty()) fail("stack: expected at least one tensor");
  dim = normalize_dim("stack", dim, parts[0].rank() + 1);
  CachedVector<Var> rows;
  for (size_t k = 0; k < parts.size(); ++k) {
    check_stacked(parts[0], parts[k], k);
    rows.push_back(unsqueeze(Operand(parts[k], site.file, site.line), dim));
  }
  return cat(rows, dim, site);
}

Var stack(std::initializer_list<Operand> parts, int64_t dim) {
  CachedVector<Var> vars;
  for (const Operand& part : parts) vars.push_back(part.var());
  return stack(vars, dim, parts.size() > 0 ? parts.begin()->site() : Site{});
}

std::vector<Var> split(Operand x, int64_t size, int64_t dim) {
  int d = normalize_dim("split", dim, x.rank());
  if (size < 1) fail("split: expected size >= 1, got {}", size);
  std::vector<Var> parts;
  for (int64_t start = 0; start < x.shape()[d]; start += size) parts.push_back(slice(x, d, start, start + size));
  return parts;
}

std::vector<Var> split(Operand x, std::initializer_list<int64_t> sizes, int64_t dim) {
  int d = normalize_dim("split", dim, x.rank());
  int64_t total = 0;
  for (int64_t size : sizes) total += size < 0 ? x.shape()[d] + 1 : size;
  if (total != x.shape()[d]) {
    fail("split: sizes {} must be >= 0 and add up to {}, axis {} of shape {}", Shape(sizes), x.shape()[d], dim,
         x.shape());
  }
  std::vector<Var> parts;
  int64_t start = 0;
  for (int64_t size : sizes) {
    parts.push_back(slice(x, d, start, start + size));
    start += size;
  }
  return parts;
}

std::vector<Var> chunk(Operand x, int64_t count, int64_t dim) {
  int d = normalize_dim("chunk", dim, x.rank());
  const int64_t extent = x.shape()[d];
  if (count < 1 || count > std::max<int64_t>(extent, 1)) {
    fail("chunk: expected 1 to {} parts of axis {} of shape {}, got {}", extent, dim, x.shape(), count);
  }
  std::vector<Var> parts;
  int64_t start = 0;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t stop = start + extent / count + (k < extent % count ? 1 : 0);
    parts.push_back(slice(x, d, start, stop));
    start = stop;
  }
  return parts;
}

Var flip(Operand x, int64_t dim) {
  int d = normalize_dim("flip", dim, x.rank());
  const int64_t n = x.shape()[d];
  Tensor order = Tensor::empty({n}, DType::i64);
  int64_t* p = order.mutable_data<int64_t>();
  for (int64_t i = 0; i < n; ++i) p[i] = n - 1 - i;
  return index_select(x, d, order);
}

Var roll(Operand x, int64_t shift, int64_t dim) {
  int d = normalize_dim("roll", dim, x.rank());
  const int64_t n = x.shape()[d];
  if (n == 0) return x.var();
  const int64_t cut = ((-shift) % n + n) % n;  // what comes first in the result
  return cat({slice(x, d, cut, n), slice(x, d, 0, cut)}, d);
}

Var pad(Operand x, int64_t dim, int64_t before, int64_t after, Scalar value) {
  int d = normalize_dim("pad", dim, x.rank());
  if (before < 0 || after < 0) fail("pad: expected before >= 0 and after >= 0, got {} and {}", before, after);
  Shape front = x.shape(), back = x.shape();
  front[d] = before;
  back[d] = after;
  return cat({Tensor::full(front, value, x.dtype()), x, Tensor::full(back, value, x.dtype())}, d);
}

Var contiguous(Operand x) {
  if (x.value().is_contiguous()) return x.var();
  return record("contiguous", x.value().clone(), Input{x, [](const Var& g) { return g; }});
}

}  // namespace tapedeck
