// Shapes: up to eight extents, outermost first. Rank 0 (one element) and extents of 0 (no element) are legal.
#pragma once

#include <tapedeck/core/error.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace tapedeck {

// More axes throw.
inline constexpr int max_rank = 8;

// A short list of integers kept in place: extents, strides, or axes.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const int64_t> extents);

  int rank() const { return rank_; }  // the number of axes

  // Axis dim, 0..rank-1, not checked.
  int64_t operator[](int dim) const { return extents_[static_cast<size_t>(dim)]; }
  int64_t& operator[](int dim) { return extents_[static_cast<size_t>(dim)]; }

  // The extents in order.
  const int64_t* begin() const { return extents_.data(); }
  const int64_t* end() const { return extents_.data() + rank_; }

  int64_t numel() const {  // product of the extents; 1 for rank 0
    int64_t n = 1;
    for (int64_t extent : *this) n *= extent;
    return n;
  }

  void push_back(int64_t extent);        // a last axis; throws above max_rank
  void insert(int dim, int64_t extent);  // before axis dim, 0..rank
  void erase(int dim);                   // drops axis dim

  bool operator==(const Shape& other) const;

 private:
  std::array<int64_t, max_rank> extents_{};
  int rank_ = 0;
};

// "(64, 1, 32)", "(3,)", "()"
std::string to_string(const Shape& shape);

// Axis number in 0..rank-1 from one that may count from the end; throws, naming the op.
int normalize_dim(std::string_view op, int64_t dim, int rank);

// NumPy's broadcasting: align at the end, extents equal or 1. Throws, naming the op and both shapes.
Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b);

// True if `from` broadcasts to exactly `to`.
bool broadcasts_to(const Shape& from, const Shape& to);

// Extents must be >= 0 and their product must fit; throws, naming the op.
void check_extents(std::string_view op, const Shape& shape);

// Row-major strides, in elements.
Shape contiguous_strides(const Shape& shape);

// One axis, several, or all of them. Negative numbers count from the end. A floating number is not an axis.
class Dims {
 public:
  template <std::integral Int>
  requires(!std::same_as<Int, bool>) Dims(Int dim) : dims_{static_cast<int64_t>(dim)} {}
  Dims(std::initializer_list<int64_t> dims) : dims_(dims) {}
  explicit Dims(std::span<const int64_t> dims) : dims_(dims) {}
  // Every axis, whatever the rank.
  static Dims all() {
    Dims dims{};
    dims.all_ = true;
    return dims;
  }

  // The named axes as a bit set; throws on an axis that is out of range or named twice.
  uint32_t mask(std::string_view op, int rank) const;

 private:
  Shape dims_;
  bool all_ = false;
};

// The default of reductions.
inline const Dims all_dims = Dims::all();

}  // namespace tapedeck

template <>
struct fmt::formatter<tapedeck::Shape> : tapedeck::detail::PlainFormatter {
  auto format(const tapedeck::Shape& shape, auto& context) const { return write(tapedeck::to_string(shape), context); }
};
