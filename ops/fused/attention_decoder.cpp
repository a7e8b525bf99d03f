#include <tapedeck/ops/fused/attention_decoder.h>
#include <tapedeck/ops/fused/gru_step.h>

#include <cmath>
#include <limits>

namespace tapedeck::fused {
namespace {

enum Input { gates_, state_, keys_, values_, W_q_, v_, W_c_, weight_hh_, bias_hh_ };

// Dense inputs, whatever their strides were, and all sizes.
struct Inputs {
  std::array<Tensor, 9> all;
  int64_t B, T, S, d, K, A;
  bool additive;

  explicit Inputs(std::span<const Tensor> in) {
    for (size_t i = 0; i < all.size(); ++i) all[i] = in[i].contiguous();
    B = all[gates_].size(0), T = all[gates_].size(1), S = all[keys_].size(1), d = all[state_].size(1);
    K = all[values_].size(2), A = all[keys_].size(2);
    additive = all[v_].numel() > 0;
  }
  DType dtype() const { return all[gates_].dtype(); }
  int64_t width() const { return d + K + S; }  // of a row of y
};

template <class T>
TAPEDECK_INLINE T lane_sum(simd::Vec<T> v) {
  T total = 0;
  for (size_t i = 0; i < simd::Lanes<T>::width; ++i) total += v[i];
  return total;
}

// The places of one row of the memory.
template <class T>
struct Row {
  const T *keys, *values;
  const bool* allowed;  // null: all
  int64_t S, A, K;
  bool allows(int64_t j) const { return !allowed || allowed[j]; }
};

// Weights (S) and context (K) of one query q (A).
template <class T>
TAPEDECK_KERNEL void attend(const Row<T>& row, const T* q, const T* v, T* weights, T* context) {
  T top = -std::numeric_limits<T>::infinity();
  for (int64_t j = 0; j < row.S; ++j) {
    if (!row.allows(j)) continue;
    const T* key = row.keys + j * row.A;
    simd::Vec<T> sum{};
    if (v) {
      simd::each_vector<T>(row.A,
                           [&](auto at) TAPEDECK_LANES { sum += at.load(v) * simd::tanh(at.load(q) + at.load(key)); });
    } else {
      simd::each_vector<T>(row.A, [&](auto at) TAPEDECK_LANES { sum += at.load(q) * at.load(key); });
    }
    weights[j] = lane_sum<T>(sum);
    top = simd::max(top, weights[j]);
  }
  double total = 0;
  for (int64_t j = 0; j < row.S; ++j) {
    weights[j] = row.allows(j) ? simd::exp(static_cast<T>(weights[j] - top)) : T{0};
    total += static_cast<double>(weights[j]);
  }
  std::fill_n(context, row.K, T{0});
  for (int64_t j = 0; j < row.S; ++j) {
    if (!row.allows(j)) continue;
    const T w = weights[j] = static_cast<T>(static_cast<double>(weights[j]) / total);
    const T* value = row.values + j * row.K;
    simd::each_vector<T>(row.K,
                         [&](auto at) TAPEDECK_LANES { at.store(context, at.load(context) + w * at.load(value)); });
  }
}

// What attend() gives back: dq is set, dkeys, dvalues and dv are added to. `slopes` (S) is room to work in.
template <class T>
TAPEDECK_KERNEL void attend_backward(const Row<T>& row, const T* q, const T* v, const T* weights, const T* g_weights,
                                     const T* g_context, T* slopes, T* dq, T* dkeys, T* dvalues, T* dv) {
  T mean = 0;
  for (int64_t j = 0; j < row.S; ++j) {
    if (!row.allows(j)) continue;
    const T w = weights[j], *value = row.values + j * row.K;
    T* dvalue = dvalues + j * row.K;
    simd::Vec<T> sum{};
    simd::each_vector<T>(row.K, [&](auto at) TAPEDECK_LANES {
      const auto g = at.load(g_context);
      sum += g * at.load(value);
      at.store(dvalue, at.load(dvalue) + w * g);
    });
    slopes[j] = lane_sum<T>(sum) + g_weights[j];
    mean += w * slopes[j];
  }
  std::fill_n(dq, row.A, T{0});
  for (int64_t j = 0; j < row.S; ++j) {
    if (!row.allows(j)) continue;
    const T de = weights[j] * (slopes[j] - mean), *key = row.keys + j * row.A;
    T* dkey = dkeys + j * row.A;
    if (v) {
      simd::each_vector<T>(row.A, [&](auto at) TAPEDECK_LANES {
        const auto hidden = simd::tanh(at.load(q) + at.load(key));
        const auto du = de * at.load(v) * (T(1) - hidden * hidden);
        at.store(dq, at.load(dq) + du);
        at.store(dkey, at.load(dkey) + du);
        at.store(dv, at.load(dv) + de * hidden);
      });
    } else {
      simd::each_vector<T>(row.A, [&](auto at) TAPEDECK_LANES {
        at.store(dq, at.load(dq) + de * at.load(key));
        at.store(dkey, at.load(dkey) + de * at.load(q));
      });
    }
  }
}

template <class T>
Row<T> row_of(const Inputs& in, const bool* allowed, int64_t b) {
  return {in.all[keys_].template data<T>() + b * in.S * in.A,
          in.all[values_].template data<T>() + b * in.S * in.K,
          allowed ? allowed + b * in.S : nullptr,
          in.S,
          in.A,
          in.K};
}

template <class T>
FusedValue forward(const Inputs& in, const bool* allowed, const Packed& packed) {
  const int64_t B = in.B, steps = in.T, d = in.d, K = in.K, A = in.A, N = packed.total;
  const DType dtype = in.dtype();
  Tensor y =
      N == B * steps ? Tensor::empty({B, steps, in.width()}, dtype) : Tensor::zeros({B, steps, in.width()}, dtype);
  Tensor gates = matrix(N, 3 * d, dtype), candidates = matrix(N, d, dtype), queries = matrix(N, A, dtype);  // packed
  Tensor states = matrix(B, d, dtype), next = matrix(B, d, dtype), contexts = matrix(B, K, dtype),
         hidden = matrix(B, 3 * d, dtype);
  const Tensor W_q = in.all[W_q_].transpose().clone(), W_c = in.all[W_c_].transpose().clone(),
               weight_hh = in.all[weight_hh_].transpose().clone();
  const T* v = in.additive ? in.all[v_].data<T>() : nullptr;
  T *s = states.mutable_data<T>(), *after = next.mutable_data<T>(), *c = contexts.mutable_data<T>(),
    *out = y.mutable_data<T>();
  for (int64_t k = 0; k < B; ++k) std::copy_n(in.all[state_].data<T>() + packed.row(k) * d, d, s + k * d);
  for (int64_t t = 0; t < steps; ++t) {
    const int64_t n = packed.rows_at(t), at = packed.begin_of(t);
    T *gate = gates.mutable_data<T>() + at * 3 * d, *q = queries.mutable_data<T>() + at * A;
    blas::gemm<T>(rows_of<T>(s, n, d), rows_of(W_q.data<T>(), d, A), T{0}, q);
    for (int64_t k = 0; k < n; ++k) {
      const int64_t b = packed.row(k);
      T* row = out + (b * steps + t) * in.width();
      attend<T>(row_of<T>(in, allowed, b), q + k * A, v, row + d + K, c + k * K);
      std::copy_n(c + k * K, K, row + d);
      std::copy_n(in.all[gates_].data<T>() + (b * steps + t) * 3 * d, 3 * d, gate + k * 3 * d);
    }
    blas::gemm<T>(rows_of<T>(c, n, K), rows_of(W_c.data<T>(), K, 3 * d), T{1}, gate);
    repeat_row(hidden.mutable_data<T>(), in.all[bias_hh_].data<T>(), n, 3 * d);
    blas::gemm<T>(rows_of<T>(s, n, d), rows_of(weight_hh.data<T>(), d, 3 * d), T{1}, hidden.mutable_data<T>());
    step_forward<T>(n, d, gate, hidden.data<T>(), s, candidates.mutable_data<T>() + at * d, after);
    for (int64_t k = 0; k < n; ++k) std::copy_n(after + k * d, d, out + (packed.row(k) * steps + t) * in.width());
    std::swap(s, after);
  }
  return {y, {gates, candidates, queries}};
}

template <class T>
std::array<Tensor, 9> backward(const Inputs& in, const FusedPass& pass, const bool* allowed, const Packed& packed) {
  const int64_t B = in.B, steps = in.T, S = in.S, d = in.d, K = in.K, A = in.A, width = in.width(), N = packed.total;
  const DType dtype = in.dtype();
  const T *g = pass.g.data<T>(), *y = pass.y.data<T>();
  const T *gates = pass.saved[0].data<T>(), *candidates = pass.saved[1].data<T>(), *queries = pass.saved[2].data<T>();
  const T* v = in.additive ? in.all[v_].data<T>() : nullptr;

  // Packed: the state before each step, contexts, and the gradients of gates, hidden gates and queries.
  Tensor before = matrix(N, d, dtype), contexts = matrix(N, K, dtype), d_input = matrix(N, 3 * d, dtype),
         d_hidden = matrix(N, 3 * d, dtype), d_queries = matrix(N, A, dtype);
  T *s = before.mutable_data<T>(), *c = contexts.mutable_data<T>();
  packed.for_each([&](int64_t at, int64_t b, int64_t t) {
    const T* row = y + (b * steps + t) * width;
    std::copy_n(t == 0 ? in.all[state_].data<T>() + b * d : row - width, d, s + at * d);
    std::copy_n(row + d, K, c + at * K);
  });

  std::array<Tensor, 9> result;
  result[keys_] = Tensor::zeros(in.all[keys_].shape(), dtype);
  result[values_] = Tensor::zeros(in.all[values_].shape(), dtype);
  Tensor carried = Tensor::zeros({B, d}, dtype), d_context = matrix(B, K, dtype), slopes = Tensor::empty({S}, dtype);
  Tensor dv = Tensor::zeros({B, A}, dtype);
  T *dh = carried.mutable_data<T>(), *dc = d_context.mutable_data<T>();  // rows in packed order
  for (int64_t t = steps - 1; t >= 0; --t) {
    const int64_t n = packed.rows_at(t), at = packed.begin_of(t);
    for (int64_t k = 0; k < n; ++k) {
      const T* from = g + (packed.row(k) * steps + t) * width;
      for (int64_t i = 0; i < d; ++i) dh[k * d + i] += from[i];
      std::copy_n(from + d, K, dc + k * K);
    }
    T *di = d_input.mutable_data<T>() + at * 3 * d, *dg = d_hidden.mutable_data<T>() + at * 3 * d,
      *dq = d_queries.mutable_data<T>() + at * A;
    step_backward<T>(n, d, gates + at * 3 * d, candidates + at * d, s + at * d, dh, di, dg);
    blas::gemm<T>(rows_of<T>(di, n, 3 * d), rows_of(in.all[W_c_].data<T>(), 3 * d, K), T{1}, dc);
    blas::gemm<T>(rows_of<T>(dg, n, 3 * d), rows_of(in.all[weight_hh_].data<T>(), 3 * d, d), T{1}, dh);
    for (int64_t k = 0; k < n; ++k) {
      const int64_t b = packed.row(k), weights = (b * steps + t) * width + d + K;
      attend_backward<T>(row_of<T>(in, allowed, b), queries + (at + k) * A, v, y + weights, g + weights, dc + k * K,
                         slopes.mutable_data<T>(), dq + k * A, result[keys_].mutable_data<T>() + b * S * A,
                         result[values_].mutable_data<T>() + b * S * K, dv.mutable_data<T>() + b * A);
    }
    blas::gemm<T>(rows_of<T>(dq, n, A), rows_of(in.all[W_q_].data<T>(), A, d), T{1}, dh);
  }

  const T *di = d_input.data<T>(), *dg = d_hidden.data<T>();
  result[gates_] =
      N == B * steps ? Tensor::empty(in.all[gates_].shape(), dtype) : Tensor::zeros(in.all[gates_].shape(), dtype);
  T* d_gates = result[gates_].mutable_data<T>();
  packed.for_each([&](int64_t at, int64_t b, int64_t t) {
    std::copy_n(di + at * 3 * d, 3 * d, d_gates + (b * steps + t) * 3 * d);
  });
  result[state_] = matrix(B, d, dtype);
  T* d_state = result[state_].mutable_data<T>();
  for (int64_t k = 0; k < B; ++k) std::copy_n(dh + k * d, d, d_state + packed.row(k) * d);
  // Weights: one product over all steps each.
  auto weight_gradient = [&](const T* out, int64_t n, const T* x, int64_t m) {
    Tensor dw = matrix(n, m, dtype);
    blas::gemm<T>(transposed(out, n, N), rows_of(x, N, m), T{0}, dw.mutable_data<T>());
    return dw;
  };
  result[W_q_] = weight_gradient(d_queries.data<T>(), A, s, d);
  result[W_c_] = weight_gradient(di, 3 * d, c, K);
  result[weight_hh_] = weight_gradient(dg, 3 * d, s, d);
  result[bias_hh_] = column_sums(dg, N, 3 * d, dtype);
  result[v_] = in.additive ? column_sums(dv.data<T>(), B, A, dtype).reshape(in.all[v_].shape())
                           : Tensor::zeros(in.all[v_].shape(), dtype);
  return result;
}

const bool* places(const Tensor& mask) { return mask.defined() ? mask.data<bool>() : nullptr; }

}  // namespace

FusedValue attention_decoder_forward(std::span<const Tensor> inputs, const Tensor& mask, const Packed& packed) {
  const Inputs in(inputs);
  return dispatch_floating("attention_decoder", in.dtype(),
                           [&]<class T> { return forward<T>(in, places(mask), packed); });
}

std::array<Tensor, 9> attention_decoder_backward(const FusedPass& pass, const Tensor& mask, const Packed& packed) {
  const Inputs in(pass.inputs);
  return dispatch_floating("attention_decoder", in.dtype(),
                           [&]<class T> { return backward<T>(in, pass, places(mask), packed); });
}

}  // namespace tapedeck::fused
