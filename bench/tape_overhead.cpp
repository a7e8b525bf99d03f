// What the tape itself costs: time per op for recording, sweeping and dropping a chain of a thousand.
#include <tapedeck/ops/ops.h>

#include <benchmark/benchmark.h>

using namespace tapedeck;

namespace {

constexpr int64_t chain = 1000;

// No arithmetic: the value is passed on.
Var empty_op(Operand x) {
  return record("empty", x.value(), Input{x, [](const Var& g) { return g; }});
}

void per_op(benchmark::State& state) {
  state.counters["per_op"] = benchmark::Counter(static_cast<double>(state.iterations() * chain),
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void empty_ops(benchmark::State& state, TapeOptions options) {
  const Tensor x = Tensor::ones({4});
  for (auto _ : state) {
    Tape tape(options);
    Var y = tape.leaf(x);
    for (int64_t i = 0; i < chain; ++i) y = empty_op(y);
    benchmark::DoNotOptimize(tape.backward(y, x));
  }
  per_op(state);
}

// The same inside a module call and a scope: the user's line and the scope are looked up at each op.
void empty_ops_in_scope(benchmark::State& state) {
  const Tensor x = Tensor::ones({4});
  for (auto _ : state) {
    Tape tape;
    Var y = tape.leaf(x);
    for (int64_t i = 0; i < chain; ++i) {
      UserSite here{Operand(y)};
      Scope scope("step", i);
      y = empty_op(y);
    }
    benchmark::DoNotOptimize(tape.backward(y, x));
  }
  per_op(state);
}

void small_adds(benchmark::State& state, TapeOptions options, bool differentiate) {
  const Tensor x = Tensor::ones({4}), one = Tensor::ones({4});
  for (auto _ : state) {
    Tape tape(options);
    Var y = tape.leaf(x);
    for (int64_t i = 0; i < chain; ++i) y = y + one;
    if (differentiate) benchmark::DoNotOptimize(tape.backward(y, x));
  }
  per_op(state);
}

void small_adds_unrecorded(benchmark::State& state) {
  const Tensor x = Tensor::ones({4}), one = Tensor::ones({4});
  for (auto _ : state) {
    Var y = x;
    for (int64_t i = 0; i < chain; ++i) y = y + one;
    benchmark::DoNotOptimize(y);
  }
  per_op(state);
}

BENCHMARK_CAPTURE(empty_ops, plain, TapeOptions{});
BENCHMARK_CAPTURE(empty_ops, trace, TapeOptions{.trace = Trace::on});
BENCHMARK_CAPTURE(empty_ops, profile, TapeOptions{.profile = Profile::on});
BENCHMARK_CAPTURE(empty_ops, anomaly, TapeOptions{.anomaly = Anomaly::on});
BENCHMARK(empty_ops_in_scope);
BENCHMARK(small_adds_unrecorded);
BENCHMARK_CAPTURE(small_adds, record, TapeOptions{}, false);
BENCHMARK_CAPTURE(small_adds, record_backward, TapeOptions{}, true);
BENCHMARK_CAPTURE(small_adds, record_backward_trace, TapeOptions{.trace = Trace::on}, true);

}  // namespace

BENCHMARK_MAIN();
