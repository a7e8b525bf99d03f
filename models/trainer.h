// The training loop: minibatches, clipping, an optimiser step, validation, progress.
#pragma once

#include <tapedeck/models/text.h>
#include <tapedeck/nn/optim.h>
#include <tapedeck/nn/schedule.h>

#include <cstdio>
#include <functional>
#include <span>

namespace tapedeck {

// What was done.
struct TrainResult {
  int64_t steps = 0;   // done
  double loss = 0;     // of the last step, a mean over tokens
  double seconds = 0;  // in training steps, without validation
  int64_t tokens = 0;  // targets trained on
};

// Settings of train.
struct TrainOptions {
  int64_t steps = 1000;          // of the optimiser
  double clip_norm = 1;          // of the global gradient norm
  int64_t validate_every = 50;   // steps; also after the last one
  std::FILE* progress = stderr;  // a bar on a terminal, a line for each tenth elsewhere; null: nothing
  // After every step, before its validation, with what was done so far. Its time does not count.
  std::function<void(const TrainResult&)> on_step = {};

  int64_t first_step = 1;                       // above 1: goes on with a run that has done the steps before
  int64_t accumulate = 1;                       // batches a step: step s takes (s - 1) accumulate + 1 ... s accumulate
  std::function<double(int64_t step)> lr = {};  // learning rate of each step (schedule.h); null: the optimiser's own
  WeightAverage* average = nullptr;             // updated after every step, and what validation sees
};

// What accumulate_gradients gives.
struct BatchGradients {
  double loss = 0;     // mean over the targets of all batches
  int64_t tokens = 0;  // their number
  Gradients grads;     // of `loss`
};

// What one big batch of all the rows would give, a batch at a time: loss(b) is a mean over the n_b targets of batch b,
//   sum_b n_b loss(b) / sum_b n_b   and its gradients.
// Throws on no batch, on several without a target, and on a loss that is not finite.
BatchGradients accumulate_gradients(std::span<const Batch> batches, const std::function<Var(const Batch&)>& loss);

// Runs steps first_step ... steps: loss(batch(step)) is differentiated, clipped and stepped on, with any optimiser.
// `validate(step)` may stop the run by returning true. Throws on a loss or gradient that is not finite, naming the
// step; the parameters are then those of the step before.
TrainResult train(OptimizerRef optimizer, const std::function<Batch(int64_t step)>& batch,
                  const std::function<Var(const Batch&)>& loss, const std::function<bool(int64_t step)>& validate,
                  const TrainOptions& options = {});

}  // namespace tapedeck
