// A GRU decoder that attends before every step (Bahdanau et al. 2015, arXiv:1409.0473), all steps of teacher forcing as
// one op.
#pragma once

#include <tapedeck/core/tape.h>

#include <span>

namespace tapedeck {

// B batch, T steps, S memory, d state, K values, A attention size.
struct AttentionDecoderInputs {
  Operand gates;               // (B, T, 3d): what the tokens give to the GRU's gates r, z, n, with the input bias
  Operand state;               // (B, d): s_0
  Operand keys, values;        // (B, S, A), (B, S, K)
  Operand W_q, v;              // (A, d); (1, A) for additive scores, (0) for dot products
  Operand W_c;                 // (3d, K): what the context gives to the gates
  Operand weight_hh, bias_hh;  // (3d, d), (3d)
};

//   q_t = W_q s_{t-1},   e_tj = v . tanh(q_t + key_j)  or  q_t . key_j
//   w_t = softmax(e_t) over the places of `mask`,   c_t = sum_j w_tj value_j
//   s_t = GRU(gates_t + W_c c_t, s_{t-1})
// -> (B, T, d + K + S): [s_t; c_t; w_t], 0 past a row's length. mask: boolean (B, S), true: may attend, or undefined:
// everywhere; lengths: B numbers in 1..T. Steps past the length are in no product.
// Keeps for the backward pass 4d + A numbers a step and row, beside inputs and output.
// Fused, because it is most of a small model's training step: 1.3 to 1.6 times faster as a whole (bench/reversal_step).
Var attention_decoder(const AttentionDecoderInputs& inputs, const Tensor& mask, std::span<const int64_t> lengths);

}  // namespace tapedeck
