#include <tapedeck/core/shape.h>

#include <algorithm>

namespace tapedeck {

Shape::Shape(std::span<const int64_t> extents) {
  for (int64_t extent : extents) push_back(extent);
}

void Shape::push_back(int64_t extent) {
  if (rank_ == max_rank) fail("shape: at most {} axes are supported", max_rank);
  extents_[static_cast<size_t>(rank_++)] = extent;
}

void Shape::insert(int dim, int64_t extent) {
  push_back(extent);
  std::rotate(extents_.data() + dim, extents_.data() + rank_ - 1, extents_.data() + rank_);
}

void Shape::erase(int dim) {
  std::copy(extents_.data() + dim + 1, extents_.data() + rank_, extents_.data() + dim);
  --rank_;
}

bool Shape::operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (int i = 0; i < shape.rank(); ++i) {
    if (i > 0) text += ' ';
    text += std::to_string(shape[i]);
    if (i + 1 < shape.rank() || shape.rank() == 1) text += ',';
  }
  return text + ')';
}

int normalize_dim(std::string_view op, int64_t dim, int rank) {
  int64_t positive = dim < 0 ? dim + rank : dim;
  if (positive < 0 || positive >= rank) {
    if (rank == 0) fail("{}: axis {} named, but the tensor has rank 0", op, dim);
    fail("{}: axis {} is out of range for rank {} (expected {} to {})", op, dim, rank, -rank, rank - 1);
  }
  return static_cast<int>(positive);
}

bool broadcasts_to(const Shape& from, const Shape& to) {
  int shift = to.rank() - from.rank();
  if (shift < 0) return false;
  for (int i = 0; i < from.rank(); ++i) {
    if (from[i] != to[i + shift] && from[i] != 1) return false;
  }
  return true;
}

Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape out = longer;
  int shift = longer.rank() - shorter.rank();
  for (int i = 0; i < shorter.rank(); ++i) {
    int64_t extent = shorter[i];
    int64_t& result = out[i + shift];
    if (extent == result || extent == 1) continue;
    if (result != 1) {
      fail("{}: shapes {} and {} do not broadcast: axis {} (from the end) has {} against {}", op, a, b,
           i + shift - longer.rank(), a.rank() >= b.rank() ? result : extent, a.rank() >= b.rank() ? extent : result);
    }
    result = extent;
  }
  return out;
}

void check_extents(std::string_view op, const Shape& shape) {
  int64_t numel = 1;
  for (int64_t extent : shape) {
    if (extent < 0) fail("{}: negative extent in shape {}", op, shape);
    if (__builtin_mul_overflow(numel, extent, &numel) || numel > (int64_t{1} << 48)) {
      fail("{}: shape {} has too many elements", op, shape);
    }
  }
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

uint32_t Dims::mask(std::string_view op, int rank) const {
  if (all_) return (1u << rank) - 1;
  uint32_t bits = 0;
  for (int64_t dim : dims_) {
    uint32_t bit = 1u << normalize_dim(op, dim, rank);
    if (bits & bit) fail("{}: axis {} is named twice in {}", op, dim, dims_);
    bits |= bit;
  }
  return bits;
}

}  // namespace tapedeck
