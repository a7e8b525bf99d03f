#include <tapedeck/core/kernels.h>
#include <tapedeck/core/tensor.h>

#include <algorithm>
#include <cmath>
#include <new>

namespace tapedeck {
namespace {

bool row_major(const Shape& shape, const Shape& strides) {
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

// Strides that read `from` (with its strides) as `to`, if there are any.
bool reshaped_strides(const Shape& from, const Shape& strides, const Shape& to, Shape& result) {
  result = contiguous_strides(to);
  int i = 0, j = 0;
  while (i < from.rank() || j < to.rank()) {
    // Match the smallest groups of axes with equal products; each group of `from` must be dense within itself.
    int64_t a = i < from.rank() ? from[i] : 1, b = j < to.rank() ? to[j] : 1;
    int first_i = i, first_j = j;
    i = std::min(i + 1, from.rank());
    j = std::min(j + 1, to.rank());
    while (a != b) {
      if (a < b) {
        if (i == from.rank()) return false;
        a *= from[i++];
      } else {
        if (j == to.rank()) return false;
        b *= to[j++];
      }
    }
    int64_t step = 1;
    bool started = false;
    for (int k = i - 1; k >= first_i; --k) {
      if (from[k] == 1) continue;
      if (started && strides[k] != step) return false;
      step = strides[k] * from[k];
      started = true;
    }
    int64_t inner = 1;
    for (int k = i - 1; k >= first_i; --k) {
      if (from[k] != 1) {
        inner = strides[k];
        break;
      }
    }
    for (int k = j - 1; k >= first_j; --k) {
      result[k] = inner;
      inner *= to[k];
    }
  }
  return true;
}

template <class To, class From>
void convert(Tensor& out, const Tensor& in) {
  kernels::transform<To>(
      out,
      [](From v) {
        if constexpr (std::is_same_v<To, int64_t> && std::is_floating_point_v<From>) {
          constexpr From limit = 9223372036854775808.0;  // 2^63
          if (!(v >= -limit && v < limit)) fail("to: {} does not fit an i64 tensor", v);
        }
        if constexpr (std::is_same_v<To, bool>)
          return v != From{0};
        else
          return static_cast<To>(v);
      },
      kernels::as<From>(in));
}

// True if element i of the one is element i of the other and nothing else is shared, or nothing is shared at all: an
// in-place op may read `source` while it writes `target`.
bool reads_what_it_writes(const Tensor& target, const Tensor& source) {
  if (!target.shares_storage(source)) return true;
  if (target.shape() != source.shape() || target.strides() != source.strides()) return false;
  return dispatch(target.dtype(), [&]<class T> { return target.data<T>() == source.data<T>(); });
}

void check_in_place(const char* op, const Tensor& target, const Tensor& source) {
  if (target.dtype() != source.dtype()) {
    fail("{}: dtypes differ: target {}, source {}; convert with .to()", op, target.dtype(), source.dtype());
  }
  if (!broadcasts_to(source.shape(), target.shape())) {
    fail("{}: source {} does not broadcast to target {}", op, source.shape(), target.shape());
  }
}

}  // namespace

NestedList::NestedList(std::initializer_list<NestedList> rows) {
  shape_.push_back(static_cast<int64_t>(rows.size()));
  all_bool_ = rows.size() > 0;
  for (const NestedList& row : rows) {
    if (row.shape_ != rows.begin()->shape_) {
      fail("tensor: rows of one tensor must have equal shapes: the first has {}, another {}", rows.begin()->shape_,
           row.shape_);
    }
    values_.insert(values_.end(), row.values_.begin(), row.values_.end());
    all_bool_ = all_bool_ && row.all_bool_;
  }
  if (rows.size() > 0) {
    for (int64_t extent : rows.begin()->shape_) shape_.push_back(extent);
  }
}

DType NestedList::natural_dtype() const {
  if (all_bool_) return DType::boolean;
  bool integers =
      !values_.empty() && std::all_of(values_.begin(), values_.end(), [](const Scalar& v) { return v.integral; });
  return integers ? DType::i64 : DType::f32;
}

Tensor tensor(const NestedList& values) { return tensor(values, values.natural_dtype()); }

Tensor tensor(const NestedList& values, DType dtype) {
  Tensor out = Tensor::empty(values.shape(), dtype);
  dispatch(dtype, [&]<class T> {
    std::transform(values.values().begin(), values.values().end(), out.mutable_data<T>(),
                   [](const Scalar& v) { return v.to<T>("tensor"); });
  });
  return out;
}

void Tensor::undefined() { fail("tensor: this tensor is undefined (default-constructed or moved from)"); }

void Tensor::wrong_type(DType asked) const { fail("data: the tensor is {}, asked for as {}", dtype(), asked); }

void Tensor::release(View* view) noexcept {
  if (view->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  view->storage->release();
  view->~View();
  cached_free(view);
}

Tensor Tensor::make(const Shape& shape, const Shape& strides, int64_t offset, DType dtype, Storage* owned) {
  void* memory = cached_allocate(sizeof(View));
  Tensor out;
  out.view_ = new (memory) View{{1}, dtype, row_major(shape, strides), owned, offset, shape, strides};
  return out;
}

Tensor Tensor::with(const Shape& shape, const Shape& strides, int64_t offset) const {
  view_->storage->retain();
  return make(shape, strides, offset, dtype(), view_->storage);
}

Tensor Tensor::empty(const Shape& shape, DType dtype) {
  check_extents("empty", shape);
  Storage* storage = Storage::allocate(static_cast<size_t>(shape.numel() * size_of(dtype)));
  return make(shape, contiguous_strides(shape), 0, dtype, storage);
}

Tensor Tensor::full(const Shape& shape, Scalar value, DType dtype) {
  Tensor out = empty(shape, dtype);
  out.fill_(value);
  return out;
}

Tensor Tensor::arange(int64_t n, DType dtype) {
  if (n < 0) fail("arange: expected n >= 0, got {}", n);
  Tensor out = empty({n}, dtype);
  dispatch(dtype, [&]<class T> {
    T* p = out.mutable_data<T>();
    for (int64_t i = 0; i < n; ++i) p[i] = static_cast<T>(i);
  });
  return out;
}

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape) {
  Tensor out = empty(shape, dtype_of<T>);
  if (static_cast<int64_t>(values.size()) != shape.numel()) {
    fail("from: shape {} has {} elements, got {} values", shape, shape.numel(), values.size());
  }
  std::copy(values.begin(), values.end(), out.mutable_data<T>());
  return out;
}
template Tensor Tensor::from(std::span<const float>, const Shape&);
template Tensor Tensor::from(std::span<const double>, const Shape&);
template Tensor Tensor::from(std::span<const int64_t>, const Shape&);
template Tensor Tensor::from(std::span<const bool>, const Shape&);

bool Tensor::overlaps_itself() const {
  if (view().contiguous) return false;
  for (int i = 0; i < rank(); ++i) {
    if (shape()[i] == 0) return false;
  }
  // Views made here overlap only by repetition: an axis of stride 0.
  for (int i = 0; i < rank(); ++i) {
    if (shape()[i] > 1 && strides()[i] == 0) return true;
  }
  return false;
}

bool Tensor::unique() const { return view().refs.load(std::memory_order_acquire) == 1 && !view_->storage->shared(); }

void Tensor::prepare_write() {
  if (overlaps_itself()) {
    fail("write: several elements of this {} tensor share memory (it was expanded); clone() it first", shape());
  }
  view_->storage->bump_version();
}

double Tensor::item() const {
  if (numel() != 1) fail("item: expected one element, got shape {}", shape());
  return dispatch(dtype(), [&]<class T> { return static_cast<double>(*data<T>()); });
}

int64_t Tensor::offset_of(const char* op, std::initializer_list<int64_t> index) const {
  if (static_cast<int>(index.size()) != rank()) {
    fail("{}: {} indices given for shape {}", op, index.size(), shape());
  }
  int64_t offset = 0;
  int dim = 0;
  for (int64_t i : index) {
    int64_t extent = shape()[dim];
    if (i < -extent || i >= extent) fail("{}: index {} is out of range for axis {} of shape {}", op, i, dim, shape());
    offset += (i < 0 ? i + extent : i) * strides()[dim++];
  }
  return offset;
}

double Tensor::at(std::initializer_list<int64_t> index) const {
  int64_t offset = offset_of("at", index);
  return dispatch(dtype(), [&]<class T> { return static_cast<double>(data<T>()[offset]); });
}

void Tensor::set(std::initializer_list<int64_t> index, Scalar value) {
  int64_t offset = offset_of("set", index);
  dispatch(dtype(), [&]<class T> { mutable_data<T>()[offset] = value.to<T>("set"); });
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  Tensor dense = contiguous();
  const T* p = dense.data<T>();
  return std::vector<T>(p, p + numel());
}
template std::vector<float> Tensor::to_vector() const;
template std::vector<double> Tensor::to_vector() const;
template std::vector<int64_t> Tensor::to_vector() const;
template std::vector<bool> Tensor::to_vector() const;

Tensor Tensor::transpose(int64_t dim0, int64_t dim1) const {
  int a = normalize_dim("transpose", dim0, rank()), b = normalize_dim("transpose", dim1, rank());
  Shape new_shape = shape(), new_strides = strides();
  std::swap(new_shape[a], new_shape[b]);
  std::swap(new_strides[a], new_strides[b]);
  return with(new_shape, new_strides, view_->offset);
}

Tensor Tensor::permute(std::span<const int64_t> order) const {
  if (static_cast<int>(order.size()) != rank()) fail("permute: {} axes named for shape {}", order.size(), shape());
  Dims(order).mask("permute", rank());  // every axis once
  Shape new_shape, new_strides;
  for (int64_t dim : order) {
    int d = normalize_dim("permute", dim, rank());
    new_shape.push_back(shape()[d]);
    new_strides.push_back(strides()[d]);
  }
  return with(new_shape, new_strides, view_->offset);
}

Tensor Tensor::expand(const Shape& to) const {
  if (!broadcasts_to(shape(), to)) fail("expand: {} does not broadcast to {}", shape(), to);
  check_extents("expand", to);
  return with(to, kernels::broadcast_strides(*this, to), view_->offset);
}

Tensor Tensor::unsqueeze(int64_t dim) const {
  int d = normalize_dim("unsqueeze", dim, rank() + 1);
  Shape new_shape = shape(), new_strides = strides();
  new_shape.insert(d, 1);
  new_strides.insert(d, 1);
  return with(new_shape, new_strides, view_->offset);
}

Tensor Tensor::squeeze(int64_t dim) const {
  int d = normalize_dim("squeeze", dim, rank());
  if (shape()[d] != 1) fail("squeeze: axis {} of shape {} has extent {}, not 1", dim, shape(), shape()[d]);
  Shape new_shape = shape(), new_strides = strides();
  new_shape.erase(d);
  new_strides.erase(d);
  return with(new_shape, new_strides, view_->offset);
}

Tensor Tensor::slice(int64_t dim, int64_t start, int64_t stop, int64_t step) const {
  int d = normalize_dim("slice", dim, rank());
  if (step < 1) fail("slice: expected step >= 1, got {}", step);
  int64_t extent = shape()[d];
  auto clip = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + extent : i, 0, extent); };
  start = clip(start);
  stop = std::max(start, clip(stop));
  step = std::min(step, std::max<int64_t>(extent, 1));  // the same elements, and no overflow below
  Shape new_shape = shape(), new_strides = strides();
  new_shape[d] = (stop - start + step - 1) / step;
  new_strides[d] = strides()[d] * step;
  return with(new_shape, new_strides, view_->offset + (new_shape[d] > 0 ? start * strides()[d] : 0));
}

