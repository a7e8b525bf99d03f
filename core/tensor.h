// Tensor: a strided n-dimensional array with a run-time dtype. Plain data; knows nothing of gradients.
//
// A Tensor is a cheap handle to a counted view (shape, strides, offset, dtype, storage). Copying a handle shares the
// data; clone() copies it. Views (transpose, slice, expand, ...) share storage with the tensor they are taken from.
#pragma once

#include <tapedeck/core/dtype.h>
#include <tapedeck/core/shape.h>
#include <tapedeck/core/storage.h>

#include <concepts>
#include <span>
#include <utility>
#include <vector>

namespace tapedeck {

// A C++ number.
template <class T>
concept Number = std::integral<T> || std::floating_point<T>;

// A C++ number on its way into a tensor; remembers whether it was an integer.
struct Scalar {
  double real = 0;        // the value
  int64_t integer = 0;    // the value of an integer, all of its bits
  bool integral = false;  // it was an integer

  Scalar() = default;
  template <Number T>
  Scalar(T value)
      : real(static_cast<double>(value)),
        integer(std::integral<T> ? static_cast<int64_t>(value) : 0),
        integral(std::integral<T>) {
    if constexpr (std::unsigned_integral<T> && sizeof(T) == 8) {
      if (integer < 0) fail("number: {} does not fit an i64 tensor", value);
    }
  }
  // The value as a T; a fractional number with i64 throws, naming the op.
  template <class T>
  T to(const char* op) const;
};

// Nested braces of numbers: the argument of tensor().
class NestedList {
 public:
  template <Number T>
  NestedList(T value) : values_{Scalar(value)}, all_bool_(std::same_as<T, bool>) {}
  NestedList(std::initializer_list<NestedList> rows);

  const std::vector<Scalar>& values() const { return values_; }  // in row-major order
  const Shape& shape() const { return shape_; }                  // as the braces nest
  DType natural_dtype() const;  // boolean for bools, i64 for integers, f32 as soon as there is a floating number

 private:
  std::vector<Scalar> values_;
  Shape shape_;
  bool all_bool_ = false;
};

// A strided view of numbers; see above.
class Tensor {
 public:
  Tensor() = default;  // undefined: no shape, no data
  Tensor(const Tensor& other) : view_(other.view_) {
    if (view_) retain(view_);
  }
  Tensor(Tensor&& other) noexcept : view_(std::exchange(other.view_, nullptr)) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(view_, other.view_);
    return *this;
  }
  ~Tensor() {
    if (view_) release(view_);
  }

