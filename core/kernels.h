// Building blocks of kernels: one loop over operands of any strides, and the maps and copies written with it.
//
// A plan collapses the axes of all operands as far as their strides agree, so that dense tensors become one long loop.
// Kernels trust their callers: shapes, dtypes and broadcasting were checked at the door.
#pragma once

#include <tapedeck/core/simd.h>
#include <tapedeck/core/tensor.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

namespace tapedeck::kernels {

// Strides of `x` when read as `shape` (to which it broadcasts): 0 along repeated axes.
inline Shape broadcast_strides(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x.strides();
  Shape strides = shape;
  int shift = shape.rank() - x.rank();
  for (int i = 0; i < shape.rank(); ++i) {
    bool repeated = i < shift || (x.shape()[i - shift] == 1 && shape[i] != 1);
    strides[i] = repeated ? 0 : x.strides()[i - shift];
  }
  return strides;
}

// The collapsed loop nest of N operands over one shape; the last axis is the inner loop.
template <size_t N>
struct Plan {
  int rank = 0;                                           // axes left after collapsing, at least one
  std::array<int64_t, max_rank> extent{};                 // of each axis
  std::array<std::array<int64_t, max_rank>, N> stride{};  // [operand][axis], in elements
  bool empty = false;                                     // the shape has no elements

  Plan(const Shape& shape, const std::array<Shape, N>& strides) {
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] == 0) empty = true;
      if (shape[i] == 1) continue;
      bool merges = rank > 0;
      for (size_t k = 0; merges && k < N; ++k) merges = stride[k][last()] == strides[k][i] * shape[i];
      if (!merges) ++rank;
      extent[last()] = merges ? extent[last()] * shape[i] : shape[i];
      for (size_t k = 0; k < N; ++k) stride[k][last()] = strides[k][i];
    }
    if (rank == 0) {
      rank = 1;
      extent[0] = 1;
    }
  }

  // The inner loop: its axis, its length, and operand k's stride along it.
  size_t last() const { return static_cast<size_t>(rank - 1); }
  int64_t inner_extent() const { return extent[last()]; }
  int64_t inner_stride(size_t k) const { return stride[k][last()]; }

  // Calls row(offsets) for every position of the outer axes; offsets[k] is operand k's, in elements.
  template <class Row>
  [[gnu::always_inline]] void for_each_row(Row&& row) const {
    if (empty) return;
    std::array<int64_t, N> offset{};
    std::array<int64_t, max_rank> index{};
    while (true) {
      row(offset);
      int axis = rank - 2;
      for (; axis >= 0; --axis) {
        size_t a = static_cast<size_t>(axis);
        for (size_t k = 0; k < N; ++k) offset[k] += stride[k][a];
        if (++index[a] < extent[a]) break;
        for (size_t k = 0; k < N; ++k) offset[k] -= stride[k][a] * extent[a];
        index[a] = 0;
      }
      if (axis < 0) return;
    }
  }
};

// The plan of one pass over `out` and the inputs, which broadcast to it; `out` is operand 0.
template <class... In>
Plan<1 + sizeof...(In)> plan_for(const Tensor& out, const In&... in) {
  return Plan<1 + sizeof...(In)>(out.shape(), {out.strides(), broadcast_strides(in, out.shape())...});
}

