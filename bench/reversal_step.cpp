// One training step of the reversal task: forward, backward, clipping, Adam. B 64, d 32, lengths 5-10, V 20, one
// thread.
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/nn/optim.h>

#include <benchmark/benchmark.h>

#include <vector>

using namespace tapedeck;

namespace {

void step(benchmark::State& state, AttentionKind kind) {
  ReversalTask task;
  Rng rng(1);
  Seq2SeqAttention model({.vocabulary = task.vocabulary(), .attention = kind}, rng);
  Adam optimizer(model, {.lr = 3e-3});
  std::vector<Batch> batches;
  for (int i = 0; i < 50; ++i) batches.push_back(task.batch(64, rng));
  size_t next = 0;
  for (auto _ : state) {
    Tape tape;
    Gradients grads = tape.backward(model.loss(batches[next++ % batches.size()]));
    clip_grad_norm(optimizer.parameters(), grads, 1.0);
    optimizer.step(grads);
  }
}

BENCHMARK_CAPTURE(step, additive, AttentionKind::additive)->Unit(benchmark::kMillisecond)->MinTime(1);
BENCHMARK_CAPTURE(step, dot, AttentionKind::dot)->Unit(benchmark::kMillisecond)->MinTime(1);

}  // namespace

BENCHMARK_MAIN();
