#include <tapedeck/models/terminal.h>
#include <tapedeck/models/trainer.h>

#include <chrono>
#include <cmath>
#include <optional>

namespace tapedeck {

TrainResult train(Adam& optimizer, const std::function<Batch(int64_t)>& batch,
                  const std::function<Var(const Batch&)>& loss, const std::function<bool(int64_t)>& validate,
                  const TrainOptions& options) {
  if (options.steps < 1 || options.validate_every < 1 || !(options.clip_norm > 0)) {
    fail("train: expected steps >= 1, validate every >= 1 and clip norm > 0, got {}, {} and {}", options.steps,
         options.validate_every, options.clip_norm);
  }
  using Clock = std::chrono::steady_clock;
  std::optional<Progress> progress;
  if (options.progress) progress.emplace(options.steps, options.progress);
  TrainResult result;
  for (int64_t step = 1; step <= options.steps; ++step) {
    const Batch examples = batch(step);
    const auto start = Clock::now();
    {
      Tape tape;
      Var value = loss(examples);
      result.loss = value.item();
      if (!std::isfinite(result.loss)) fail("train: the loss of step {} is {}", step, result.loss);
      Gradients grads = tape.backward(value);
      try {
        clip_grad_norm(optimizer.parameters(), grads, options.clip_norm);
      } catch (const Error& error) {
        fail("train: step {}: {}", step, error.what());
      }
      optimizer.step(grads);
    }
    result.seconds += std::chrono::duration<double>(Clock::now() - start).count();
    result.steps = step;
    result.tokens += examples.tokens;
    if (progress) progress->update(step, result.loss, examples.tokens);
    if (options.on_step) options.on_step(result);
    if ((step % options.validate_every == 0 || step == options.steps) && validate(step)) break;
  }
  if (progress) progress->finish();
  return result;
}

}  // namespace tapedeck