namespace detail {

// Lanes i..i+n of one operand of the inner loop, whatever its stride.
template <class T>
TAPEDECK_INLINE simd::Vec<T> gather(const T* p, int64_t stride, int64_t i, int64_t n) {
  T lanes[simd::Lanes<T>::width] = {};
  for (int64_t j = 0; j < n; ++j) lanes[j] = p[(i + j) * stride];
  return simd::load(static_cast<const T*>(lanes));
}

// How one operand is read in the inner loop. The same arithmetic follows each, so results do not depend on layout.
template <class T>
struct Dense {
  const T* p;
  TAPEDECK_INLINE simd::Vec<T> full(int64_t i) const { return simd::load(p + i); }
  TAPEDECK_INLINE simd::Vec<T> part(int64_t i, int64_t n) const { return simd::load(p + i, static_cast<size_t>(n)); }
};
template <class T>
struct Repeated {
  simd::Vec<T> v;
  TAPEDECK_INLINE simd::Vec<T> full(int64_t) const { return v; }
  TAPEDECK_INLINE simd::Vec<T> part(int64_t, int64_t) const { return v; }
};
template <class T>
struct Stepped {
  const T* p;
  int64_t stride;
  TAPEDECK_INLINE simd::Vec<T> full(int64_t i) const {
    return gather(p, stride, i, static_cast<int64_t>(simd::Lanes<T>::width));
  }
  TAPEDECK_INLINE simd::Vec<T> part(int64_t i, int64_t n) const { return gather(p, stride, i, n); }
};

template <class T, class F, class... Reader>
TAPEDECK_INLINE void map_row(T* out, int64_t n, F& f, const Reader&... in) {
  constexpr int64_t width = static_cast<int64_t>(simd::Lanes<T>::width);
  int64_t i = 0;
  for (; i + width <= n; i += width) simd::store(out + i, f(in.full(i)...));
  if (i < n) simd::store(out + i, f(in.part(i, n - i)...), static_cast<size_t>(n - i));
}

template <class T, class F>
TAPEDECK_KERNEL void map_loop(const Plan<2>& plan, T* out, F f, const T* x) {
  int64_t n = plan.inner_extent(), step = plan.inner_stride(1);
  if (step == 1 || n == 1) {
    plan.for_each_row([&](const auto& at) TAPEDECK_LANES { map_row(out + at[0], n, f, Dense<T>{x + at[1]}); });
  } else {
    plan.for_each_row([&](const auto& at) TAPEDECK_LANES { map_row(out + at[0], n, f, Stepped<T>{x + at[1], step}); });
  }
}

template <class T, class F>
TAPEDECK_KERNEL void map_loop(const Plan<3>& plan, T* out, F f, const T* x, const T* y) {
  int64_t n = plan.inner_extent(), sx = plan.inner_stride(1), sy = plan.inner_stride(2);
  if (sx == 1 && sy == 1) {
    plan.for_each_row([&](const auto& at)
                          TAPEDECK_LANES { map_row(out + at[0], n, f, Dense<T>{x + at[1]}, Dense<T>{y + at[2]}); });
  } else if (sx == 1 && sy == 0) {
    plan.for_each_row([&](const auto& at) TAPEDECK_LANES {
      map_row(out + at[0], n, f, Dense<T>{x + at[1]}, Repeated<T>{simd::splat<T>(y[at[2]])});
    });
  } else if (sx == 0 && sy == 1) {
    plan.for_each_row([&](const auto& at) TAPEDECK_LANES {
      map_row(out + at[0], n, f, Repeated<T>{simd::splat<T>(x[at[1]])}, Dense<T>{y + at[2]});
    });
  } else {
    plan.for_each_row([&](const auto& at) TAPEDECK_LANES {
      map_row(out + at[0], n, f, Stepped<T>{x + at[1], sx}, Stepped<T>{y + at[2], sy});
    });
  }
}

// Any element types, one element at a time; the compiler vectorises the dense case where the types allow.
template <class Out, class F, class... In, size_t... k>
TAPEDECK_INLINE void transform_loop(const Plan<1 + sizeof...(In)>& plan, Out* out, F& f, std::index_sequence<k...>,
                                    const In*... in) {
  int64_t n = plan.inner_extent(), so = plan.inner_stride(0);
  std::array<int64_t, sizeof...(In)> s{plan.inner_stride(k + 1)...};
  bool dense = so == 1 && ((s[k] == 1) && ...);
  if (dense) {
    plan.for_each_row([&](const auto& at) {
      for (int64_t i = 0; i < n; ++i) out[at[0] + i] = f(in[at[k + 1] + i]...);
    });
  } else {
    plan.for_each_row([&](const auto& at) {
      for (int64_t i = 0; i < n; ++i) out[at[0] + i * so] = f(in[at[k + 1] + i * s[k]]...);
    });
  }
}

}  // namespace detail

// out[i] = f(in[i]...), elements of any type; `out` may have any strides, the inputs broadcast to it.
template <class Out, class... T, class F>
void transform(Tensor& out, F f, const std::pair<const Tensor*, std::type_identity<T>>&... in) {
  detail::transform_loop<Out, F, T...>(plan_for(out, *in.first...), out.mutable_data<Out>(), f,
                                       std::index_sequence_for<T...>{}, in.first->template data<T>()...);
}

// An input of transform(), with elements of type T.
template <class T>
std::pair<const Tensor*, std::type_identity<T>> as(const Tensor& x) {
  return {&x, {}};
}

// y = f(x), elementwise over floating tensors; f maps simd::Vec<float> and simd::Vec<double> lane by lane.
template <class F>
Tensor map(const char* op, const Tensor& x, F f) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  dispatch_floating(op, x.dtype(),
                    [&]<class T> { detail::map_loop<T, F>(plan_for(y, x), y.mutable_data<T>(), f, x.data<T>()); });
  return y;
}

// The same for two floating tensors of one dtype, into `out` (dense), to whose shape both broadcast.
template <class F>
void map_into(const char* op, Tensor& out, const Tensor& a, const Tensor& b, F f) {
  dispatch_floating(op, out.dtype(), [&]<class T> {
    detail::map_loop<T, F>(plan_for(out, a, b), out.mutable_data<T>(), f, a.data<T>(), b.data<T>());
  });
}

// The same into a new tensor of the broadcast shape.
template <class F>
Tensor map(const char* op, const Tensor& a, const Tensor& b, F f) {
  Tensor y = Tensor::empty(broadcast_shapes(op, a.shape(), b.shape()), a.dtype());
  map_into(op, y, a, b, f);
  return y;
}

// a + b with broadcasting; f32, f64 or i64.
Tensor add(const Tensor& a, const Tensor& b);

// Sum over the axes in the bit set `dims`. f32 sums accumulate in f64, along every axis and layout.
Tensor sum(const char* op, const Tensor& x, uint32_t dims, bool keepdim);

// Sum over those axes along which `shape` was broadcast to x's shape.
Tensor sum_to(const Tensor& x, const Shape& shape);

// `x` as a dense (rows, n) matrix whose rows run over the axes in `dims` (in order); a copy only where strides demand
// it. `kept` receives the shape of the other axes.
Tensor as_rows(const Tensor& x, uint32_t dims, Shape& kept);

// Shape of a reduction's result.
Shape reduced_shape(const Shape& shape, uint32_t dims, bool keepdim);

}  // namespace tapedeck::kernels
