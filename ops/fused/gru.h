// Kernels of a GRU layer over a whole sequence: the fused form of nn/gru.h's step in a loop. Internal; GRUCell
// records them as one op beside their definition.
//
// Inputs, in order: x (B, T, I), initial (B, H), weight_ih (3H, I), weight_hh (3H, H), bias_ih (3H), bias_hh (3H).
#pragma once

#include <tapedeck/core/tape.h>
#include <tapedeck/ops/fused/packed.h>

#include <array>

namespace tapedeck::fused {

enum class TimeOrder { forward, backward };

// y: the states (B, T, H), 0 where a row is past its length. Backward in time, each row begins at its own last step.
// Pads are in no product. Saves the gates and the candidate's part of the hidden product: 4H numbers a token.
FusedValue gru_forward(std::span<const Tensor> inputs, const Packed& packed, TimeOrder order);

// The gradients of the six inputs.
std::array<Tensor, 6> gru_backward(const FusedPass& pass, const Packed& packed, TimeOrder order);

}  // namespace tapedeck::fused
