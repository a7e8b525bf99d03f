// Matrix products of the sizes that models here ask for: our own kernel against CBLAS. Sizes are rows, columns, inner
// axis; "weight" means that the right side is a transposed weight, x W^T.
#include <tapedeck/core/small_product.h>

#include <benchmark/benchmark.h>
#include <cblas.h>
#include <fmt/format.h>

#include <string>
#include <vector>

using namespace tapedeck;

namespace {

struct Sizes {
  const char* name;
  int64_t m, n, k;
  bool weight;
};

constexpr Sizes sizes[] = {
    {"toy, gates of a step, weight", 64, 96, 32, true},
    {"toy, gates of all steps, weight", 640, 96, 32, true},
    {"toy, gradient of x", 640, 32, 96, false},
    {"toy, output, weight", 640, 20, 96, true},
    {"one query, keys", 1, 10, 32, true},
    {"one row of weights, values", 1, 32, 10, false},
    {"large, gates of a step, weight", 128, 1536, 512, true},
    {"one row, output, weight", 1, 8000, 1536, true},
    {"5 rows, output, weight", 5, 8000, 1536, true},
    {"8 rows, gates, weight", 8, 1536, 512, true},
    {"square 64", 64, 64, 64, false},
    {"square 256", 256, 256, 256, false},
};

void own(benchmark::State& state, Sizes s) {
  std::vector<float> a(static_cast<size_t>(s.m * s.k), 1), b(static_cast<size_t>(s.k * s.n), .5f),
      c(static_cast<size_t>(s.m * s.n));
  const blas::Matrix<float> left{a.data(), s.m, s.k, s.k, 1};
  const blas::Matrix<float> right =
      s.weight ? blas::Matrix<float>{b.data(), s.k, s.n, 1, s.k} : blas::Matrix<float>{b.data(), s.k, s.n, s.n, 1};
  for (auto _ : state) {
    blas::small_product<float>(left, right, 0, c.data(), s.n);
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(s.m * s.n * s.k), benchmark::Counter::kIsIterationInvariantRate);
}

void cblas(benchmark::State& state, Sizes s) {
  blas::description();  // wakes the library
  std::vector<float> a(static_cast<size_t>(s.m * s.k), 1), b(static_cast<size_t>(s.k * s.n), .5f),
      c(static_cast<size_t>(s.m * s.n));
  const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
  for (auto _ : state) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, s.weight ? CblasTrans : CblasNoTrans, m, n, k, 1, a.data(), k, b.data(),
                s.weight ? k : n, 0, c.data(), n);
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(s.m * s.n * s.k), benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

int main(int argc, char** argv) {
  for (const Sizes& s : sizes) {
    const std::string size = fmt::format("{} x {} x {} ({})", s.m, s.n, s.k, s.name);
    benchmark::RegisterBenchmark(("own " + size).c_str(), own, s);
    benchmark::RegisterBenchmark(("cblas " + size).c_str(), cblas, s);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
