#include <tapedeck/core/kernels.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/shape.h>

#include <algorithm>
#include <cstring>

namespace tapedeck {
namespace {

// Row-major i64 indices, each in 0..bound-1.
Tensor checked_indices(const char* op, const Operand& index, int64_t bound) {
  if (index.dtype() != DType::i64) {
    fail("{}: expected i64 indices, got {} of shape {}; convert with .to(DType::i64)", op, index.dtype(),
         index.shape());
  }
  Tensor dense = index.value().contiguous();
  const int64_t* p = dense.data<int64_t>();
  for (int64_t i = 0; i < dense.numel(); ++i) {
    if (p[i] < 0 || p[i] >= bound) {
      fail("{}: index {} at position {} of shape {} is out of range (expected 0 to {})", op, p[i], i, index.shape(),
           bound - 1);
    }
  }
  return dense;
}

// Lookup and its adjoint treat a table as (V, n) rows.
template <class T>
void copy_rows(T* to, const T* table, const int64_t* ids, int64_t count, int64_t n) {
  for (int64_t i = 0; i < count; ++i) {
    if (n > 0) std::memcpy(to + i * n, table + ids[i] * n, static_cast<size_t>(n) * sizeof(T));
  }
}

template <class T>
void add_rows(T* table, const T* rows, const int64_t* ids, int64_t count, int64_t n) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < n; ++j) table[ids[i] * n + j] += rows[i * n + j];
  }
}

// x with axis `dim` first, and back.
Tensor axis_first(const Tensor& x, int dim) {
  std::array<int64_t, max_rank> order{};
  size_t count = 0;
  order[count++] = dim;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != dim) order[count++] = i;
  }
  return x.permute(std::span<const int64_t>(order.data(), count));
}
Tensor axis_back(const Tensor& x, int dim) {
  std::array<int64_t, max_rank> order{};
  size_t count = 0;
  for (int i = 1; i < x.rank(); ++i) order[count++] = i;
  std::rotate(order.data() + dim, order.data() + count, order.data() + count + 1);
  order[static_cast<size_t>(dim)] = 0;
  return x.permute(std::span<const int64_t>(order.data(), count + 1));
}

// zeros(V, D) + rows of x at ids; nothing for row `skipped`.
Var embedding_adjoint(const Var& x, const Var& ids, int64_t vocabulary, std::optional<int64_t> skipped);

}  // namespace

Var embedding(Operand weight, Operand ids, std::optional<int64_t> padding_idx) {
  if (weight.rank() != 2) fail("embedding: expected a weight (V, D), got shape {}", weight.shape());
  int64_t vocabulary = weight.shape()[0], n = weight.shape()[1];
  if (padding_idx && (*padding_idx < 0 || *padding_idx >= vocabulary)) {
    fail("embedding: padding row {} is out of range (expected 0 to {})", *padding_idx, vocabulary - 1);
  }
  Tensor dense_ids = checked_indices("embedding", ids, vocabulary);
  Tensor table = weight.value().contiguous();
  Shape shape = ids.shape();
  shape.push_back(n);
  Tensor y = Tensor::empty(shape, weight.dtype());
  dispatch_floating("embedding", weight.dtype(), [&]<class T> {
    copy_rows(y.mutable_data<T>(), table.data<T>(), dense_ids.data<int64_t>(), dense_ids.numel(), n);
  });
  return record("embedding", std::move(y), Input{weight, [ids = ids.var(), vocabulary, padding_idx](const Var& g) {
                                                   return embedding_adjoint(g, ids, vocabulary, padding_idx);
                                                 }});
}

