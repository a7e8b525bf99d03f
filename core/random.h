// Random numbers: the same seed gives the same bits with every compiler, at every optimisation level, on any number of
// threads.
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is a keyed
// bijection of a counter: there is no state to warm up, a draw is block(counter), and streams are split off by name
// instead of by luck. Wrong arguments throw Error; nothing is drawn then.
//
//   Rng rng(42);
//   Rng dropout = rng.split("dropout").split(step);
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tapedeck {

// The bijection itself: ten rounds over a 128-bit counter under a 64-bit key, least significant word first.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// A stream of random numbers.
class Rng {
 public:
  // All there is to a generator: its stream (key and stream) and the number of 64-bit words drawn from it.
  struct State {
    uint64_t key = 0;       // from the seed
    uint64_t stream = 0;    // from the splits
    uint64_t position = 0;  // words drawn
    bool operator==(const State&) const = default;
  };

  explicit Rng(uint64_t seed);

  // A generator of its own, at its start. It depends on this one's stream and on the name or number, not on how much
  // has been drawn here, and this one is not advanced: the same split twice gives the same stream twice. split("3") is
  // not split(3).
  Rng split(std::string_view name) const;
  Rng split(uint64_t number) const;

  // Each draws one word; below() rarely more.
  uint64_t next();                          // 64 random bits
  double uniform();                         // k 2^-53, k = 0 ... 2^53 - 1: in [0, 1)
  double uniform(double low, double high);  // in [low, high), or low if they are equal; finite, low <= high
  double normal();                          // mean 0, variance 1, |x| < 8.3; by inversion, relative error < 1e-15
  int64_t below(int64_t n);                 // 0 ... n - 1, all equally likely; n >= 1
  bool bernoulli(double p);                 // true with probability p, 0 <= p <= 1

  // 0 ... n - 1 in random order, all n! equally likely; n >= 0; n - 1 calls of below().
  std::vector<int64_t> permutation(int64_t n);

  // Puts the elements into random order (Fisher-Yates, from the end).
  template <class T>
  void shuffle(std::span<T> x) {
    for (size_t i = x.size(); i > 1; --i) {
      using std::swap;
      swap(x[i - 1], x[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    }
  }
  template <class T>
  void shuffle(std::vector<T>& x) {
    shuffle(std::span<T>(x));
  }

  // Saves a generator, and goes on from there.
  State state() const { return state_; }
  static Rng from_state(const State& state);

 private:
  explicit Rng(const State& state);

  State state_;
  uint64_t spare_ = 0;  // the second word of the current block, when position is odd
};

}  // namespace tapedeck
