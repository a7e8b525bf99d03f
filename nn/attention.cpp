#include <tapedeck/nn/attention.h>
#include <tapedeck/ops/ops.h>

#include <cmath>

#include <array>

namespace tapedeck {

Var detail::valid_values(const char* layer, const Operand& values, const Tensor& mask, int64_t key_size) {
  if (values.rank() != 3 || values.size(2) != key_size) {
    fail("{}: expected values (B, S, {}), got {}", layer, key_size, values.shape());
  }
  const int64_t B = values.size(0), S = values.size(1);
  if (S == 0 && B > 0) fail("{}: row 0 has nothing to attend to: values {} hold no positions", layer, values.shape());
  if (!mask.defined()) return values.var();
  if (mask.dtype() != DType::boolean || mask.shape() != Shape{B, S}) {
    fail("{}: expected a boolean mask ({}, {}) (true: may attend), got {} {}", layer, B, S, mask.dtype(), mask.shape());
  }
  Tensor hidden = Tensor::empty({B, S, 1}, DType::boolean), dense = mask.contiguous();
  const bool* valid = dense.data<bool>();
  bool* h = hidden.mutable_data<bool>();
  bool any_hidden = false;
  for (int64_t b = 0; b < B; ++b) {
    bool any_valid = false;
    for (int64_t i = b * S; i < (b + 1) * S; ++i) {
      h[i] = !valid[i];
      any_valid = any_valid || valid[i];
      any_hidden = any_hidden || h[i];
    }
    if (!any_valid) fail("{}: row {} has nothing to attend to: its mask is false everywhere", layer, b);
  }
  return any_hidden ? masked_fill(values, hidden, 0) : values.var();
}

namespace {

using detail::valid_values;

// Queries as (B, T, Q), and the way back for one query a row.
struct Queries {
  Var all;
  bool single;

  Queries(const char* layer, const Operand& query, const Memory& memory, int64_t Q) : single(query.rank() == 2) {
    const int64_t B = memory.values.size(0);
    const bool fits = (query.rank() == 2 || query.rank() == 3) && query.size(0) == B && query.size(-1) == Q;
    if (!fits) fail("{}: expected queries ({}, {}) or ({}, T, {}), got {}", layer, B, Q, B, Q, query.shape());
    all = single ? unsqueeze(query, 1) : query.var();
  }

  AttentionResult finish(const Var& weights, const Memory& memory) const {
    Var context = bmm(weights, memory.values);  // (B, T, K)
    return single ? AttentionResult{squeeze(context, 1), squeeze(weights, 1)} : AttentionResult{context, weights};
  }

