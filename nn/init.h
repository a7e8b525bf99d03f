// Initial values: PyTorch's defaults. Elements are drawn in row-major order, so the same generator gives the same bits
// in every layout; the f32 values are the f64 ones rounded.
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/core/var.h>

#include <optional>

namespace tapedeck {

// Fills x, f32 or f64, with U(-bound, bound). Throws unless bound is finite and >= 0.
void uniform_(Tensor& x, double bound, Rng& rng);

// Fills x, f32 or f64, with N(0, 1).
void normal_(Tensor& x, Rng& rng);

// A weight or bias of a layer that reads `in` numbers: U(-1/sqrt(in), 1/sqrt(in)); zeros where in = 0. The same as
// He's uniform initialisation with slope sqrt(5) (He et al. 2015).
Parameter linear_init(const Shape& shape, int64_t in, DType dtype, Rng& rng);

// A weight or bias of a recurrent cell: U(-1/sqrt(hidden), 1/sqrt(hidden)).
Parameter rnn_init(const Shape& shape, int64_t hidden, DType dtype, Rng& rng);

// An embedding matrix (count, dim): N(0, 1), with zeros in row `padding_idx`. Throws unless that is in 0..count-1.
Parameter embedding_init(int64_t count, int64_t dim, std::optional<int64_t> padding_idx, DType dtype, Rng& rng);

}  // namespace tapedeck