namespace {

Var embedding_adjoint(const Var& x, const Var& ids, int64_t vocabulary, std::optional<int64_t> skipped) {
  int64_t n = x.shape()[x.rank() - 1];
  Tensor y = Tensor::zeros({vocabulary, n}, x.dtype());
  Tensor rows = x.value().contiguous(), dense_ids = ids.value().contiguous();
  dispatch_floating("embedding", x.dtype(), [&]<class T> {
    T* table = y.mutable_data<T>();
    add_rows(table, rows.data<T>(), dense_ids.data<int64_t>(), dense_ids.numel(), n);
    if (skipped) std::fill_n(table + *skipped * n, n, T{0});
  });
  // The transpose of "add rows, then zero the skipped one" is the lookup in a table whose skipped row is zero.
  return record("embedding_adjoint", std::move(y),
                Input{x, [ids, vocabulary, skipped](const Var& g) {
                        if (!skipped) return embedding(g, ids);
                        Tensor frozen = Tensor::full({vocabulary, 1}, false, DType::boolean);
                        frozen.set({*skipped, 0}, true);
                        return embedding(masked_fill(g, frozen, 0), ids);
                      }});
}

// Calls f(offset in x's storage, position in index) for every index; x strides are given, its axis `dim` is indexed.
template <class F>
void for_each_gathered(const Shape& x_strides, const Tensor& index, int dim, F f) {
  Shape others = x_strides;
  others[dim] = 0;
  kernels::Plan<2> plan(index.shape(), {others, contiguous_strides(index.shape())});
  const int64_t* p = index.data<int64_t>();
  int64_t n = plan.inner_extent(), sx = plan.inner_stride(0), si = plan.inner_stride(1);
  plan.for_each_row([&](const auto& at) {
    for (int64_t i = 0; i < n; ++i) {
      int64_t position = at[1] + i * si;
      f(at[0] + i * sx + p[position] * x_strides[dim], position);
    }
  });
}

void check_gather(const char* op, const Shape& shape, const Operand& index, int d) {
  bool fits = index.rank() == shape.rank();
  for (int i = 0; fits && i < shape.rank(); ++i) fits = i == d || index.shape()[i] <= shape[i];
  if (!fits) {
    fail("{}: index {} must have the rank of x {} and at most its extents on all axes but {}", op, index.shape(), shape,
         d);
  }
}

}  // namespace

Var gather(Operand x, int64_t dim, Operand index) {
  int d = normalize_dim("gather", dim, x.rank());
  check_gather("gather", x.shape(), index, d);
  Tensor dense = checked_indices("gather", index, x.shape()[d]);
  Tensor y = Tensor::empty(index.shape(), x.dtype());
  const Tensor& from = x.value();
  dispatch(x.dtype(), [&]<class T> {
    const T* p = from.data<T>();
    T* to = y.mutable_data<T>();
    for_each_gathered(from.strides(), dense, d, [&](int64_t offset, int64_t position) { to[position] = p[offset]; });
  });
  return record("gather", std::move(y), Input{x, [shape = x.shape(), d, index = index.var()](const Var& g) {
                                                return gather_adjoint(g, shape, d, index);
                                              }});
}

Var gather_adjoint(Operand x, const Shape& shape, int64_t dim, Operand index) {
  int d = normalize_dim("gather_adjoint", dim, shape.rank());
  check_gather("gather_adjoint", shape, index, d);
  if (x.shape() != index.shape()) fail("gather_adjoint: x {} and index {} differ", x.shape(), index.shape());
  Tensor dense = checked_indices("gather_adjoint", index, shape[d]);
  Tensor y = Tensor::zeros(shape, x.dtype());
  Tensor from = x.value().contiguous();
  dispatch_floating("gather_adjoint", x.dtype(), [&]<class T> {
    const T* p = from.data<T>();
    T* to = y.mutable_data<T>();
    for_each_gathered(y.strides(), dense, d, [&](int64_t offset, int64_t position) { to[offset] += p[position]; });
  });
  return record("gather_adjoint", std::move(y),
                Input{x, [d, index = index.var()](const Var& g) { return gather(g, d, index); }});
}

