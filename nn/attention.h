// Attention: a soft dictionary lookup (Bahdanau et al. 2015, arXiv:1409.0473; Luong et al. 2015, arXiv:1508.04025).
//
//   e_j = score(query, key_j)          B batch, T queries a row, S source positions
//   weights = softmax(e)               Q query size, K key (and value) size, A attention size
//   context = sum_j weights_j value_j  over the valid positions
//
// Every layer is called in two steps: project() computes once what does not depend on the query; the call then takes
// one query a row (B, Q) -> context (B, K), weights (B, S), or T of them (B, T, Q) -> (B, T, K), (B, T, S), which gives
// the same as T calls. `step` is the decoder's step of the first query; only LocalMonotonicAttention looks at it.
//
// A mask is boolean (B, S), true: may attend. Weights are exactly 0 where it is false, and what stands there changes
// nothing, whatever it is. A row without a true position throws, naming the row.
#pragma once

#include <tapedeck/nn/linear.h>

#include <variant>

namespace tapedeck {

// What a decoder attends to.
struct Memory {
  Var values;   // (B, S, K), 0 where masked
  Var keys;     // values as the scores need them
  Tensor mask;  // (B, S); undefined: everywhere true
};

// Row i of the result is row rows[i] of the memory; rows: i64 (M,).
Memory select_rows(const Memory& memory, const Tensor& rows);

// What was read, and where.
struct AttentionResult {
  Var context;  // (B, K) or (B, T, K)
  Var weights;  // (B, S) or (B, T, S); rows sum to 1
};

// score = v . tanh(W_q query + W_k key), without biases. The sizes of query and keys need not agree.
// Keeps for the backward pass: query, keys, scores. The (B, T, S, A) sums of T > 1 queries are computed again.
struct AdditiveAttention {
  Linear W_q, W_k, v;  // weights (A, Q), (A, K), (1, A)

  AdditiveAttention(int64_t query_size, int64_t key_size, int64_t attention_size, Rng& rng, DType dtype = DType::f32);
  Memory project(Operand values, const Tensor& mask = {}) const;
  AttentionResult operator()(Operand query, const Memory& memory, int64_t step = 0) const;
  static void fields(auto& self, auto&& f) { f("W_q", self.W_q), f("W_k", self.W_k), f("v", self.v); }
};

// score = key . (W query), W (K, Q), without bias: Luong's "general" form.
struct DotProductAttention {
  Linear W;  // (K, Q)

  DotProductAttention(int64_t query_size, int64_t key_size, Rng& rng, DType dtype = DType::f32);
  Memory project(Operand values, const Tensor& mask = {}) const;
  AttentionResult operator()(Operand query, const Memory& memory, int64_t step = 0) const;
  static void fields(auto& self, auto&& f) { f("W", self.W); }
};

// score = key . query: Luong's "dot" form. Sizes must agree; nothing is learned.
struct PlainDotAttention {
  Memory project(Operand values, const Tensor& mask = {}) const;
  AttentionResult operator()(Operand query, const Memory& memory, int64_t step = 0) const;
  static void fields(auto&, auto&&) {}
};

// score = v . tanh(W [query; key]), W (A, Q + K): Luong's "concat" form. The same function as the additive form with
// W = [W_q, W_k], and computed like it.
struct ConcatAttention {
  Linear W, v;  // (A, Q + K), (1, A)

  ConcatAttention(int64_t query_size, int64_t key_size, int64_t attention_size, Rng& rng, DType dtype = DType::f32);
  Memory project(Operand values, const Tensor& mask = {}) const;
  AttentionResult operator()(Operand query, const Memory& memory, int64_t step = 0) const;
  static void fields(auto& self, auto&& f) { f("W", self.W), f("v", self.v); }
};

// score = (W_q query + b_q) . (W_k key + b_k) / sqrt(A) (Vaswani et al. 2017); the values stay unprojected.
struct ScaledDotProductAttention {
  Linear W_k, W_q;  // (A, K), (A, Q), with biases

  ScaledDotProductAttention(int64_t query_size, int64_t key_size, int64_t attention_size, Rng& rng,
                            DType dtype = DType::f32);
  Memory project(Operand values, const Tensor& mask = {}) const;
  AttentionResult operator()(Operand query, const Memory& memory, int64_t step = 0) const;
  static void fields(auto& self, auto&& f) { f("W_k", self.W_k), f("W_q", self.W_q); }
};

// Luong's local attention: "general" scores, softmax over the positions |j - p| <= D only.
// Monotonic (local-m): p = the decoder's step, at most the row's last position.
struct LocalMonotonicAttention {
  Linear W;        // (K, Q)
  int64_t window;  // D >= 1

