#include <tapedeck/models/terminal.h>
#include <tapedeck/models/trainer.h>

#include <chrono>
#include <cmath>
#include <optional>

namespace tapedeck {

namespace {

// `where` formats the place of a bad loss.
template <class Where>
BatchGradients gradients_of(std::span<const Batch> batches, const std::function<Var(const Batch&)>& loss,
                            const Where& where) {
  BatchGradients result;
  for (const Batch& batch : batches) result.tokens += batch.tokens;
  const bool several = batches.size() > 1;
  if (several && result.tokens < 1) fail("{} has {} targets in {} batches", where(), result.tokens, batches.size());
  for (const Batch& batch : batches) {
    Tape tape;
    Var value = loss(batch);
    const double mean = value.item();
    if (!std::isfinite(mean)) fail("{} is {}", where(), mean);
    if (!several) return {mean, result.tokens, tape.backward(value)};
    const double share = static_cast<double>(batch.tokens) / static_cast<double>(result.tokens);
    result.loss += share * mean;
    result.grads += tape.backward(value, Tensor::full(value.shape(), share, value.dtype()));
  }
  return result;
}

}  // namespace

BatchGradients accumulate_gradients(std::span<const Batch> batches, const std::function<Var(const Batch&)>& loss) {
  if (batches.empty()) fail("accumulate_gradients: expected at least one batch, got none");
  return gradients_of(batches, loss, [] { return std::string("accumulate_gradients: the loss"); });
}

TrainResult train(OptimizerRef optimizer, const std::function<Batch(int64_t)>& batch,
                  const std::function<Var(const Batch&)>& loss, const std::function<bool(int64_t)>& validate,
                  const TrainOptions& options) {
  if (options.steps < 1 || options.validate_every < 1 || !(options.clip_norm > 0)) {
    fail("train: expected steps >= 1, validate every >= 1 and clip norm > 0, got {}, {} and {}", options.steps,
         options.validate_every, options.clip_norm);
  }
  if (options.first_step < 1 || options.first_step > options.steps || options.accumulate < 1) {
    fail("train: expected a first step in 1..{} and at least one batch a step, got {} and {}", options.steps,
         options.first_step, options.accumulate);
  }
  using Clock = std::chrono::steady_clock;
  std::optional<Progress> progress;
  if (options.progress) progress.emplace(options.steps, options.progress);
  TrainResult result;
  std::vector<Batch> batches;
  for (int64_t step = options.first_step; step <= options.steps; ++step) {
    batches.clear();
    for (int64_t i = 1; i <= options.accumulate; ++i) batches.push_back(batch((step - 1) * options.accumulate + i));
    const auto start = Clock::now();
    BatchGradients done =
        gradients_of(batches, loss, [step] { return fmt::format("train: the loss of step {}", step); });
    try {
      clip_grad_norm(optimizer.parameters(), done.grads, options.clip_norm);
    } catch (const Error& error) {
      fail("train: step {}: {}", step, error.what());
    }
    if (options.lr) optimizer.set_lr(options.lr(step));
    optimizer.step(done.grads);
    if (options.average) options.average->update();
    result.seconds += std::chrono::duration<double>(Clock::now() - start).count();
    result.steps = step;
    result.loss = done.loss;
    result.tokens += done.tokens;
    if (progress) progress->update(step, result.loss, done.tokens);
    if (options.on_step) options.on_step(result);
    if (step % options.validate_every == 0 || step == options.steps) {
      std::optional<WeightAverage::SwappedIn> averages;
      if (options.average) averages.emplace(options.average->swap_in());
      if (validate(step)) break;
    }
  }
  if (progress) progress->finish();
  return result;
}

}  // namespace tapedeck
