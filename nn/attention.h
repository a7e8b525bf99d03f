// Attention with one query a row: a soft dictionary lookup (Bahdanau et al. 2015, Luong et al. 2015).
//
//   e_j = score(query, key_j)          B batch, S source positions, Q query size, K key size, A attention size
//   weights = softmax(e)               over the valid positions
//   context = sum_j weights_j value_j
//
// What does not depend on the query is computed once by project() and used at every step.
#pragma once

#include <tapedeck/nn/linear.h>

namespace tapedeck {

struct Memory {
  Var values;   // (B, S, K)
  Var keys;     // values as the scores need them
  Tensor mask;  // boolean (B, S), true: may attend; undefined: everywhere
};

struct AttentionResult {
  Var context;  // (B, K)
  Var weights;  // (B, S): rows sum to 1, exactly 0 where masked
};

// score = v . tanh(W_q query + W_k key), without biases. The sizes of query and keys need not agree.
struct AdditiveAttention {
  Linear W_q, W_k, v;  // weights (A, Q), (A, K), (1, A)

  AdditiveAttention(int64_t query_size, int64_t key_size, int64_t attention_size, Rng& rng, DType dtype = DType::f32);

  // values (B, S, K), mask as in Memory. Throws on a row without any true position, naming it.
  Memory project(Operand values, const Tensor& mask = {}) const;
  AttentionResult operator()(Operand query, const Memory& memory) const;  // query (B, Q)

  static void fields(auto& self, auto&& f) { f("W_q", self.W_q), f("W_k", self.W_k), f("v", self.v); }
};

// score = key . (W query), W (K, Q), without bias: Luong's "general" form.
struct DotProductAttention {
  Linear W;

  DotProductAttention(int64_t query_size, int64_t key_size, Rng& rng, DType dtype = DType::f32);

  Memory project(Operand values, const Tensor& mask = {}) const;
  AttentionResult operator()(Operand query, const Memory& memory) const;

  static void fields(auto& self, auto&& f) { f("W", self.W); }
};

}  // namespace tapedeck
