// The training loop: minibatches, clipping, an optimiser step, validation, progress.
#pragma once

#include <tapedeck/models/text.h>
#include <tapedeck/nn/optim.h>

#include <cstdio>
#include <functional>

namespace tapedeck {

struct TrainResult {
  int64_t steps = 0;   // done
  double loss = 0;     // of the last step, a mean over tokens
  double seconds = 0;  // in training steps, without validation
  int64_t tokens = 0;  // targets trained on
};

struct TrainOptions {
  int64_t steps = 1000;
  double clip_norm = 1;          // of the global gradient norm
  int64_t validate_every = 50;   // steps; also after the last one
  std::FILE* progress = stderr;  // a bar on a terminal, a line for each tenth elsewhere; null: nothing
  // After every step, before its validation, with what was done so far. Its time does not count.
  std::function<void(const TrainResult&)> on_step = {};
};

// Runs steps 1, 2, ...: loss(batch(step)) is differentiated, clipped and stepped on. `validate(step)` may stop the run
// by returning true. Throws on a loss or gradient that is not finite, naming the step; the parameters are then those of
// the step before.
TrainResult train(Adam& optimizer, const std::function<Batch(int64_t step)>& batch,
                  const std::function<Var(const Batch&)>& loss, const std::function<bool(int64_t step)>& validate,
                  const TrainOptions& options = {});

}  // namespace tapedeck
