// Once it has warmed up, a training step asks the system for no memory at all. Every allocating function of the C
// library is counted here, and operator new with them, which calls malloc.
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/models/text.h>
#include <tapedeck/nn/layer_norm.h>
#include <tapedeck/nn/lstm.h>
#include <tapedeck/nn/optim.h>
#include <tapedeck/nn/rnn.h>
#include <tapedeck/ops/ops.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "testing.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TAPEDECK_OWN_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define TAPEDECK_OWN_MALLOC 1
#endif
#endif

// Sanitizers bring a malloc of their own, and other C libraries lack these names.
#if defined(__GLIBC__) && !defined(TAPEDECK_OWN_MALLOC)

#include <execinfo.h>
#include <unistd.h>

#include <cerrno>

namespace {

std::atomic<int64_t> calls{0};

// The first call while this is set is kept, to be shown where a test fails.
std::atomic<bool> watched{false};
void* frames[24];
int frame_count = 0;

void count() {
  calls.fetch_add(1, std::memory_order_relaxed);
  if (watched.load(std::memory_order_relaxed) && watched.exchange(false)) frame_count = backtrace(frames, 24);
}

}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) { return count(), __libc_malloc(bytes); }
void* calloc(size_t n, size_t bytes) { return count(), __libc_calloc(n, bytes); }
void* realloc(void* block, size_t bytes) { return count(), __libc_realloc(block, bytes); }
void* memalign(size_t alignment, size_t bytes) { return count(), __libc_memalign(alignment, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return count(), __libc_memalign(alignment, bytes); }
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  count();
  *block = __libc_memalign(alignment, bytes);
  return *block ? 0 : ENOMEM;
}
}

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

// Allocations while f runs.
template <class F>
int64_t allocations(F f) {
  const int64_t before = calls.load();
  f();
  return calls.load() - before;
}

// True if f allocates nothing; shows where the first allocation comes from otherwise (for addr2line).
template <class F>
bool allocates_nothing(F f) {
  static const int loaded = backtrace(frames, 1);  // its first call allocates
  static_cast<void>(loaded);
  frame_count = 0;
  watched = true;
  const int64_t made = allocations(f);
  watched = false;
  if (made == 0) return true;
  MESSAGE(made << " allocations");
  backtrace_symbols_fd(frames, frame_count, STDERR_FILENO);
  return false;
}

Seq2SeqOptions options_of(AttentionKind kind) { return {.vocabulary = 20, .d_model = 16, .attention = kind}; }

void training_step(const Seq2SeqAttention& model, Adam& optimizer, const Batch& batch) {
  Tape tape;
  Var loss = model.loss(batch);
  Gradients grads = tape.backward(loss);
  clip_grad_norm(model, grads, 1e-3);
  optimizer.step(grads);
}

// Batches whose rows have different lengths, so that masks come in.
std::vector<Batch> batches(int n) {
  Rng rng(2);
  std::vector<Batch> result;
  for (int i = 0; i < n; ++i) result.push_back(ReversalTask{.min_length = 3, .max_length = 8}.batch(8, rng));
  return result;
}

}  // namespace

TEST_SUITE("allocation") {
TEST_CASE("the counter sees what allocates") {
  int* volatile kept = nullptr;  // or the compiler leaves both calls out
  CHECK(allocations([&] {
          kept = new int;
          delete kept;
        }) == 1);
  void* volatile block = nullptr;
  CHECK(allocations([&] {
          block = std::malloc(1);
          std::free(block);
        }) == 1);
  CHECK(allocations([&] {
          block = std::aligned_alloc(64, 64);
          std::free(block);
        }) == 1);
  CHECK(allocations([] { std::string(100, 'x'); }) == 1);
  CHECK(allocations([] { std::thread([] {}).join(); }) > 0);
  CHECK(allocations([] {}) == 0);
}

TEST_CASE("a training step allocates nothing") {
  for (AttentionKind kind : {AttentionKind::additive, AttentionKind::dot}) {
    CAPTURE(static_cast<int>(kind));
    Rng rng(1);
    Seq2SeqAttention model(options_of(kind), rng);
    Adam optimizer(model);
    const std::vector<Batch> data = batches(3);
    auto epoch = [&] {
      for (const Batch& batch : data) training_step(model, optimizer, batch);
    };
    epoch(), epoch();
    CHECK(allocates_nothing(epoch));
  }
}

TEST_CASE("nor does it with clipping by an optimiser's list and with other optimisers") {
  Rng rng(1);
  Seq2SeqAttention model(options_of(AttentionKind::additive), rng);
  AdamW decoupled(model, {.amsgrad = true});
  Sgd plain(model, {.momentum = 0.9});
  const std::vector<Batch> data = batches(1);
  auto step = [&] {
    Tape tape;
    Var loss = model.loss(data[0]);
    Gradients grads = tape.backward(loss);
    clip_grad_norm(decoupled.parameters(), grads, 1e-3);
    clip_grad_norm(model, grads, 1e-3, NormKind::inf);
    decoupled.step(grads);
    plain.step(grads);
  };
  step(), step();
  CHECK(allocates_nothing(step));
}

TEST_CASE("nor do the other layers") {
  Rng rng(1);
  LSTM lstm(6, 5, rng, {.layers = 2, .bidirectional = true, .dropout = 0.2});
  RNN rnn(6, 5, rng);
  LayerNorm norm(10);
  AdditiveAttention attention(5, 10, 7, rng);
  const Tensor x = normal({3, 4, 6}, DType::f32, 1);
  const std::vector<int64_t> lengths{2, 4, 3};
  auto step = [&] {
    Tape tape;
    Var memory = norm(lstm(x, lengths, &rng).output);
    AttentionResult attended = attention(rnn(x).output, attention.project(memory));  // all steps: a checkpoint
    tape.backward(mean(attended.context) + cross_entropy(attended.weights, Tensor::zeros({3, 4}, DType::i64)));
  };
  step(), step();
  CHECK(allocates_nothing(step));
}

TEST_CASE("nor do threads that hand their gradients over") {
  constexpr int workers = 2, rounds = 8, warm_up = 4;
  Rng rng(1);
  Seq2SeqAttention model(options_of(AttentionKind::additive), rng);
  Adam optimizer(model);
  const std::vector<Batch> data = batches(workers);
  std::vector<Gradients> shards(workers);
  std::barrier begin(workers + 1), end(workers + 1);
  auto work = [&](size_t worker) {
    for (int round = 0; round < rounds; ++round) {
      begin.arrive_and_wait();
      Tape tape;
      shards[worker] = tape.backward(model.loss(data[worker]));
      end.arrive_and_wait();
    }
    begin.arrive_and_wait();  // a thread that ends allocates
  };
  auto round = [&] {
    begin.arrive_and_wait();
    end.arrive_and_wait();
    Gradients sum = std::move(shards[0]);
    sum += shards[1];
    shards[1] = Gradients();
    clip_grad_norm(model, sum, 1e-3);
    optimizer.step(sum);
  };
  std::vector<std::thread> threads;
  for (size_t worker = 0; worker < workers; ++worker) threads.emplace_back(work, worker);
  for (int i = 0; i < warm_up; ++i) round();
  const bool none = allocates_nothing([&] {
    for (int i = warm_up; i < rounds; ++i) round();
  });
  begin.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  CHECK(none);
}
}

#endif
