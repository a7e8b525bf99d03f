// Kernels of attention_decoder (nn/attention_decoder.h), whose inputs and names these are. Internal.
#pragma once

#include <tapedeck/core/tape.h>
#include <tapedeck/ops/fused/packed.h>

#include <array>

namespace tapedeck::fused {

// mask: boolean (B, S) with a true place in every row, or undefined. y (B, T, d + K + S): [s_t; c_t; w_t], and 0 where
// a row is past its length in `packed`: such steps are in no product.
// Saves gates, the candidate's part of the hidden product and q: 4d + A numbers a step and row. tanh(q + key) is
// computed again.
FusedValue attention_decoder_forward(std::span<const Tensor> inputs, const Tensor& mask, const Packed& packed);

// The gradients of the nine inputs.
std::array<Tensor, 9> attention_decoder_backward(const FusedPass& pass, const Tensor& mask, const Packed& packed);

}  // namespace tapedeck::fused
