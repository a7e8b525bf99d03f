// The generator: published vectors, golden values, distributions, streams, state.
#include <tapedeck/core/error.h>
#include <tapedeck/core/random.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

using namespace tapedeck;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity(), not_a_number = std::numeric_limits<double>::quiet_NaN();

// The chi-square statistic of counts that should be equal.
double chi_square(const std::vector<int64_t>& counts, double expected) {
  double sum = 0;
  for (int64_t count : counts)
    sum += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) / expected;
  return sum;
}

// The correlation coefficient of n uniform pairs.
double correlation(Rng a, Rng b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += (a.uniform() - 0.5) * (b.uniform() - 0.5);
  return 12 * sum / n;
}

}  // namespace

TEST_SUITE("random") {
TEST_CASE("philox gives the published vectors") {  // Random123's kat_vectors
  using Block = std::array<uint32_t, 4>;
  constexpr uint32_t ones = 0xffffffff;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({ones, ones, ones, ones}, {ones, ones}) == Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  Rng rng(0);
  CHECK(rng.next() == 0xe169c58d6627e8d5);
  CHECK(rng.next() == 0x9b00dbd8bc57ac4c);
}

// The same bits from every compiler, level and machine: change these only together with the generator's version.
TEST_CASE("golden values of seed 42") {
  Rng uniform(42), scaled(42), normal(42), bounded(42);
  for (double x : {0x1.dfd524ee73abcp-2, 0x1.5d0acf5c4afd4p-2, 0x1.4ee9b3f7f36c8p-2, 0x1.d1381bee0e3d6p-2,
                   0x1.510ebb97a6d8p-1, 0x1.8c134ab3349adp-1, 0x1.575e1b57758ep-1, 0x1.84399fde58794p-2}) {
    CHECK(uniform.uniform() == x);
  }
  for (double x : {0x1.7f5493b9ceaf2p-1, -0x1.17a9851da816p-2, -0x1.88b26040649cp-2, 0x1.44e06fb838f58p-1}) {
    CHECK(scaled.uniform(-3, 5) == x);
  }
  for (double x : {-0x1.42dc65ce0ff81p-4, -0x1.a3f4a5b3e5025p-2, -0x1.caca1d20ed483p-2, -0x1.d61412d6e26acp-4,
                   0x1.a1a8bc2f2eb53p-2, 0x1.805c509d131d3p-1, 0x1.c447f0807783ep-2, -0x1.3b29da9b3fb77p-2}) {
    CHECK(normal.normal() == x);
  }
  for (int64_t x : {468, 340, 327, 454, 658, 773, 670, 379}) CHECK(bounded.below(1000) == x);
  CHECK(Rng(42).permutation(10) == std::vector<int64_t>{0, 9, 1, 7, 5, 6, 8, 2, 3, 4});
  CHECK(Rng(42).split("dropout").next() == 0xe51ef3bbdec0fb19);
  CHECK(Rng(42).split("layer.10.weight").next() == 0x53063ed63bc88099);
  CHECK(Rng(42).split(7).next() == 0x173e7ce2ed329e0a);
}

// All paths of the arithmetic, a hundred thousand draws in one number.
TEST_CASE("golden hash of a long run") {
  Rng rng(1);
  uint64_t hash = 0;
  for (int i = 0; i < 50'000; ++i) {
    hash = hash * 0x9e3779b97f4a7c15 + std::bit_cast<uint64_t>(rng.normal());
    hash = hash * 31 + std::bit_cast<uint64_t>(rng.uniform(-1, 0.3));
  }
  CHECK(hash == 0xc0e8a7d56f3b55b5);
}

TEST_CASE("uniform is uniform") {
  constexpr int n = 100'000, cells = 100;
  Rng rng(7);
  std::vector<int64_t> counts(cells);
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    double x = rng.uniform();
    REQUIRE(x >= 0);
    REQUIRE(x < 1);
    ++counts[static_cast<size_t>(x * cells)];
    sum += x;
    squares += x * x;
  }
  CHECK(std::fabs(sum / n - 0.5) < 4 * std::sqrt(1.0 / 12 / n));
  CHECK(std::fabs(squares / n - 1.0 / 3) < 4 * std::sqrt(4.0 / 45 / n));
  CHECK(chi_square(counts, n / cells) < 160);  // 99 degrees of freedom: beyond this with probability 1e-4
  CHECK(chi_square(counts, n / cells) > 50);
}

