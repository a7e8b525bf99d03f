// Layers and losses, forward and backward, at the sizes of a toy and of a real model; f32, one thread.
#include <tapedeck/nn/gru.h>
#include <tapedeck/ops/ops.h>

#include <benchmark/benchmark.h>

#include <vector>

using namespace tapedeck;

namespace {

Tensor normal(const Shape& shape, Rng& rng) {
  Tensor x = Tensor::empty(shape, DType::f32);
  float* p = x.mutable_data<float>();
  for (int64_t i = 0; i < x.numel(); ++i) p[i] = static_cast<float>(rng.normal());
  return x;
}

// The gradients of the input and of all parameters.
void gru(benchmark::State& state, int64_t B, int64_t T, int64_t d) {
  Rng rng(1);
  GRU layer(d, d, rng);
  const Tensor x = normal({B, T, d}, rng), seed = normal({B, T, d}, rng);
  for (auto _ : state) {
    Tape tape;
    benchmark::DoNotOptimize(tape.backward(layer(tape.leaf(x)).output, seed));
  }
}

void cross_entropy_loss(benchmark::State& state, int64_t rows, int64_t classes) {
  Rng rng(1);
  const Tensor x = normal({rows, classes}, rng);
  Tensor targets = Tensor::empty({rows}, DType::i64);
  for (int64_t i = 0; i < rows; ++i) targets.mutable_data<int64_t>()[i] = rng.below(classes);
  for (auto _ : state) {
    Tape tape;
    benchmark::DoNotOptimize(tape.backward(cross_entropy(tape.leaf(x), targets)));
  }
}

BENCHMARK_CAPTURE(gru, toy, 64, 10, 32)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(gru, large, 128, 20, 512)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(cross_entropy_loss, toy, 64, 20)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(cross_entropy_loss, large, 1792, 8000)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
