#include <tapedeck/core/blas.h>
#include <tapedeck/ops/fused/gru.h>
#include <tapedeck/ops/fused/gru_step.h>
#include <tapedeck/ops/fused/packed.h>

#include <array>

namespace tapedeck::fused {
namespace {

// Which packed rows and which state a step starts from.
struct Order {
  const Packed& packed;
  bool backward;
  int64_t step(int64_t i) const { return backward ? packed.steps() - 1 - i : i; }
  int64_t previous(int64_t t) const { return backward ? t + 1 : t - 1; }
  // Rows of step t that go on from the step before; the others begin.
  int64_t continued(int64_t t) const { return std::min(packed.rows_at(previous(t)), packed.rows_at(t)); }
};

// (total, n) from the valid steps of x (B, T, n).
template <class T>
void gather(T* to, const T* x, const Packed& packed, int64_t n) {
  packed.for_each([&](int64_t, int64_t b, int64_t t) { to = std::copy_n(x + (b * packed.steps() + t) * n, n, to); });
}

// The states before each packed step, (total, H), from the layer's output y (B, T, H) and the initial states (B, H).
template <class T>
void gather_before(T* to, const T* y, const T* initial, const Order& order, int64_t H) {
  const Packed& packed = order.packed;
  for (int64_t t = 0; t < packed.steps(); ++t) {
    const int64_t continued = order.continued(t);
    for (int64_t k = 0; k < packed.rows_at(t); ++k) {
      const int64_t b = packed.row(k);
      to = std::copy_n(k < continued ? y + (b * packed.steps() + order.previous(t)) * H : initial + b * H, H, to);
    }
  }
}

enum Input { x_, initial_, weight_ih_, weight_hh_, bias_ih_, bias_hh_ };

// Dense inputs, whatever their strides were.
struct Inputs {
  Tensor x, initial, weight_ih, weight_hh, bias_ih, bias_hh;
  explicit Inputs(std::span<const Tensor> in)
      : x(in[x_].contiguous()),
        initial(in[initial_].contiguous()),
        weight_ih(in[weight_ih_].contiguous()),
        weight_hh(in[weight_hh_].contiguous()),
        bias_ih(in[bias_ih_].contiguous()),
        bias_hh(in[bias_hh_].contiguous()) {}
};

template <class T>
FusedValue forward(std::span<const Tensor> in, const Order& order) {
  const auto [x, initial, weight_ih, weight_hh, bias_ih, bias_hh] = Inputs(in);
  const Packed& packed = order.packed;
  const int64_t B = x.size(0), S = x.size(1), I = x.size(2), H = initial.size(1), N = packed.total;
  const DType dtype = x.dtype();
  Tensor inputs = matrix(N, I, dtype), gates = matrix(N, 3 * H, dtype), candidates = matrix(N, H, dtype);
  gather(inputs.mutable_data<T>(), x.data<T>(), packed, I);
  repeat_row(gates.mutable_data<T>(), bias_ih.data<T>(), N, 3 * H);
  blas::gemm<T>(rows_of(inputs.data<T>(), N, I), transposed(weight_ih.data<T>(), I, 3 * H), T{1},
                gates.mutable_data<T>());

  Tensor y = Tensor::zeros({B, S, H}, dtype);
  Tensor hidden = matrix(B, 3 * H, dtype), before = matrix(B, H, dtype), after = matrix(B, H, dtype);
  const Tensor turned = weight_hh.transpose().clone();  // read as it lies by the product of every step
  T *h = before.mutable_data<T>(), *next = after.mutable_data<T>(), *out = y.mutable_data<T>();
  for (int64_t i = 0; i < S; ++i) {
    const int64_t t = order.step(i), n = packed.rows_at(t), at = packed.begin_of(t);
    for (int64_t k = order.continued(t); k < n; ++k) {
      std::copy_n(initial.data<T>() + packed.row(k) * H, H, h + k * H);
    }
    repeat_row(hidden.mutable_data<T>(), bias_hh.data<T>(), n, 3 * H);
    blas::gemm<T>(rows_of<T>(h, n, H), rows_of(turned.data<T>(), H, 3 * H), T{1}, hidden.mutable_data<T>());
    step_forward<T>(n, H, gates.mutable_data<T>() + at * 3 * H, hidden.data<T>(), h,
                    candidates.mutable_data<T>() + at * H, next);
    for (int64_t k = 0; k < n; ++k) {
      std::copy_n(next + k * H, H, out + (packed.row(k) * S + t) * H);
    }
    std::swap(h, next);
  }
  return {y, {gates, candidates}};
}

template <class T>
std::array<Tensor, 6> backward(const FusedPass& pass, const Order& order) {
  const Packed& packed = order.packed;
  const auto [x, initial, weight_ih, weight_hh, bias_ih, bias_hh] = Inputs(pass.inputs);
  const int64_t B = x.size(0), S = x.size(1), I = x.size(2), H = initial.size(1), N = packed.total;
  const DType dtype = x.dtype();
  const T *gates = pass.saved[0].data<T>(), *candidates = pass.saved[1].data<T>(), *g = pass.g.data<T>();
  Tensor before = matrix(N, H, dtype), d_input = matrix(N, 3 * H, dtype), d_hidden = matrix(N, 3 * H, dtype);
  gather_before(before.mutable_data<T>(), pass.y.data<T>(), initial.data<T>(), order, H);

  // dh: the gradient of the states after the step, rows in packed order.
  Tensor carried = Tensor::zeros({B, H}, dtype), d_initial = matrix(B, H, dtype);
  T* dh = carried.mutable_data<T>();
  for (int64_t i = S - 1; i >= 0; --i) {
    const int64_t t = order.step(i), n = packed.rows_at(t), at = packed.begin_of(t), continued = order.continued(t);
    for (int64_t k = 0; k < n; ++k) {
      const T* from = g + (packed.row(k) * S + t) * H;
      for (int64_t c = 0; c < H; ++c) dh[k * H + c] += from[c];
    }
    T* into = d_hidden.mutable_data<T>() + at * 3 * H;
    step_backward<T>(n, H, gates + at * 3 * H, candidates + at * H, before.data<T>() + at * H, dh,
                     d_input.mutable_data<T>() + at * 3 * H, into);
    blas::gemm<T>(rows_of<T>(into, n, 3 * H), rows_of(weight_hh.data<T>(), 3 * H, H), T{1}, dh);
    for (int64_t k = continued; k < n; ++k) {  // where rows began
      std::copy_n(dh + k * H, H, d_initial.mutable_data<T>() + packed.row(k) * H);
      std::fill_n(dh + k * H, H, T{0});
    }
  }

  std::array<Tensor, 6> result;
  auto wanted = [&](Input input) { return pass.needs[input]; };
  const T *di = d_input.data<T>(), *dg = d_hidden.data<T>();
  if (wanted(x_)) {
    Tensor packed_dx = matrix(N, I, dtype);
    blas::gemm<T>(rows_of(di, N, 3 * H), rows_of(weight_ih.data<T>(), 3 * H, I), T{0}, packed_dx.mutable_data<T>());
    result[x_] = packed.total == B * S ? Tensor::empty(x.shape(), dtype) : Tensor::zeros(x.shape(), dtype);
    T* to = result[x_].mutable_data<T>();
    packed.for_each([&](int64_t row, int64_t b, int64_t t) {
      std::copy_n(packed_dx.data<T>() + row * I, I, to + (b * S + t) * I);
    });
  }
  if (wanted(initial_)) result[initial_] = d_initial;
  if (wanted(weight_ih_)) {
    Tensor inputs = matrix(N, I, dtype);
    gather(inputs.mutable_data<T>(), x.data<T>(), packed, I);
    result[weight_ih_] = matrix(3 * H, I, dtype);
    blas::gemm<T>(transposed(di, 3 * H, N), rows_of(inputs.data<T>(), N, I), T{0},
                  result[weight_ih_].mutable_data<T>());
  }
  if (wanted(weight_hh_)) {
    result[weight_hh_] = matrix(3 * H, H, dtype);
    blas::gemm<T>(transposed(dg, 3 * H, N), rows_of(before.data<T>(), N, H), T{0},
                  result[weight_hh_].mutable_data<T>());
  }
  if (wanted(bias_ih_)) result[bias_ih_] = column_sums(di, N, 3 * H, dtype);
  if (wanted(bias_hh_)) result[bias_hh_] = column_sums(dg, N, 3 * H, dtype);
  return result;
}

}  // namespace

FusedValue gru_forward(std::span<const Tensor> inputs, const Packed& packed, TimeOrder order) {
  return dispatch_floating("gru", inputs[0].dtype(), [&]<class T> {
    return forward<T>(inputs, {packed, order == TimeOrder::backward});
  });
}

std::array<Tensor, 6> gru_backward(const FusedPass& pass, const Packed& packed, TimeOrder order) {
  return dispatch_floating("gru", pass.y.dtype(), [&]<class T> {
    return backward<T>(pass, {packed, order == TimeOrder::backward});
  });
}

}  // namespace tapedeck::fused