Var index_select(Operand x, int64_t dim, Operand index) {
  int d = normalize_dim("index_select", dim, x.rank());
  if (index.rank() != 1) fail("index_select: expected an index of rank 1, got shape {}", index.shape());
  int64_t extent = x.shape()[d];
  Tensor dense = checked_indices("index_select", index, extent);
  Tensor table = axis_first(x.value(), d).contiguous();
  Shape shape = table.shape();
  shape[0] = dense.numel();
  Tensor rows = Tensor::empty(shape, x.dtype());
  int64_t n = extent > 0 ? table.numel() / extent : 0;
  dispatch(x.dtype(), [&]<class T> {
    copy_rows(rows.mutable_data<T>(), table.data<T>(), dense.data<int64_t>(), dense.numel(), n);
  });
  return record("index_select", axis_back(rows, d),
                Input{x, [extent, d, index = index.var()](const Var& g) { return index_add(g, extent, d, index); }});
}

Var index_add(Operand x, int64_t extent, int64_t dim, Operand index) {
  int d = normalize_dim("index_add", dim, x.rank());
  if (index.rank() != 1 || index.numel() != x.shape()[d]) {
    fail("index_add: expected as many indices as axis {} of x {} has elements, got index {}", dim, x.shape(),
         index.shape());
  }
  Tensor dense = checked_indices("index_add", index, extent);
  Tensor rows = axis_first(x.value(), d).contiguous();
  Shape shape = rows.shape();
  shape[0] = extent;
  Tensor table = Tensor::zeros(shape, x.dtype());
  int64_t n = extent > 0 ? table.numel() / extent : 0;
  dispatch_number("index_add", x.dtype(), [&]<class T> {
    add_rows(table.mutable_data<T>(), rows.data<T>(), dense.data<int64_t>(), dense.numel(), n);
  });
  return record("index_add", axis_back(table, d),
                Input{x, [d, index = index.var()](const Var& g) { return index_select(g, d, index); }});
}

Var scatter_add(Operand x, int64_t dim, Operand index, Operand src) {
  UserSite here(x);
  int d = normalize_dim("scatter_add", dim, x.rank());
  if (x.dtype() != src.dtype() || !is_floating(x.dtype())) {
    fail("scatter_add: expected x and src of one floating dtype, got {} {} and {} {}", x.dtype(), x.shape(),
         src.dtype(), src.shape());
  }
  check_gather("scatter_add", x.shape(), index, d);
  if (src.shape() != index.shape()) {
    fail("scatter_add: index {} and src {} differ (x is {})", index.shape(), src.shape(), x.shape());
  }
  checked_indices("scatter_add", index, x.shape()[d]);
  return x + gather_adjoint(src, x.shape(), d, index);
}

Var one_hot(Operand ids, int64_t classes, DType dtype) {
  if (classes < 1) fail("one_hot: expected at least one class, got {}", classes);
  Tensor dense = checked_indices("one_hot", ids, classes);
  Shape shape = ids.shape();
  shape.push_back(classes);
  Tensor y = Tensor::zeros(shape, dtype);
  dispatch(dtype, [&]<class T> {
    T* p = y.mutable_data<T>();
    const int64_t* id = dense.data<int64_t>();
    for (int64_t i = 0; i < dense.numel(); ++i) p[i * classes + id[i]] = T{1};
  });
  return record_constant("one_hot", std::move(y));
}

void index_put_(Tensor& target, int64_t dim, const Tensor& index, const Tensor& source, bool accumulate) {
  int d = normalize_dim("index_put_", dim, target.rank());
  Shape expected = target.shape();
  expected[d] = index.numel();
  if (index.rank() != 1 || source.shape() != expected || source.dtype() != target.dtype()) {
    fail("index_put_: expected an index of rank 1 and a source {} {}, got {} and {} {}", target.dtype(), expected,
         index.shape(), source.dtype(), source.shape());
  }
  Tensor dense = checked_indices("index_put_", index, target.shape()[d]);
  // A source in the same memory is read as it was before.
  const Tensor rows = source.shares_storage(target) ? source.clone() : source;
  const int64_t* p = dense.data<int64_t>();
  for (int64_t j = 0; j < dense.numel(); ++j) {
    Tensor row = target.select(d, p[j]);
    if (accumulate)
      row.add_(rows.select(d, j));
    else
      row.copy_(rows.select(d, j));
  }
}

}  // namespace tapedeck
