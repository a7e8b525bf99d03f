#include <tapedeck/core/kernels.h>

namespace tapedeck::kernels {
namespace {

// Sum of n elements `step` apart, in f64 (i64 for integers), in four interleaved partial sums.
template <class T, class Sum>
[[gnu::always_inline]] inline Sum sum_run(const T* x, int64_t n, int64_t step) {
  Sum partial[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int64_t j = 0; j < 4; ++j) partial[j] += static_cast<Sum>(x[(i + j) * step]);
  }
  for (; i < n; ++i) partial[0] += static_cast<Sum>(x[i * step]);
  return (partial[0] + partial[1]) + (partial[2] + partial[3]);
}

// out[k] = sum over the reduced axes. `kept` runs over the result (operand 0: out, 1: x), `gone` over what is summed.
template <class T, class Sum>
TAPEDECK_KERNEL void sum_loop(const Plan<2>& kept, const Plan<1>& gone, T* out, const T* x) {
  int64_t n = gone.inner_extent(), step = gone.inner_stride(0);
  bool along_rows = kept.inner_stride(1) == 1 && kept.inner_extent() > 1 && step != 1;
  if (!along_rows) {
    int64_t m = kept.inner_extent();
    kept.for_each_row([&](const auto& at) {
      for (int64_t i = 0; i < m; ++i) {
        const T* start = x + at[1] + i * kept.inner_stride(1);
        Sum total = 0;
        gone.for_each_row([&](const auto& from) { total += sum_run<T, Sum>(start + from[0], n, step); });
        out[at[0] + i * kept.inner_stride(0)] = static_cast<T>(total);
      }
    });
    return;
  }
  // The result's neighbours are neighbours in x: add whole rows into a block of sums.
  constexpr int64_t block = 256;
  Sum sums[block];
  kept.for_each_row([&](const auto& at) {
    for (int64_t first = 0; first < kept.inner_extent(); first += block) {
      int64_t m = std::min(block, kept.inner_extent() - first);
      std::fill_n(sums, m, Sum{0});
      gone.for_each_row([&](const auto& from) {
        for (int64_t r = 0; r < n; ++r) {
          const T* row = x + at[1] + first + from[0] + r * step;
          for (int64_t i = 0; i < m; ++i) sums[i] += static_cast<Sum>(row[i]);
        }
      });
      T* to = out + at[0] + first * kept.inner_stride(0);
      for (int64_t i = 0; i < m; ++i) to[i * kept.inner_stride(0)] = static_cast<T>(sums[i]);
    }
  });
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  if (a.dtype() == DType::i64) {
    Tensor y = Tensor::empty(broadcast_shapes("add", a.shape(), b.shape()), DType::i64);
    transform<int64_t>(
        y, [](int64_t u, int64_t v) { return u + v; }, as<int64_t>(a), as<int64_t>(b));
    return y;
  }
  return map("add", a, b, [](auto u, auto v) TAPEDECK_LANES { return u + v; });
}

Shape reduced_shape(const Shape& shape, uint32_t dims, bool keepdim) {
  Shape out;
  for (int i = 0; i < shape.rank(); ++i) {
    if (!(dims >> i & 1))
      out.push_back(shape[i]);
    else if (keepdim)
      out.push_back(1);
  }
  return out;
}

Tensor sum(const char* op, const Tensor& x, uint32_t dims, bool keepdim) {
  Shape kept_shape, kept_strides, gone_shape, gone_strides;
  for (int i = 0; i < x.rank(); ++i) {
    bool gone = dims >> i & 1;
    (gone ? gone_shape : kept_shape).push_back(x.shape()[i]);
    (gone ? gone_strides : kept_strides).push_back(x.strides()[i]);
  }
  Tensor out = Tensor::empty(reduced_shape(x.shape(), dims, keepdim), x.dtype());
  Plan<2> kept(kept_shape, {contiguous_strides(kept_shape), kept_strides});
  Plan<1> gone(gone_shape, {gone_strides});
  dispatch_number(op, x.dtype(), [&]<class T> {
    using Sum = std::conditional_t<std::is_same_v<T, int64_t>, int64_t, double>;
    if (gone.empty) {
      out.fill_(0);
    } else {
      sum_loop<T, Sum>(kept, gone, out.mutable_data<T>(), x.data<T>());
    }
  });
  return out;
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  int shift = x.rank() - shape.rank();
  uint32_t dims = 0;
  for (int i = 0; i < x.rank(); ++i) {
    if (i < shift || (shape[i - shift] == 1 && x.shape()[i] != 1)) dims |= 1u << i;
  }
  Tensor y = sum("sum_to", x, dims, true);
  return y.reshape(shape);
}

Tensor as_rows(const Tensor& x, uint32_t dims, Shape& kept) {
  std::array<int64_t, max_rank> order{};
  size_t count = 0;
  int64_t n = 1;
  kept = reduced_shape(x.shape(), dims, false);
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < x.rank(); ++i) {
      if ((dims >> i & 1) != static_cast<uint32_t>(pass)) continue;
      order[count++] = i;
      if (pass == 1) n *= x.shape()[i];
    }
  }
  return x.permute(std::span<const int64_t>(order.data(), count)).contiguous().reshape({kept.numel(), n});
}

}  // namespace tapedeck::kernels
