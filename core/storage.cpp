#include <tapedeck/core/error.h>
#include <tapedeck/core/storage.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define TAPEDECK_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TAPEDECK_ASAN 1
#endif
#endif
#ifdef TAPEDECK_ASAN
#include <sanitizer/asan_interface.h>
#define TAPEDECK_HIDE(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define TAPEDECK_SHOW(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define TAPEDECK_HIDE(p, n) static_cast<void>(0)
#define TAPEDECK_SHOW(p, n) static_cast<void>(0)
#endif

namespace tapedeck {
namespace {

class Cache;

// Stands in front of every block. While the block is free, `next` chains it.
struct alignas(64) Header {
  Cache* owner;
  Header* next;
  uint32_t size_class;
};
static_assert(sizeof(Header) == 64);

// Four classes per power of two: 64, 80, 96, 112, 128, 160, ... At most a quarter of a block is slack.
constexpr int class_count = 4 * 44;

uint32_t class_of(size_t bytes) {
  if (bytes <= 64) return 0;
  int top = static_cast<int>(std::bit_width(bytes - 1)) - 1;  // 2^top < bytes <= 2^(top + 1)
  size_t quarter = size_t{1} << (top - 2);
  size_t step = (bytes - 1 - (size_t{1} << top)) / quarter;  // 0..3
  return static_cast<uint32_t>(4 * (top - 6) + 1 + static_cast<int>(step));
}

size_t class_bytes(uint32_t size_class) {
  if (size_class == 0) return 64;
  uint32_t top = (size_class - 1) / 4 + 6, step = (size_class - 1) % 4 + 1;
  return (size_t{1} << top) + step * (size_t{1} << (top - 2));
}

std::atomic<int64_t> system_requests{0};

// One thread's free lists. Caches are never destroyed: when a thread ends, its cache waits for the next thread.
class Cache {
 public:
  void* allocate(size_t bytes) {
    uint32_t size_class = class_of(bytes);
    if (size_class >= class_count) fail("allocate: {} bytes asked for", bytes);
    if (!free_[size_class] && returned_.load(std::memory_order_relaxed)) take_returned();
    Header* header = free_[size_class];
    if (header) {
      free_[size_class] = header->next;
    } else {
      header = from_system(size_class);
    }
    add(allocated_, static_cast<int64_t>(class_bytes(size_class)));
    TAPEDECK_SHOW(header + 1, bytes);
    return header + 1;
  }

  void free_here(Header* header) {
    add(allocated_, -static_cast<int64_t>(class_bytes(header->size_class)));
    header->next = free_[header->size_class];
    free_[header->size_class] = header;
  }

  void free_from_elsewhere(Header* header) {
    returned_bytes_.fetch_add(static_cast<int64_t>(class_bytes(header->size_class)), std::memory_order_relaxed);
    header->next = returned_.load(std::memory_order_relaxed);
    while (
        !returned_.compare_exchange_weak(header->next, header, std::memory_order_release, std::memory_order_relaxed)) {}
  }

  void trim() {
    take_returned();
    for (uint32_t size_class = 0; size_class < class_count; ++size_class) {
      while (Header* header = free_[size_class]) {
        free_[size_class] = header->next;
        TAPEDECK_SHOW(header + 1, class_bytes(size_class));
        std::free(header);
      }
    }
  }

  int64_t live() const {
    return allocated_.load(std::memory_order_relaxed) - returned_bytes_.load(std::memory_order_relaxed);
  }

 private:
  // Only the owner writes: a plain load and store, no locked instruction.
  static void add(std::atomic<int64_t>& counter, int64_t amount) {
    counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }

  void take_returned() {
    Header* header = returned_.exchange(nullptr, std::memory_order_acquire);
    while (header) {
      Header* next = header->next;
      header->next = free_[header->size_class];
      free_[header->size_class] = header;
      header = next;
    }
  }

  Header* from_system(uint32_t size_class) {
    system_requests.fetch_add(1, std::memory_order_relaxed);
    size_t bytes = (sizeof(Header) + class_bytes(size_class) + 63) / 64 * 64;  // aligned_alloc wants a multiple
    void* memory = std::aligned_alloc(64, bytes);
    if (!memory) fail("allocate: the system has no {} bytes left", bytes);
    TAPEDECK_HIDE(static_cast<Header*>(memory) + 1, class_bytes(size_class));
    return new (memory) Header{this, nullptr, size_class};
  }

  std::array<Header*, class_count> free_{};
  std::atomic<int64_t> allocated_{0};  // by the owner, less what the owner freed
  std::atomic<Header*> returned_{nullptr};
  std::atomic<int64_t> returned_bytes_{0};
};

// All caches ever made, and those whose thread has ended.
struct Registry {
  std::mutex mutex;
  std::vector<Cache*> all, idle;
};

Registry& registry() {
  static Registry* instance = new Registry;  // outlives every thread
  return *instance;
}

// Trivially initialised, so that the fast path costs one load: no initialisation check.
constinit thread_local Cache* this_cache = nullptr;

// The cache of a thread that has ended, or a new one.
Cache* take_cache() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (r.idle.empty()) return r.all.emplace_back(new Cache);
  Cache* cache = r.idle.back();
  r.idle.pop_back();
  return cache;
}

// Ties a cache to the life of a thread. A tensor freed by a later thread-local destructor counts as freed elsewhere.
struct Lease {
  Cache* cache = this_cache = take_cache();
  ~Lease() {
    this_cache = nullptr;
    Registry& r = registry();
    std::lock_guard lock(r.mutex);
    r.idle.push_back(cache);
  }
};

Cache& attach_cache() {
  thread_local Lease lease;
  // A thread-local destructor that still allocates after the lease has ended takes a cache that nobody gives back.
  if (!this_cache) this_cache = take_cache();
  return *this_cache;
}

}  // namespace

void* cached_allocate(size_t bytes) {
  Cache* cache = this_cache;
  return (cache ? *cache : attach_cache()).allocate(bytes);
}

void cached_free(void* block) noexcept {
  if (!block) return;
  Header* header = static_cast<Header*>(block) - 1;
  TAPEDECK_HIDE(block, class_bytes(header->size_class));
  if (header->owner == this_cache) {
    header->owner->free_here(header);
  } else {
    header->owner->free_from_elsewhere(header);
  }
}

void release_cached_memory() {
  if (this_cache) this_cache->trim();
}

int64_t live_bytes() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  int64_t total = 0;
  for (const Cache* cache : r.all) total += cache->live();
  return total;
}

int64_t system_allocations() { return system_requests.load(std::memory_order_relaxed); }

Storage* Storage::allocate(size_t bytes) {
  void* memory = cached_allocate(sizeof(Storage) + bytes);
  Storage* storage = new (memory) Storage;
#ifdef TAPEDECK_POISON
  std::memset(storage->data(), 0xff, bytes);
#endif
  return storage;
}

void Storage::release() noexcept {
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    this->~Storage();
    cached_free(this);
  }
}

}  // namespace tapedeck