Tensor Tensor::select(int64_t dim, int64_t index) const {
  int d = normalize_dim("select", dim, rank());
  int64_t extent = shape()[d];
  if (index < -extent || index >= extent) {
    fail("select: index {} is out of range for axis {} of shape {}", index, dim, shape());
  }
  if (index < 0) index += extent;
  Shape new_shape = shape(), new_strides = strides();
  new_shape.erase(d);
  new_strides.erase(d);
  return with(new_shape, new_strides, view_->offset + index * strides()[d]);
}

Tensor Tensor::reshape(const Shape& asked) const {
  Shape to = asked;
  int unknown = -1;
  for (int i = 0; i < to.rank(); ++i) {
    if (to[i] == -1 && unknown < 0)
      unknown = i;
    else if (to[i] < 0)
      fail("reshape: {} is not a shape (one extent may be -1)", asked);
  }
  if (unknown >= 0) to[unknown] = 1;
  check_extents("reshape", to);
  const int64_t known = to.numel();
  if (unknown >= 0) {
    if (known == 0) fail("reshape: the -1 in {} cannot be computed beside an extent of 0", asked);
    to[unknown] = numel() / known;
  }
  if (to.numel() != numel()) {
    fail("reshape: {} has {} elements, {} would need {}", shape(), numel(), asked, unknown >= 0 ? known : to.numel());
  }
  if (is_contiguous()) return with(to, contiguous_strides(to), view_->offset);
  Shape new_strides;
  if (reshaped_strides(shape(), strides(), to, new_strides)) return with(to, new_strides, view_->offset);
  return clone().reshape(to);
}

