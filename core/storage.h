// Memory: a caching allocator with per-thread free lists, and the counted buffer behind tensors.
//
// In steady state a training step asks the system for nothing: a freed block goes to the free list of the thread that
// allocated it (also when another thread frees it), and the next request of its size class takes it from there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <vector>

namespace tapedeck {

// 64-byte aligned memory for `bytes` bytes. Throws Error when the system has none.
void* cached_allocate(size_t bytes);

// Takes such a block back, on any thread; null does nothing.
void cached_free(void* block) noexcept;

// Gives the calling thread's unused blocks back to the system.
void release_cached_memory();

// Bytes handed out and not yet freed, over all threads, rounded up to size classes.
int64_t live_bytes();

// Requests that had to go to the system, over all threads, since the program started.
int64_t system_allocations();

// The same memory for standard containers.
template <class T>
struct CachingAllocator {
  using value_type = T;  // what standard containers ask an allocator for, as are the members below
  CachingAllocator() = default;
  template <class U>
  CachingAllocator(const CachingAllocator<U>&) {}
  // Room for n elements; any such allocator frees it.
  // NOLINTNEXTLINE(bugprone-sizeof-expression): T may be a pointer
  T* allocate(size_t n) { return static_cast<T*>(cached_allocate(n * sizeof(T))); }
  void deallocate(T* block, size_t) noexcept { cached_free(block); }
  bool operator==(const CachingAllocator&) const = default;
};

// A list of what a training step needs anew each time.
template <class T>
using CachedVector = std::vector<T, CachingAllocator<T>>;

// A counted buffer. The version counts in-place writes, so that whoever saved a view can tell that it changed.
class Storage {
 public:
  // A buffer with one owner and undefined contents (NaN bytes where built with TAPEDECK_POISON).
  static Storage* allocate(size_t bytes);

  // One owner more, one less: the last one frees the buffer.
  void retain() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

  bool shared() const { return refs_.load(std::memory_order_acquire) > 1; }  // it has more than one owner

  void* data() { return this + 1; }                                              // the bytes, 64-byte aligned
  uint32_t version() const { return version_.load(std::memory_order_relaxed); }  // in-place writes so far
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }      // notes one more

 private:
  Storage() = default;
  std::atomic<uint32_t> refs_{1};
  std::atomic<uint32_t> version_{0};
  [[maybe_unused]] char padding_[56];  // the data behind the header starts on a cache line
};
static_assert(sizeof(Storage) == 64);

}  // namespace tapedeck
