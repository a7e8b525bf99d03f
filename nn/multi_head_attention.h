// Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762):
//
//   head_h  = softmax(q_h k_h^T / sqrt(d)) v_h,   q_h, k_h, v_h: the h-th slices of W_q query, W_k memory, W_v memory
//   output  = W_o [head_1; ...; head_H] + b_o
//
// B batch, T queries a row, S source positions, E size, H heads, d = E / H.
//
// Masks are boolean, true: may attend. Weights are exactly 0 where one is false, and what stands there changes nothing.
// A query that may attend to nothing throws, naming row and query.
#pragma once

#include <tapedeck/nn/attention.h>
#include <tapedeck/ops/reduce.h>

namespace tapedeck {

// Keys and values of the positions decoded so far, in buffers that double when they are full: a step copies what is new
// and nothing else. N rows.
class AttentionCache {
 public:
  int64_t size() const { return size_; }  // positions so far

  // Adds keys and values (N, n, E) of n further positions; returns those of all: views (N, size(), E), good until the
  // next call. Throws where either is tracked by a tape: gradients do not pass through a cache.
  Memory append(Operand keys, Operand values);

  // i64 (M,): row i goes on as a copy of the old row rows[i].
  void select(const Tensor& rows);

 private:
  Tensor keys_, values_;  // (N, capacity, E)
  int64_t size_ = 0;
};

// How a MultiHeadAttention is made.
struct MultiHeadOptions {
  double dropout = 0;        // of the weights
  bool bias = true;          // of all four projections
  DType dtype = DType::f32;  // of the parameters
};

// What the queries get.
struct MultiHeadResult {
  Var output;                                        // (B, T, E)
  Var weights;                                       // (B, H, T, S), before dropout; rows sum to 1
  Var averaged() const { return mean(weights, 1); }  // over the heads: (B, T, S)
};

// PyTorch's parameters and initial values: in_proj_weight (3E, E) = [W_q; W_k; W_v], Xavier's uniform; in_proj_bias
// (3E) and out_proj.bias (E), zeros; out_proj.weight (E, E), uniform.
//
// Keeps for the backward pass, beside its inputs: the projected queries, keys and values, the heads' outputs, and the
// weights, together 2 B (T + S) E + B H T S numbers; with dropout, the weights three times. Scores are not kept, and
// heads are strides, so splitting them copies nothing.
struct MultiHeadAttention {
  int64_t heads;                           // H
  double dropout;                          // of the weights
  Parameter in_proj_weight, in_proj_bias;  // the bias is absent with .bias = false
  Linear out_proj;                         // W_o, b_o

  // Throws unless heads divides size.
  MultiHeadAttention(int64_t size, int64_t heads, Rng& rng, const MultiHeadOptions& options = {});
  int64_t size() const { return out_proj.weight.shape()[0]; }  // E

  // Keys and values of a memory (B, S, E), projected once, for any number of calls. mask (B, S).
  Memory project(Operand memory, const Tensor& mask = {}) const;

  // Cross attention: queries (B, T, E) of a projected memory. An rng draws the dropout of the weights; null: none.
  MultiHeadResult operator()(Operand query, const Memory& memory, Rng* rng = nullptr) const;

  // Self attention: x (B, T, E) attends to itself; `causal`: query t to positions 0..t only. mask (B, T), of positions
  // as keys: every query has an output.
  MultiHeadResult attend_self(Operand x, const Tensor& mask = {}, bool causal = false, Rng* rng = nullptr) const;

  // The same, causal, one piece after the other: x (B, T, E) follows what is in the cache and is added to it. Equal to
  // the last T queries over all positions at once.
  MultiHeadResult attend_self(Operand x, AttentionCache& cache) const;

  static void fields(auto& self, auto&& f) {
    f("in_proj_weight", self.in_proj_weight), f("in_proj_bias", self.in_proj_bias), f("out_proj", self.out_proj);
  }
};

}  // namespace tapedeck