  // New tensors. Contents of empty() are undefined.
  static Tensor empty(const Shape& shape, DType dtype);
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32) { return full(shape, 0, dtype); }
  static Tensor ones(const Shape& shape, DType dtype = DType::f32) { return full(shape, 1, dtype); }
  static Tensor full(const Shape& shape, Scalar value, DType dtype = DType::f32);
  static Tensor arange(int64_t n, DType dtype = DType::i64);  // 0, 1, ..., n - 1
  // Row-major copies of `values`; their number must be shape.numel().
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape);
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }

  bool defined() const { return view_ != nullptr; }  // everything below throws where it is not
  // The extents, their number, one of them (negative: from the end), and their product.
  const Shape& shape() const { return view().shape; }
  int rank() const { return view().shape.rank(); }
  int64_t size(int64_t dim) const { return shape()[normalize_dim("size", dim, rank())]; }
  int64_t numel() const { return view().shape.numel(); }

  const Shape& strides() const { return view().strides; }   // in elements; may be 0 (expanded)
  DType dtype() const { return view().dtype; }              // of the elements
  bool is_contiguous() const { return view().contiguous; }  // row-major without gaps
  bool overlaps_itself() const;                             // several elements share memory (expanded)

  // Both are views of one buffer.
  bool shares_storage(const Tensor& other) const { return view().storage == other.view().storage; }
  bool unique() const;                                            // nobody else holds this view or its storage
  uint32_t version() const { return view().storage->version(); }  // in-place writes to the buffer so far

  // First element. T must be the element type.
  template <class T>
  const T* data() const {
    check_type(dtype_of<T>);
    return static_cast<const T*>(view_->storage->data()) + view_->offset;
  }
  // The same for writing: counts as an in-place change of everything that shares the storage. Writing through an
  // expanded tensor (several elements in one place) throws.
  template <class T>
  T* mutable_data() {
    check_type(dtype_of<T>);
    prepare_write();
    return static_cast<T*>(view_->storage->data()) + view_->offset;
  }

  double item() const;  // the only element, as a double; throws if there is more or less than one

  // One element, an index for each axis (negative: from the end). Throws on an index out of range.
  double at(std::initializer_list<int64_t> index) const;
  void set(std::initializer_list<int64_t> index, Scalar value);

  template <class T>
  std::vector<T> to_vector() const;  // row-major copy; T must be the element type

  // Views: share storage.
  Tensor transpose(int64_t dim0 = -2, int64_t dim1 = -1) const;
  Tensor permute(std::initializer_list<int64_t> order) const { return permute(std::span(order.begin(), order.size())); }
  Tensor permute(std::span<const int64_t> order) const;
  Tensor expand(const Shape& to) const;  // NumPy broadcasting; repeated axes get stride 0
  Tensor unsqueeze(int64_t dim) const;
  Tensor squeeze(int64_t dim) const;                                               // the axis must have extent 1
  Tensor slice(int64_t dim, int64_t start, int64_t stop, int64_t step = 1) const;  // Python's rules, step >= 1
  Tensor select(int64_t dim, int64_t index) const;                                 // drops the axis
  // A view where strides allow, else a copy. One extent may be -1: computed from the others.
  Tensor reshape(const Shape& asked) const;

  Tensor contiguous() const;     // itself if row-major, else a copy
  Tensor clone() const;          // a row-major copy
  Tensor to(DType dtype) const;  // i64 drops fractions; a NaN, Inf or number that i64 cannot hold throws

  // In-place writes, for initialisers and optimisers. `source` broadcasts; dtypes must agree.
  Tensor& fill_(Scalar value);
  Tensor& copy_(const Tensor& source);
  Tensor& add_(const Tensor& source, Scalar factor = 1);  // this += factor * source
  Tensor& add_(Scalar value);
  Tensor& mul_(const Tensor& source);
  Tensor& mul_(Scalar value);

 private:
  struct View {
    std::atomic<uint32_t> refs{1};
    DType dtype;
    bool contiguous;
    Storage* storage;
    int64_t offset;  // in elements
    Shape shape, strides;
  };

  static void retain(View* view) { view->refs.fetch_add(1, std::memory_order_relaxed); }
  static void release(View* view) noexcept;  // out of line: GCC 12 warns falsely about an inlined one
  static Tensor make(const Shape& shape, const Shape& strides, int64_t offset, DType dtype, Storage* owned);
  Tensor with(const Shape& shape, const Shape& strides, int64_t offset) const;
  const View& view() const {
    if (!view_) undefined();
    return *view_;
  }
  [[noreturn]] static void undefined();
  void check_type(DType dtype) const {
    if (view().dtype != dtype) wrong_type(dtype);
  }
  [[noreturn]] void wrong_type(DType asked) const;
  void prepare_write();
  int64_t offset_of(const char* op, std::initializer_list<int64_t> index) const;

  View* view_ = nullptr;
};

// A tensor from nested braces: tensor({{1.0, 2.0}, {3.0, 4.0}}). Integers give i64, bools boolean, else f32; or the
// dtype asked for. Rows of different length throw.
Tensor tensor(const NestedList& values);
Tensor tensor(const NestedList& values, DType dtype);

// As NumPy prints: aligned columns, eight significant digits at most, "..." inside more than 1000 elements.
std::string to_string(const Tensor& tensor);

template <class T>
T Scalar::to(const char* op) const {
  if constexpr (std::same_as<T, bool>) {
    return real != 0;
  } else if constexpr (std::same_as<T, int64_t>) {
    if (integral) return integer;
    if (!(real > -9.2e18 && real < 9.2e18) || real != static_cast<double>(static_cast<int64_t>(real))) {
      fail("{}: the number {} does not fit an i64 tensor; use a whole number, or .to(DType::f64)", op, real);
    }
    return static_cast<int64_t>(real);
  } else {
    return static_cast<T>(real);
  }
}

}  // namespace tapedeck

template <>
struct fmt::formatter<tapedeck::Tensor> : tapedeck::detail::PlainFormatter {
  auto format(const tapedeck::Tensor& tensor, auto& context) const {
    return write(tapedeck::to_string(tensor), context);
  }
};