  LocalMonotonicAttention(int64_t query_size, int64_t key_size, int64_t window_size, Rng& rng,
                          DType dtype = DType::f32);
  Memory project(Operand values, const Tensor& mask = {}) const;
  AttentionResult operator()(Operand query, const Memory& memory, int64_t step = 0) const;
  static void fields(auto& self, auto&& f) { f("W", self.W); }
};

// Predictive (local-p): p = S sigmoid(v_p . tanh(W_p query)), S the row's own length. The weights are then multiplied
// by exp(-(j - p)^2 / (2 (D / 2)^2)), so that p gets a gradient; they no longer sum to 1.
struct LocalPredictiveAttention {
  Linear W, W_p, v_p;  // (K, Q), (A, Q), (1, A)
  int64_t window;      // D >= 1

  LocalPredictiveAttention(int64_t query_size, int64_t key_size, int64_t attention_size, int64_t window_size, Rng& rng,
                           DType dtype = DType::f32);
  Memory project(Operand values, const Tensor& mask = {}) const;
  AttentionResult operator()(Operand query, const Memory& memory, int64_t step = 0) const;
  static void fields(auto& self, auto&& f) { f("W", self.W), f("W_p", self.W_p), f("v_p", self.v_p); }
};

// Two baselines without a score: the last valid value at every step (a fixed context), and the mean of the valid ones.
struct LastValueContext {
  Memory project(Operand values, const Tensor& mask = {}) const;
  AttentionResult operator()(Operand query, const Memory& memory, int64_t step = 0) const;
  static void fields(auto&, auto&&) {}
};
struct MeanContext {
  Memory project(Operand values, const Tensor& mask = {}) const;
  AttentionResult operator()(Operand query, const Memory& memory, int64_t step = 0) const;
  static void fields(auto&, auto&&) {}
};

// Nadaraya-Watson kernel regression is the same lookup: f(q) = sum_j K(q, k_j) v_j / sum_j K(q, k_j) with the kernel
// K = exp(-|q - k|^2 / (2 width^2)). queries (B, T, Q), keys (B, S, Q), values (B, S, K).
AttentionResult kernel_smoother(Operand queries, Operand keys, Operand values, double width, const Tensor& mask = {});

// One of the layers, chosen when the program runs, and its two steps.
using AnyAttention =
    std::variant<AdditiveAttention, DotProductAttention, PlainDotAttention, ConcatAttention, ScaledDotProductAttention,
                 LocalMonotonicAttention, LocalPredictiveAttention, LastValueContext, MeanContext>;

// The alternatives of AnyAttention, in their order.
enum class AttentionKind {
  additive,
  dot,
  plain_dot,
  concat,
  scaled_dot,
  local_monotonic,
  local_predictive,
  last_value,
  mean,
};

// An attention as a plain value: AttentionKind::dot, or {AttentionKind::local_predictive, 64, 5}.
struct AttentionOptions {
  AttentionKind kind;  // which layer
  int64_t size;        // A, where the kind has one; 0: the query's size
  int64_t window;      // D of the local kinds

  AttentionOptions(AttentionKind which = AttentionKind::additive, int64_t attention_size = 0, int64_t window_size = 2)
      : kind(which), size(attention_size), window(window_size) {}
};

// Throws where plain_dot is asked to compare queries and keys of different sizes.
AnyAttention make_attention(const AttentionOptions& options, int64_t query_size, int64_t key_size, Rng& rng,
                            DType dtype = DType::f32);

// The layer that is held, called: project() and operator() of that layer.
inline Memory project(const AnyAttention& attention, Operand values, const Tensor& mask = {}) {
  return std::visit([&](const auto& layer) { return layer.project(values, mask); }, attention);
}
inline AttentionResult attend(const AnyAttention& attention, Operand query, const Memory& memory, int64_t step = 0) {
  return std::visit([&](const auto& layer) { return layer(query, memory, step); }, attention);
}

namespace detail {
// For attention layers: values (B, S, key_size) with 0 where the mask (B, S) is false, as a weight of exactly 0 would
// not hide an inf or NaN there (0 * inf = NaN). Throws on other shapes, and where a row is false everywhere.
Var valid_values(const char* layer, const Operand& values, const Tensor& mask, int64_t key_size);
}  // namespace detail

}  // namespace tapedeck
