// The caching allocator: alignment, size classes, reuse, and blocks that change threads.
#include <tapedeck/core/storage.h>
#include <tapedeck/core/tensor.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

// Runs f on a thread of its own, to the end of that thread.
template <class F>
void on_a_thread(F f) {
  std::thread thread(f);
  thread.join();
}

int64_t bytes_of_block(size_t bytes) {
  int64_t before = live_bytes();
  void* block = cached_allocate(bytes);
  int64_t taken = live_bytes() - before;
  cached_free(block);
  return taken;
}

struct KeptByThread {
  Tensor tensor;
  bool allocates_at_the_end = false;
  ~KeptByThread() {
    if (allocates_at_the_end) tensor = Tensor::zeros({100});
  }
};
thread_local KeptByThread kept_by_thread;

}  // namespace

TEST_SUITE("storage") {
TEST_CASE("blocks are aligned to 64 bytes") {
  std::vector<void*> blocks;
  for (size_t bytes : {0u, 1u, 7u, 63u, 64u, 65u, 80u, 81u, 1000u, 4097u, 1u << 20}) {
    blocks.push_back(cached_allocate(bytes));
    CHECK(reinterpret_cast<uintptr_t>(blocks.back()) % 64 == 0);
    std::memset(blocks.back(), 0x5a, bytes);  // all of it is ours
  }
  for (void* block : blocks) cached_free(block);
  for (int64_t n : {0, 1, 5, 17, 1000}) {
    CHECK(reinterpret_cast<uintptr_t>(Tensor::empty({n}, DType::f32).data<float>()) % 64 == 0);
    CHECK(reinterpret_cast<uintptr_t>(Tensor::empty({n}, DType::boolean).data<bool>()) % 64 == 0);
  }
  cached_free(nullptr);
}

TEST_CASE("a size class wastes a quarter at most") {
  int64_t before = 0;
  for (size_t bytes = 1; bytes < 5000; ++bytes) {
    int64_t taken = bytes_of_block(bytes);
    bool fits =
        taken >= static_cast<int64_t>(bytes) && 4 * taken <= std::max<int64_t>(256, 5 * static_cast<int64_t>(bytes));
    if (!fits || taken < before) FAIL(bytes << " bytes take " << taken);
    before = taken;
  }
  for (size_t bytes = 4096; bytes <= size_t{1} << 24; bytes = bytes * 9 / 8 + 1) {
    int64_t taken = bytes_of_block(bytes);
    CHECK(taken >= static_cast<int64_t>(bytes));
    CHECK(4 * taken <= 5 * static_cast<int64_t>(bytes));
  }
  CHECK(bytes_of_block(64) == 64);
  CHECK(bytes_of_block(65) == 80);
  CHECK(bytes_of_block(128) == 128);
  CHECK(bytes_of_block(129) == 160);
}

TEST_CASE("impossible requests throw and leave the counters alone") {
  int64_t bytes = live_bytes(), requests = system_allocations();
  CHECK(says(error_of([] { cached_allocate(std::numeric_limits<size_t>::max()); }), {"allocate", "bytes"}));
  CHECK(says(error_of([] { cached_allocate(size_t{1} << 60); }), {"allocate", "bytes"}));
  CHECK(live_bytes() == bytes);
  CHECK(system_allocations() == requests);
}

TEST_CASE("a freed block is the next of its class") {
  void* first = cached_allocate(3000);
  cached_free(first);
  int64_t requests = system_allocations();
  for (size_t bytes : {3000u, 2900u, 3072u}) {  // one class
    void* again = cached_allocate(bytes);
    CHECK(again == first);
    cached_free(again);
  }
  CHECK(system_allocations() == requests);
  void* a = cached_allocate(3000);
  void* b = cached_allocate(3000);  // two at once need two blocks
  CHECK(a != b);
  cached_free(a);
  cached_free(b);
}

TEST_CASE("work that repeats asks the system for nothing") {
  Tensor x = normal({20, 30}, DType::f32, 1);
  auto work = [&] {
    Tensor y = x.clone().add_(1).mul_(x);
    Tensor z = y.transpose().contiguous().reshape({-1}).to(DType::f64);
    std::vector<double, CachingAllocator<double>> list;
    for (int i = 0; i < 100; ++i) list.push_back(i);
    return z.slice(0, 0, 5).clone();
  };
  work();
  int64_t requests = system_allocations(), bytes = live_bytes();
  for (int i = 0; i < 100; ++i) work();
  CHECK(system_allocations() == requests);
  CHECK(live_bytes() == bytes);
}

TEST_CASE("live bytes come back when everything is gone") {
  int64_t before = live_bytes();
  {
    Tensor x = Tensor::zeros({1000});
    CHECK(live_bytes() >= before + 4000);
    int64_t with_data = live_bytes();
    Tensor view = x.transpose(0, 0), shared = x;
    CHECK(live_bytes() < with_data + 1000);  // a view costs a header, not the data
    x = Tensor();
    CHECK(live_bytes() >= before + 4000);  // the view still holds them
  }
  CHECK(live_bytes() == before);
}

TEST_CASE("released memory is asked for again") {
  void* block = cached_allocate(5000);
  int64_t live = live_bytes();
  release_cached_memory();  // does not touch what is in use
  std::memset(block, 1, 5000);
  CHECK(live_bytes() == live);
  cached_free(block);
  release_cached_memory();
  int64_t requests = system_allocations();
  cached_free(cached_allocate(5000));
  CHECK(system_allocations() == requests + 1);
  cached_free(cached_allocate(5000));
  CHECK(system_allocations() == requests + 1);
}

TEST_CASE("a block freed on another thread goes back to its owner") {
  release_cached_memory();
  int64_t before = live_bytes();
  void* block = cached_allocate(7000);
  on_a_thread([&] {
    cached_free(block);
    CHECK(live_bytes() == before);
    void* own = cached_allocate(7000);
    CHECK(own != block);
    cached_free(own);
  });
  int64_t requests = system_allocations();
  void* again = cached_allocate(7000);
  CHECK(again == block);
  CHECK(system_allocations() == requests);
  cached_free(again);
  CHECK(live_bytes() == before);
  // The same for many, released before they were ever taken back.
  std::vector<void*> blocks;
  for (int i = 0; i < 50; ++i) blocks.push_back(cached_allocate(9000));
  on_a_thread([&] {
    for (void* b : blocks) cached_free(b);
  });
  CHECK(live_bytes() == before);
  release_cached_memory();
  requests = system_allocations();
  cached_free(cached_allocate(9000));
  CHECK(system_allocations() == requests + 1);
}

TEST_CASE("threads that end leave their cache to the next one") {
  void* first = nullptr;
  on_a_thread([&] {
    first = cached_allocate(11000);
    cached_free(first);
  });
  int64_t requests = system_allocations();
  for (int i = 0; i < 20; ++i) {
    on_a_thread([&] {
      void* block = cached_allocate(11000);
      CHECK(block == first);
      cached_free(block);
    });
  }
  CHECK(system_allocations() == requests);
}

TEST_CASE("a tensor may outlive the thread that made it") {
  int64_t before = live_bytes();
  {
    Tensor x;
    on_a_thread([&] { x = Tensor::full({3000}, 2, DType::f64); });
    CHECK(x.at({2999}) == 2);
    CHECK(live_bytes() >= before + 24000);
    Tensor y = x.clone();
    on_a_thread([moved = std::move(x), y] {
      CHECK(moved.at({0}) == 2);
      CHECK(y.at({0}) == 2);
    });
  }
  CHECK(live_bytes() == before);
}

TEST_CASE("tensors freed while a thread ends are counted") {
  int64_t before = live_bytes();
  on_a_thread([] {
    kept_by_thread.allocates_at_the_end = false;  // older than the thread's cache, so it is destroyed later
    kept_by_thread.tensor = Tensor::zeros({500});
  });
  CHECK(live_bytes() == before);
  on_a_thread([] {
    kept_by_thread.allocates_at_the_end = true;
    kept_by_thread.tensor = Tensor::zeros({500});
  });
  CHECK(live_bytes() == before);
}

TEST_CASE("four threads hand blocks around") {
  struct Parcel {
    unsigned char* block;
    size_t bytes;
    unsigned char mark;
  };
  int64_t before = live_bytes();
  std::mutex mutex;
  std::vector<Parcel> pool;
  std::atomic<int> damaged{0};
  auto work = [&](unsigned thread) {
    Rng rng(thread);
    for (int i = 0; i < 5000; ++i) {
      Parcel mine{nullptr, static_cast<size_t>(rng.below(4000) + 1), static_cast<unsigned char>(rng.below(256))};
      mine.block = static_cast<unsigned char*>(cached_allocate(mine.bytes));
      std::memset(mine.block, mine.mark, mine.bytes);
      Parcel other{};
      {
        std::lock_guard lock(mutex);
        pool.push_back(mine);
        if (pool.size() > 50) {
          std::swap(pool[static_cast<size_t>(rng.below(static_cast<int64_t>(pool.size())))], pool.back());
          other = pool.back();
          pool.pop_back();
        }
      }
      if (!other.block) continue;
      for (size_t k = 0; k < other.bytes; ++k) damaged += other.block[k] != other.mark;
      cached_free(other.block);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  CHECK(damaged == 0);
  for (const Parcel& parcel : pool) cached_free(parcel.block);
  CHECK(live_bytes() == before);
}

TEST_CASE("a producer whose blocks die elsewhere does not grow") {
  // Without the way home, every round would take new memory here and pile up free blocks on the other thread.
  std::mutex mutex;
  std::condition_variable turn;
  std::vector<Tensor> mail;
  bool done = false;
  std::thread consumer([&] {
    std::unique_lock lock(mutex);
    while (!done) {
      turn.wait(lock, [&] { return done || !mail.empty(); });
      mail.clear();
      turn.notify_all();
    }
  });
  int64_t requests = 0;
  for (int round = 0; round < 200; ++round) {
    std::unique_lock lock(mutex);
    for (int i = 0; i < 10; ++i) mail.push_back(Tensor::zeros({6000}));
    turn.notify_all();
    turn.wait(lock, [&] { return mail.empty(); });
    if (round == 1) requests = system_allocations();
  }
  CHECK(system_allocations() == requests);
  {
    std::lock_guard lock(mutex);
    done = true;
  }
  turn.notify_all();
  consumer.join();
}

TEST_CASE("storage counts owners and writes") {
  int64_t before = live_bytes();
  Storage* storage = Storage::allocate(100);
  CHECK_FALSE(storage->shared());
  CHECK(storage->version() == 0);
  CHECK(reinterpret_cast<uintptr_t>(storage->data()) % 64 == 0);
  storage->retain();
  CHECK(storage->shared());
  storage->bump_version();
  CHECK(storage->version() == 1);
  storage->release();
  CHECK_FALSE(storage->shared());
  storage->release();
  CHECK(live_bytes() == before);
}
}