  // scores (B, T, S) -> weights over the valid positions and context
  AttentionResult attend(const Var& scores, const Memory& memory) const {
    return finish(memory.mask.defined() ? masked_softmax(scores, memory.mask.unsqueeze(1)) : softmax(scores), memory);
  }
};

int64_t key_size_of(const Linear& projection) { return projection.weight.shape()[1]; }

// v . tanh(q_t + k_s): queries (B, T, A), keys (B, S, A) -> (B, T, S). The sums of one step are small and kept; those
// of all steps at once, (B, T, S, A), are computed again in the backward pass.
Var additive_scores(const Var& queries, const Var& keys, const Var& v) {
  auto scores = [](std::span<const Var> in) {
    Var hidden = tanh(unsqueeze(in[0], 2) + unsqueeze(in[1], 1));
    return squeeze(linear(hidden, in[2]), -1);
  };
  if (queries.size(1) == 1) return scores(std::array{queries, keys, v});
  return checkpoint(scores, {queries, keys, v});
}

// Positions 0..S-1 as (1, 1, S), in the given dtype.
Tensor positions(int64_t S, DType dtype) { return Tensor::arange(S, dtype).reshape({1, 1, S}); }

// Valid positions of each row: (B, 1, 1).
Tensor row_sizes(const Memory& memory) {
  const int64_t B = memory.values.size(0), S = memory.values.size(1);
  const DType dtype = memory.values.dtype();
  if (!memory.mask.defined()) return Tensor::full({B, 1, 1}, S, dtype);
  return sum(memory.mask.to(dtype), 1, true).value().unsqueeze(2);
}

// Where |j - p| <= D and j is valid: boolean (B, T, S), for centres p (B, T, 1).
Tensor windows(const Tensor& centres, int64_t D, const Memory& memory) {
  const int64_t S = memory.values.size(1);
  Var distance = abs(Var(positions(S, centres.dtype())) - centres);
  Var inside = distance <= static_cast<double>(D);
  return (memory.mask.defined() ? inside & memory.mask.unsqueeze(1) : inside).value();
}

void check_window(int64_t D) {
  if (D < 1) fail("local attention: expected a window of at least 1, got {}", D);
}

// The same weights (B, 1, S) for every query, whatever it is.
AttentionResult constant_weights(const char* layer, const Operand& query, const Memory& memory, const Tensor& weights) {
  const int64_t B = memory.values.size(0);
  if ((query.rank() != 2 && query.rank() != 3) || query.size(0) != B) {
    fail("{}: expected queries ({}, Q) or ({}, T, Q), got {}", layer, B, B, query.shape());
  }
  const bool single = query.rank() == 2;
  Var all = expand(weights, {B, single ? 1 : query.size(1), weights.size(2)});
  Var context = bmm(all, memory.values);
  return single ? AttentionResult{squeeze(context, 1), squeeze(all, 1)} : AttentionResult{context, all};
}

int64_t last_extent(const Operand& values) { return values.rank() == 3 ? values.size(2) : 0; }

}  // namespace

// ---- Additive, and its other spelling -------------------------------------------------------------------------------

AdditiveAttention::AdditiveAttention(int64_t query_size, int64_t key_size, int64_t attention_size, Rng& rng,
                                     DType dtype)
    : W_q(query_size, attention_size, rng, {.bias = false, .dtype = dtype}),
      W_k(key_size, attention_size, rng, {.bias = false, .dtype = dtype}),
      v(attention_size, 1, rng, {.bias = false, .dtype = dtype}) {}

Memory AdditiveAttention::project(Operand values, const Tensor& mask) const {
  UserSite here(values);
  Scope scope("attention.project");
  Var valid = valid_values("additive attention", values, mask, key_size_of(W_k));
  return {valid, W_k(valid), mask};
}

AttentionResult AdditiveAttention::operator()(Operand query, const Memory& memory, int64_t) const {
  UserSite here(query);
  Scope scope("attention");
  Queries queries("additive attention", query, memory, key_size_of(W_q));
  return queries.attend(additive_scores(W_q(queries.all), memory.keys, v.weight), memory);
}

ConcatAttention::ConcatAttention(int64_t query_size, int64_t key_size, int64_t attention_size, Rng& rng, DType dtype)
    : W(query_size + key_size, attention_size, rng, {.bias = false, .dtype = dtype}),
      v(attention_size, 1, rng, {.bias = false, .dtype = dtype}) {}

// W [q; k] = W_q q + W_k k: the columns of W for the query come first.
Memory ConcatAttention::project(Operand values, const Tensor& mask) const {
  UserSite here(values);
  Scope scope("attention.project");
  const int64_t K = last_extent(values), all = key_size_of(W);
  if (K < 1 || K >= all) fail("concat attention: expected values (B, S, K) with K < {}, got {}", all, values.shape());
  Var valid = valid_values("concat attention", values, mask, K);
  return {valid, linear(valid, slice(W.weight, 1, all - K, all)), mask};
}

AttentionResult ConcatAttention::operator()(Operand query, const Memory& memory, int64_t) const {
  UserSite here(query);
  Scope scope("attention");
  const int64_t Q = key_size_of(W) - memory.values.size(2);
  Queries queries("concat attention", query, memory, Q);
  return queries.attend(additive_scores(linear(queries.all, slice(W.weight, 1, 0, Q)), memory.keys, v.weight), memory);
}

// ---- Products -------------------------------------------------------------------------------------------------------

DotProductAttention::DotProductAttention(int64_t query_size, int64_t key_size, Rng& rng, DType dtype)
    : W(query_size, key_size, rng, {.bias = false, .dtype = dtype}) {}

Memory DotProductAttention::project(Operand values, const Tensor& mask) const {
  UserSite here(values);
  Scope scope("attention.project");
  Var valid = valid_values("dot-product attention", values, mask, W.weight.shape()[0]);
  return {valid, valid, mask};
}

AttentionResult DotProductAttention::operator()(Operand query, const Memory& memory, int64_t) const {
  UserSite here(query);
  Scope scope("attention");
  Queries queries("dot-product attention", query, memory, key_size_of(W));
  return queries.attend(bmm(W(queries.all), transpose(memory.keys)), memory);
}

Memory PlainDotAttention::project(Operand values, const Tensor& mask) const {
  UserSite here(values);
  Var valid = valid_values("plain dot attention", values, mask, last_extent(values));
  return {valid, valid, mask};
}

AttentionResult PlainDotAttention::operator()(Operand query, const Memory& memory, int64_t) const {
  UserSite here(query);
  Scope scope("attention");
  Queries queries("plain dot attention", query, memory, memory.keys.size(2));
  return queries.attend(bmm(queries.all, transpose(memory.keys)), memory);
}

ScaledDotProductAttention::ScaledDotProductAttention(int64_t query_size, int64_t key_size, int64_t attention_size,
                                                     Rng& rng, DType dtype)
    : W_k(key_size, attention_size, rng, {.dtype = dtype}), W_q(query_size, attention_size, rng, {.dtype = dtype}) {}

Memory ScaledDotProductAttention::project(Operand values, const Tensor& mask) const {
  UserSite here(values);
  Scope scope("attention.project");
  Var valid = valid_values("scaled dot-product attention", values, mask, key_size_of(W_k));
  return {valid, W_k(valid), mask};
}

AttentionResult ScaledDotProductAttention::operator()(Operand query, const Memory& memory, int64_t) const {
  UserSite here(query);
  Scope scope("attention");
  Queries queries("scaled dot-product attention", query, memory, key_size_of(W_q));
  const double scale = 1 / std::sqrt(static_cast<double>(W_q.weight.shape()[0]));
  return queries.attend(bmm(W_q(queries.all) * scale, transpose(memory.keys)), memory);
}

// ---- Local ----------------------------------------------------------------------------------------------------------

LocalMonotonicAttention::LocalMonotonicAttention(int64_t query_size, int64_t key_size, int64_t window_size, Rng& rng,
                                                 DType dtype)
    : W(query_size, key_size, rng, {.bias = false, .dtype = dtype}), window(window_size) {
  check_window(window);
}

Memory LocalMonotonicAttention::project(Operand values, const Tensor& mask) const {
  UserSite here(values);
  Var valid = valid_values("local attention", values, mask, W.weight.shape()[0]);
  return {valid, valid, mask};
}

AttentionResult LocalMonotonicAttention::operator()(Operand query, const Memory& memory, int64_t step) const {
  UserSite here(query);
  Scope scope("attention");
  Queries queries("local attention", query, memory, key_size_of(W));
  const DType dtype = memory.values.dtype();
  const int64_t T = queries.all.size(1);
  Tensor steps = Tensor::arange(T, dtype).reshape({1, T, 1});
  steps.add_(step);
  Tensor centres = minimum(steps, Var(row_sizes(memory)) - 1).value();  // (B, T, 1)
  Var scores = bmm(W(queries.all), transpose(memory.keys));
  return queries.finish(masked_softmax(scores, windows(centres, window, memory)), memory);
}

LocalPredictiveAttention::LocalPredictiveAttention(int64_t query_size, int64_t key_size, int64_t attention_size,
                                                   int64_t window_size, Rng& rng, DType dtype)
    : W(query_size, key_size, rng, {.bias = false, .dtype = dtype}),
      W_p(query_size, attention_size, rng, {.bias = false, .dtype = dtype}),
      v_p(attention_size, 1, rng, {.bias = false, .dtype = dtype}),
      window(window_size) {
  check_window(window);
}

Memory LocalPredictiveAttention::project(Operand values, const Tensor& mask) const {
  UserSite here(values);
  Var valid = valid_values("local attention", values, mask, W.weight.shape()[0]);
  return {valid, valid, mask};
}

AttentionResult LocalPredictiveAttention::operator()(Operand query, const Memory& memory, int64_t) const {
  UserSite here(query);
  Scope scope("attention");
  Queries queries("local attention", query, memory, key_size_of(W));
  const int64_t S = memory.values.size(1);
  Var p = sigmoid(v_p(tanh(W_p(queries.all)))) * row_sizes(memory);  // (B, T, 1)
  Var scores = bmm(W(queries.all), transpose(memory.keys));
  Var weights = masked_softmax(scores, windows(p.value(), window, memory));
  const double sigma = 0.5 * static_cast<double>(window);
  Var bell = exp(square(Var(positions(S, p.dtype())) - p) * (-0.5 / (sigma * sigma)));
  return queries.finish(weights * bell, memory);
}

// ---- Baselines and the kernel smoother ------------------------------------------------------------------------------

Memory LastValueContext::project(Operand values, const Tensor& mask) const {
  UserSite here(values);
  Var valid = valid_values("last value context", values, mask, last_extent(values));
  return {valid, valid, mask};
}

AttentionResult LastValueContext::operator()(Operand query, const Memory& memory, int64_t) const {
  UserSite here(query);
  const int64_t B = memory.values.size(0), S = memory.values.size(1);
  Tensor weights = Tensor::zeros({B, 1, S}, memory.values.dtype());
  for (int64_t b = 0; b < B; ++b) {
    int64_t last = S - 1;
    while (memory.mask.defined() && memory.mask.at({b, last}) == 0) --last;
    weights.set({b, 0, last}, 1);
  }
  return constant_weights("last value context", query, memory, weights);
}

Memory MeanContext::project(Operand values, const Tensor& mask) const {
  UserSite here(values);
  Var valid = valid_values("mean context", values, mask, last_extent(values));
  return {valid, valid, mask};
}

AttentionResult MeanContext::operator()(Operand query, const Memory& memory, int64_t) const {
  UserSite here(query);
  const int64_t B = memory.values.size(0), S = memory.values.size(1);
  const DType dtype = memory.values.dtype();
  Tensor ones = memory.mask.defined() ? memory.mask.to(dtype).unsqueeze(1) : Tensor::ones({B, 1, S}, dtype);
  return constant_weights("mean context", query, memory, (Var(ones) / row_sizes(memory)).value());
}

Memory select_rows(const Memory& memory, const Tensor& rows) {
  const bool same = memory.keys.value().shares_storage(memory.values.value());
  Var values = index_select(memory.values, 0, rows);
  return {values, same ? values : index_select(memory.keys, 0, rows),
          memory.mask.defined() ? index_select(memory.mask, 0, rows).value() : Tensor()};
}

AnyAttention make_attention(const AttentionOptions& o, int64_t query_size, int64_t key_size, Rng& rng, DType dtype) {
  const int64_t Q = query_size, K = key_size, A = o.size == 0 ? Q : o.size;
  if (A < 1) fail("attention: expected a size of at least 1, or 0 for that of the query, got {}", o.size);
  switch (o.kind) {
    case AttentionKind::additive:
      return AdditiveAttention(Q, K, A, rng, dtype);
    case AttentionKind::dot:
      return DotProductAttention(Q, K, rng, dtype);
    case AttentionKind::plain_dot:
      if (Q != K) {
        fail(
            "attention: plain dot products compare queries and keys of one size, got {} and {}; AttentionKind::dot "
            "learns a matrix between them",
            Q, K);
      }
      return PlainDotAttention{};
    case AttentionKind::concat:
      return ConcatAttention(Q, K, A, rng, dtype);
    case AttentionKind::scaled_dot:
      return ScaledDotProductAttention(Q, K, A, rng, dtype);
    case AttentionKind::local_monotonic:
      return LocalMonotonicAttention(Q, K, o.window, rng, dtype);
    case AttentionKind::local_predictive:
      return LocalPredictiveAttention(Q, K, A, o.window, rng, dtype);
    case AttentionKind::last_value:
      return LastValueContext{};
    case AttentionKind::mean:
      return MeanContext{};
  }
  fail("attention: {} is no kind of attention", static_cast<int>(o.kind));
}

AttentionResult kernel_smoother(Operand queries, Operand keys, Operand values, double width, const Tensor& mask) {
  UserSite here(queries);
  if (!(width > 0)) fail("kernel smoother: expected a width above 0, got {}", width);
  if (queries.rank() != 3 || keys.rank() != 3 || keys.size(2) != queries.size(2) || keys.size(0) != queries.size(0) ||
      values.rank() != 3 || values.size(0) != keys.size(0) || values.size(1) != keys.size(1)) {
    fail("kernel smoother: expected queries (B, T, Q), keys (B, S, Q) and values (B, S, K), got {}, {} and {}",
         queries.shape(), keys.shape(), values.shape());
  }
  Memory memory{valid_values("kernel smoother", values, mask, values.size(2)), keys.var(), mask};
  Var distance = unsqueeze(queries, 2) - unsqueeze(keys, 1);  // (B, T, S, Q)
  Var scores = sum(square(distance), -1) * (-0.5 / (width * width));
  return Queries("kernel smoother", queries, memory, queries.size(2)).attend(scores, memory);
}

}  // namespace tapedeck