TEST_CASE("uniform between bounds stays between them") {
  Rng rng(8);
  double next_to_one = std::nextafter(1.0, 2.0);
  double largest = std::numeric_limits<double>::max();
  for (int i = 0; i < 1000; ++i) {
    CHECK(rng.uniform(1, next_to_one) == 1);
    CHECK(rng.uniform(0.3, 0.3) == 0.3);
    double x = rng.uniform(-largest, largest);
    CHECK((x >= -largest && x < largest));
    double y = rng.uniform(-2, 3);
    CHECK((y >= -2 && y < 3));
  }
}

TEST_CASE("normal has the normal moments and quantiles") {
  constexpr int n = 200'000, cells = 50;
  Rng rng(9);
  double moment[5] = {};
  std::vector<int64_t> counts(cells);
  for (int i = 0; i < n; ++i) {
    double x = rng.normal();
    for (int k = 1; k <= 4; ++k) moment[k] += std::pow(x, k) / n;
    ++counts[static_cast<size_t>(0.5 * std::erfc(-x * std::sqrt(0.5)) * cells)];
  }
  double sigma = 1 / std::sqrt(static_cast<double>(n));
  CHECK(std::fabs(moment[1]) < 4 * sigma);
  CHECK(std::fabs(moment[2] - 1) < 4 * std::sqrt(2.0) * sigma);
  CHECK(std::fabs(moment[3]) < 4 * std::sqrt(15.0) * sigma);
  CHECK(std::fabs(moment[4] - 3) < 4 * std::sqrt(96.0) * sigma);
  CHECK(chi_square(counts, n / cells) < 94);  // 49 degrees of freedom: 1e-4
}

TEST_CASE("normal inverts the distribution function") {
  Rng words(10), rng(10);
  for (int i = 0; i < 20'000; ++i) {
    long double u = (static_cast<long double>(words.next() >> 12) + 0.5L) / 0x1p52L;
    long double x = static_cast<long double>(rng.normal());
    long double tail = std::min(u, 1 - u);
    long double back = 0.5L * std::erfc(std::fabs(x) * std::sqrt(0.5L));
    long double density = std::exp(-0.5L * x * x) * 0.398942280401432677939946L;
    REQUIRE(std::fabs(back - tail) / density <= 1e-15L * (1 + std::fabs(x)));
    REQUIRE((x < 0) == (u < 0.5L));
  }
}

