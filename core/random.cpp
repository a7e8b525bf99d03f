// Compiled with -ffp-contract=off (CMakeLists.txt; the pragmas below say the same to compilers that listen), without
// libm and without multiversioned kernels: with the basic IEEE operations in the written order, no machine can give
// other bits.
#include <tapedeck/core/random.h>

#include <tapedeck/core/error.h>

#include <bit>
#include <cfloat>
#include <limits>
#include <numeric>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#if defined(__FAST_MATH__)
#error "random.cpp: -ffast-math changes the random numbers; build this file without it"
#endif

namespace tapedeck {

static_assert(FLT_EVAL_METHOD == 0 && std::numeric_limits<double>::is_iec559);

namespace {

using Block = std::array<uint32_t, 4>;

constexpr uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
constexpr uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
constexpr uint64_t join(uint32_t low, uint32_t high) { return low | uint64_t{high} << 32; }

struct Words {
  uint64_t first, second;
};

// Philox on 64-bit words.
Words encrypt(uint64_t key, Words x) {
  Block y = philox4x32({low(x.first), high(x.first), low(x.second), high(x.second)}, {low(key), high(key)});
  return {join(y[0], y[1]), join(y[2], y[3])};
}

// Keys of splits, by kind, so that they never meet the draws of the same stream nor each other.
constexpr uint64_t name_kind = 0x6a09e667f3bcc908, number_kind = 0xbb67ae8584caa73b;  // sqrt 2, sqrt 3: fractional bits

// log x for normal x > 0. x = 2^n m, m in [sqrt(1/2), sqrt(2)); log m = 2 atanh s = 2 (s + s^3/3 + s^5/5 + ...),
// s = (m - 1) / (m + 1), s^2 < 0.0295: the first term left out is below 1e-18.
double logarithm(double x) {
  uint64_t bits = std::bit_cast<uint64_t>(x);
  int n = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
  if (m > 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    ++n;
  }
  double s = (m - 1) / (m + 1), z = s * s, tail = 0;
  for (int k = 23; k >= 3; k -= 2) tail = tail * z + 1.0 / k;
  constexpr double ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;
  return n * ln2_high + (2 * s + (2 * s * (z * tail) + n * ln2_low));
}

// The degree 7/7 rational function of AS 241; coefficients from the constant term up.
double ratio(const double (&p)[8], const double (&q)[8], double x) {
  double numerator = p[7], denominator = q[7];
  for (int i = 6; i >= 0; --i) {
    numerator = numerator * x + p[i];
    denominator = denominator * x + q[i];
  }
  return numerator / denominator;
}

// The quantile of the normal distribution at 1/2 + q, where `tail` is min(1/2 + q, 1/2 - q), exactly.
// Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37 (1988), PPND16.
double normal_quantile(double q, double tail) {
  constexpr double a[] = {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                          1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                          3.3430575583588128105e4, 2.5090809287301226727e3};
  constexpr double b[] = {1.0,
                          4.2313330701600911252e1,
                          6.8718700749205790830e2,
                          5.3941960214247511077e3,
                          2.1213794301586595867e4,
                          3.9307895800092710610e4,
                          2.8729085735721942674e4,
                          5.2264952788528545610e3};
  constexpr double c[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                          3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                          2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double d[] = {1.0,
                          2.05319162663775882187e0,
                          1.67638483018380384940e0,
                          6.89767334985100004550e-1,
                          1.48103976427480074590e-1,
                          1.51986665636164571966e-2,
                          5.47593808499534494600e-4,
                          1.05075007164441684324e-9};
  constexpr double e[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                          2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                          2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double f[] = {1.0,
                          5.99832206555887937690e-1,
                          1.36929880922735805310e-1,
                          1.48753612908506148525e-2,
                          7.86869131145613259100e-4,
                          1.84631831751005468180e-5,
                          1.42151175831644588870e-7,
                          2.04426310338993978564e-15};
  if (q >= -0.425 && q <= 0.425) return q * ratio(a, b, 0.180625 - q * q);
  double r = __builtin_sqrt(-logarithm(tail));
  double x = r <= 5 ? ratio(c, d, r - 1.6) : ratio(e, f, r - 5);
  return q < 0 ? -x : x;
}

}  // namespace

Block philox4x32(Block counter, std::array<uint32_t, 2> key) {
  auto [a, b, c, d] = counter;
  auto [k0, k1] = key;
  for (int round = 0; round < 10; ++round) {
    uint64_t x = uint64_t{0xd2511f53} * a, y = uint64_t{0xcd9e8d57} * c;
    a = high(y) ^ b ^ k0;
    b = low(y);
    c = high(x) ^ d ^ k1;
    d = low(x);
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
  return {a, b, c, d};
}

Rng::Rng(uint64_t seed) : Rng(State{seed, 0, 0}) {}

Rng::Rng(const State& state) : state_(state) {
  if (state_.position & 1) spare_ = encrypt(state_.key, {state_.position / 2, state_.stream}).second;
}

Rng Rng::from_state(const State& state) { return Rng(state); }

// Absorbs the name eight bytes at a time, after its length.
Rng Rng::split(std::string_view name) const {
  uint64_t key = state_.key ^ name_kind;
  Words child = encrypt(key, {name.size(), state_.stream});
  for (size_t i = 0; i < name.size(); i += 8) {
    uint64_t chunk = 0;  // by shifts, so that byte order does not matter
    for (size_t j = i; j < name.size() && j < i + 8; ++j)
      chunk |= uint64_t{static_cast<unsigned char>(name[j])} << (8 * (j - i));
    child = encrypt(key, {child.first ^ chunk, child.second});
  }
  return Rng(State{child.first, child.second, 0});
}

Rng Rng::split(uint64_t number) const {
  Words child = encrypt(state_.key ^ number_kind, {number, state_.stream});
  return Rng(State{child.first, child.second, 0});
}

uint64_t Rng::next() {
  if (state_.position++ & 1) return spare_;
  Words words = encrypt(state_.key, {(state_.position - 1) / 2, state_.stream});
  spare_ = words.second;
  return words.first;
}

double Rng::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double Rng::uniform(double low, double high) {
  constexpr double largest = std::numeric_limits<double>::max();
  if (!(low >= -largest && high <= largest && low <= high)) {
    fail("rng.uniform: expected finite low <= high, got {} and {}", low, high);
  }
  double u = uniform();
  double x = low * (1 - u) + high * u;          // no overflow, unlike low + (high - low) u
  return x < high ? (x < low ? low : x) : low;  // rounding up to `high` is rarer than 2^-50: `low` instead
}

double Rng::normal() {
  uint64_t k = next() >> 12;
  double u =
      (static_cast<double>(k) + 0.5) * 0x1p-52;  // exact, in (0, 1), symmetric about 1/2; so are the next two lines
  double q = u - 0.5;
  return normal_quantile(q, q < 0 ? u : 1 - u);
}

// Lemire, "Fast random integer generation in an interval", ACM TOMACS 29 (2019): the high word of next() * n, where the
// low words below 2^64 mod n are rejected.
int64_t Rng::below(int64_t n) {
  if (n < 1) fail("rng.below: expected n >= 1, got {}", n);
  __extension__ using Wide = unsigned __int128;
  uint64_t range = static_cast<uint64_t>(n);
  Wide product = Wide{next()} * range;
  if (static_cast<uint64_t>(product) < range) {
    uint64_t excess = (0 - range) % range;
    while (static_cast<uint64_t>(product) < excess) product = Wide{next()} * range;
  }
  return static_cast<int64_t>(product >> 64);
}

bool Rng::bernoulli(double p) {
  if (!(p >= 0 && p <= 1)) fail("rng.bernoulli: expected 0 <= p <= 1, got {}", p);
  return uniform() < p;
}

std::vector<int64_t> Rng::permutation(int64_t n) {
  if (n < 0) fail("rng.permutation: expected n >= 0, got {}", n);
  std::vector<int64_t> x(static_cast<size_t>(n));
  std::iota(x.begin(), x.end(), 0);
  shuffle(x);
  return x;
}

}  // namespace tapedeck
