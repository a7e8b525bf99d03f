// Dropout as an op.
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/core/tape.h>

namespace tapedeck {

// Training: y = x * keep / (1 - p), each element kept with probability 1 - p; p = 1 gives zeros. `rng` is the source of
// the coins and advances; null means evaluation: y = x. So does p = 0, and nothing is drawn. Throws unless 0 <= p <= 1.
// (Srivastava et al. 2014)
Var dropout(Operand x, double p, Rng* rng);

}  // namespace tapedeck