TEST_CASE("below is unbiased") {
  Rng rng(11);
  for (int64_t n : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{10}, int64_t{97}}) {
    std::vector<int64_t> counts(static_cast<size_t>(n));
    constexpr int draws = 50'000;
    for (int i = 0; i < draws; ++i) ++counts.at(static_cast<size_t>(rng.below(n)));
    double freedom = static_cast<double>(n - 1);
    CHECK(chi_square(counts, draws / static_cast<double>(n)) <= freedom + 4 * std::sqrt(2 * freedom) + 4);
  }
  // At 3/4 of 2^63 plain multiplication without rejection is still fair; the modulo would favour the lower third.
  constexpr int64_t n = 3 * (int64_t{1} << 61);
  int64_t thirds[3] = {};
  for (int i = 0; i < 30'000; ++i) ++thirds[rng.below(n) / (int64_t{1} << 61)];
  for (int64_t count : thirds) CHECK(std::abs(count - 10'000) < 330);
  int64_t huge = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < 1000; ++i) {
    int64_t x = rng.below(huge);
    CHECK((x >= 0 && x < huge));
  }
}

TEST_CASE("bernoulli") {
  Rng rng(12);
  int hits = 0;
  for (int i = 0; i < 100'000; ++i) {
    hits += rng.bernoulli(0.3);
    if (i < 1000) {
      CHECK(rng.bernoulli(1));
      CHECK_FALSE(rng.bernoulli(0));
    }
  }
  CHECK(std::abs(hits - 30'000) < 580);  // 4 sigma
}

TEST_CASE("permutation and shuffle") {
  Rng rng(13);
  CHECK(rng.permutation(0).empty());
  CHECK(rng.permutation(1) == std::vector<int64_t>{0});
  std::vector<int64_t> sorted = rng.permutation(1000);
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < 1000; ++i) REQUIRE(sorted[static_cast<size_t>(i)] == i);

  std::vector<int64_t> counts(24);  // every one of 4! orders equally often
  for (int i = 0; i < 48'000; ++i) {
    std::vector<int64_t> p = rng.permutation(4);
    int64_t rank = 0;
    for (size_t j = 0; j < 4; ++j) {
      auto smaller =
          std::count_if(p.begin() + static_cast<std::ptrdiff_t>(j), p.end(), [&](int64_t x) { return x < p[j]; });
      rank = rank * static_cast<int64_t>(4 - j) + smaller;
    }
    ++counts[static_cast<size_t>(rank)];
  }
  CHECK(chi_square(counts, 2000) < 58);  // 23 degrees of freedom: 1e-4

  std::vector<std::string> words = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}, shuffled = words;
  Rng(42).shuffle(shuffled);
  std::vector<int64_t> order = Rng(42).permutation(10);
  for (size_t i = 0; i < words.size(); ++i) CHECK(shuffled[i] == words[static_cast<size_t>(order[i])]);
}

TEST_CASE("split leaves the parent alone and ignores its position") {
  Rng parent(14), untouched(14);
  uint64_t first = parent.split("a").next();
  CHECK(parent.state() == untouched.state());
  CHECK(parent.next() == untouched.next());
  CHECK(parent.split("a").next() == first);
  CHECK(Rng(15).split("a").next() != first);
}

TEST_CASE("split streams are distinct and independent") {
  const Rng root(16);
  std::set<uint64_t> firsts;
  size_t made = 0;
  auto add = [&](Rng rng) {
    for (int i = 0; i < 4; ++i) firsts.insert(rng.next()), ++made;
  };
  add(root);
  for (uint64_t i = 0; i < 1000; ++i) {
    add(root.split(i));
    add(root.split(std::to_string(i)));
    add(root.split("layer").split(i));
    add(root.split(i).split("layer"));
    add(Rng(17 + i));
  }
  for (const char* name : {"", "a", "b", "ab", "ba", "12345678", "123456789", "12345678 "}) add(root.split(name));
  add(root.split(std::string(1, '\0')));
  add(root.split(std::string(2, '\0')));
  add(root.split(std::string(8, '\0')));
  CHECK(firsts.size() == made);

  constexpr int n = 50'000;
  double bound = 4.5 / std::sqrt(n);
  CHECK(std::fabs(correlation(root, root.split(0), n)) < bound);
  CHECK(std::fabs(correlation(root.split(0), root.split(1), n)) < bound);
  CHECK(std::fabs(correlation(root.split("a"), root.split("b"), n)) < bound);
  CHECK(std::fabs(correlation(root.split("a").split(1), root.split(1).split("a"), n)) < bound);
  CHECK(std::fabs(correlation(Rng(0), Rng(1), n)) < bound);
}

TEST_CASE("state round trip") {
  for (int drawn : {0, 1, 2, 7}) {
    Rng rng = Rng(18).split("x");
    for (int i = 0; i < drawn; ++i) rng.next();
    Rng::State state = rng.state();
    CHECK(state.position == static_cast<uint64_t>(drawn));
    Rng copy = Rng::from_state({state.key, state.stream, state.position});
    CHECK(copy.state() == state);
    CHECK(copy.split(3).next() == rng.split(3).next());
    for (int i = 0; i < 5; ++i) CHECK(copy.normal() == rng.normal());
    CHECK(copy.state() == rng.state());
  }
}

TEST_CASE("wrong arguments") {
  Rng rng(19);
  CHECK_THROWS_WITH_AS(rng.below(0), "rng.below: expected n >= 1, got 0", Error);
  CHECK_THROWS_WITH_AS(rng.below(-5), "rng.below: expected n >= 1, got -5", Error);
  CHECK_THROWS_WITH_AS(rng.permutation(-1), "rng.permutation: expected n >= 0, got -1", Error);
  CHECK_THROWS_AS(rng.bernoulli(-0.1), Error);
  CHECK_THROWS_AS(rng.bernoulli(1.1), Error);
  CHECK_THROWS_AS(rng.bernoulli(not_a_number), Error);
  CHECK_THROWS_WITH_AS(rng.uniform(2, 1), "rng.uniform: expected finite low <= high, got 2 and 1", Error);
  CHECK_THROWS_AS(rng.uniform(0, inf), Error);
  CHECK_THROWS_AS(rng.uniform(not_a_number, 1), Error);
  CHECK(rng.state() == Rng(19).state());  // nothing was drawn
}
}
