// Normalisation.
#pragma once

#include <tapedeck/core/tape.h>

namespace tapedeck {

// y = (x - mean) / sqrt(variance + eps) * weight + bias, mean and biased variance over the last axis (Ba et al. 2016,
// arXiv:1607.06450). x (..., D), weight (D), bias (D) or none, all of one floating dtype; eps >= 0.
Var layer_norm(Operand x, Operand weight, Operand bias, double eps = 1e-5);
Var layer_norm(Operand x, Operand weight, double eps = 1e-5);

}  // namespace tapedeck