Tensor Tensor::contiguous() const { return is_contiguous() ? *this : clone(); }

Tensor Tensor::clone() const {
  Tensor out = empty(shape(), dtype());
  dispatch(dtype(), [&]<class T> {
    if (is_contiguous()) {
      if (numel() > 0) std::memcpy(out.mutable_data<T>(), data<T>(), static_cast<size_t>(numel()) * sizeof(T));
    } else {
      convert<T, T>(out, *this);
    }
  });
  return out;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == this->dtype()) return *this;
  Tensor out = empty(shape(), dtype);
  dispatch(dtype, [&]<class To> { dispatch(this->dtype(), [&]<class From> { convert<To, From>(out, *this); }); });
  return out;
}

Tensor& Tensor::fill_(Scalar value) {
  dispatch(dtype(), [&]<class T> {
    T v = value.to<T>("fill");
    kernels::transform<T>(*this, [v] { return v; });
  });
  return *this;
}

Tensor& Tensor::copy_(const Tensor& source) {
  check_in_place("copy_", *this, source);
  if (shares_storage(source)) return copy_(source.clone());
  dispatch(dtype(), [&]<class T> { convert<T, T>(*this, source); });
  return *this;
}

Tensor& Tensor::add_(const Tensor& source, Scalar factor) {
  check_in_place("add_", *this, source);
  if (!reads_what_it_writes(*this, source)) return add_(source.clone(), factor);
  dispatch_number("add_", dtype(), [&]<class T> {
    T f = factor.to<T>("add_");
    Tensor self = *this;
    kernels::transform<T>(
        *this, [f](T a, T b) { return a + f * b; }, kernels::as<T>(self), kernels::as<T>(source));
  });
  return *this;
}

Tensor& Tensor::add_(Scalar value) {
  return add_(dispatch(dtype(), [&]<class T> { return full({}, value.to<T>("add_"), dtype()); }));
}

Tensor& Tensor::mul_(const Tensor& source) {
  check_in_place("mul_", *this, source);
  if (!reads_what_it_writes(*this, source)) return mul_(source.clone());
  dispatch_number("mul_", dtype(), [&]<class T> {
    Tensor self = *this;
    kernels::transform<T>(
        *this, [](T a, T b) { return a * b; }, kernels::as<T>(self), kernels::as<T>(source));
  });
  return *this;
}

Tensor& Tensor::mul_(Scalar value) { return mul_(full({}, value, dtype())); }

}  // namespace tapedeck
