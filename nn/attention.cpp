#include <tapedeck/nn/attention.h>
#include <tapedeck/ops/ops.h>

namespace tapedeck {
namespace {

// What may be attended to: `values` with 0 where the mask is false. A weight of exactly 0 would not hide an inf or NaN
// there (0 * inf = NaN).
Var valid_values(const char* layer, const Operand& values, const Tensor& mask, int64_t key_size) {
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

void check_query(const char* layer, const Operand& query, const Linear& projection, const Memory& memory) {
  const int64_t Q = projection.weight.shape()[1], B = memory.values.size(0);
  if (query.shape() != Shape{B, Q}) fail("{}: expected a query ({}, {}), got {}", layer, B, Q, query.shape());
}

// scores (B, S) -> weights and context
AttentionResult attend(const Var& scores, const Memory& memory) {
  Var weights = memory.mask.defined() ? masked_softmax(scores, memory.mask) : softmax(scores);
  return {squeeze(bmm(unsqueeze(weights, 1), memory.values), 1), weights};
}

}  // namespace

AdditiveAttention::AdditiveAttention(int64_t query_size, int64_t key_size, int64_t attention_size, Rng& rng,
                                     DType dtype)
    : W_q(query_size, attention_size, rng, {.bias = false, .dtype = dtype}),
      W_k(key_size, attention_size, rng, {.bias = false, .dtype = dtype}),
      v(attention_size, 1, rng, {.bias = false, .dtype = dtype}) {}

Memory AdditiveAttention::project(Operand values, const Tensor& mask) const {
  UserSite here(values);
  Scope scope("attention.project");
  Var valid = valid_values("additive attention", values, mask, W_k.weight.shape()[1]);
  return {valid, W_k(valid), mask};
}

AttentionResult AdditiveAttention::operator()(Operand query, const Memory& memory) const {
  UserSite here(query);
  Scope scope("attention");
  check_query("additive attention", query, W_q, memory);
  Var hidden = tanh(unsqueeze(W_q(query), 1) + memory.keys);  // (B, S, A)
  return attend(squeeze(v(hidden), 2), memory);
}

DotProductAttention::DotProductAttention(int64_t query_size, int64_t key_size, Rng& rng, DType dtype)
    : W(query_size, key_size, rng, {.bias = false, .dtype = dtype}) {}

Memory DotProductAttention::project(Operand values, const Tensor& mask) const {
  UserSite here(values);
  Scope scope("attention.project");
  Var valid = valid_values("dot-product attention", values, mask, W.weight.shape()[0]);
  return {valid, valid, mask};
}

AttentionResult DotProductAttention::operator()(Operand query, const Memory& memory) const {
  UserSite here(query);
  Scope scope("attention");
  check_query("dot-product attention", query, W, memory);
  return attend(squeeze(bmm(memory.keys, unsqueeze(W(query), 2)), 2), memory);
}

}  // namespace tapedeck
