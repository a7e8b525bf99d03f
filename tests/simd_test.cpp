// Vector functions: accuracy over the whole range, special values, and bits that do not depend on position.
#include <tapedeck/core/simd.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

using namespace tapedeck;

namespace {

template <class T>
using Limits = std::numeric_limits<T>;
template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <class T>
Bits<T> bits(T x) {
  return std::bit_cast<Bits<T>>(x);
}

// |y - exact| in units of the last place of a T near `exact`; an overflow counts as the next power of two.
template <class T>
double ulps(T y, long double exact) {
  if (std::isnan(exact) || std::isnan(y)) return std::isnan(exact) == std::isnan(y) ? 0 : HUGE_VAL;
  if (y == static_cast<T>(exact) && (std::isinf(y) || y == 0)) return 0;
  int exponent = exact == 0 ? Limits<T>::min_exponent - 1 : std::max(std::ilogb(exact), Limits<T>::min_exponent - 1);
  exponent = std::min(exponent, Limits<T>::max_exponent - 1);
  long double value = static_cast<long double>(y);
  if (std::isinf(y)) value = std::copysign(std::ldexp(1.0L, Limits<T>::max_exponent), value);
  return static_cast<double>(std::fabs(value - exact) / std::ldexp(1.0L, exponent - Limits<T>::digits + 1));
}

// Points all over the range of T: an even sweep of bit patterns, and the range where the functions have their shape.
template <class T>
std::vector<T> points() {
  std::vector<T> x;
  constexpr int sweep = 20'000, shape = 10'000;
  constexpr auto step = static_cast<Bits<T>>(Limits<Bits<T>>::max() / sweep | 1);
  Bits<T> pattern = 0;
  for (int i = 0; i < sweep; ++i) x.push_back(std::bit_cast<T>(pattern += step));
  constexpr T wide = sizeof(T) == 4 ? T(110) : T(760);
  for (int i = -shape; i <= shape; ++i) {
    T t = static_cast<T>(i) / shape;
    for (T scale : {T(1), T(12), wide}) x.push_back(t * scale);
    x.push_back(1 + t * T(0.001));
  }
  return x;
}

template <class T, class F, class Reference>
void check_accuracy(const char* name, double bound, F f, Reference reference) {
  std::vector<T> x = points<T>(), y(x.size());
  simd::map_n(y.data(), x.size(), f, static_cast<const T*>(x.data()));
  double worst = 0;
  T at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double error = ulps(y[i], reference(static_cast<long double>(x[i])));
    if (error > worst) worst = error, at = x[i];
  }
  INFO(std::string(name), sizeof(T) * 8, ", worst at x = ", at);
  CHECK(worst <= bound);
}

long double exact_sigmoid(long double x) {
  long double e = std::exp(-std::fabs(x));
  return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

constexpr auto vector_exp = [](auto v) { return simd::exp(v); };
constexpr auto vector_expm1 = [](auto v) { return simd::expm1(v); };
constexpr auto vector_log = [](auto v) { return simd::log(v); };
constexpr auto vector_log1p = [](auto v) { return simd::log1p(v); };
constexpr auto vector_tanh = [](auto v) { return simd::tanh(v); };
constexpr auto vector_sigmoid = [](auto v) { return simd::sigmoid(v); };
constexpr auto vector_sqrt = [](auto v) { return simd::sqrt(v); };

// f at one point, through the dispatched kernel.
template <class T, class F>
T at(F f, T x) {
  T y;
  simd::map_n(&y, 1, f, static_cast<const T*>(&x));
  return y;
}

// Bitwise equal, or both NaN.
template <class T>
bool same(T a, T b) {
  return std::isnan(a) ? std::isnan(b) : bits(a) == bits(b);
}

// out[i] = f(in[i]), one number at a time, compiled for the same machines as map_n.
template <class F, class T>
TAPEDECK_KERNEL void map_scalars(T* out, size_t n, F f, const T* in) {
  for (size_t i = 0; i < n; ++i) out[i] = f(in[i]);
}

}  // namespace

TEST_SUITE("simd") {
TEST_CASE_TEMPLATE("functions keep their error bounds over the whole range", T, float, double) {
  check_accuracy<T>("exp", 1.0, vector_exp, [](long double x) { return std::exp(x); });
  check_accuracy<T>("expm1", 2.0, vector_expm1, [](long double x) { return std::expm1(x); });
  check_accuracy<T>("log", 0.9, vector_log, [](long double x) { return std::log(x); });
  check_accuracy<T>("log1p", 1.0, vector_log1p, [](long double x) { return std::log1p(x); });
  check_accuracy<T>("tanh", 2.6, vector_tanh, [](long double x) { return std::tanh(x); });
  check_accuracy<T>("sigmoid", 2.5, vector_sigmoid, exact_sigmoid);
  check_accuracy<T>("sqrt", 0.5, vector_sqrt, [](long double x) { return std::sqrt(x); });
}

TEST_CASE_TEMPLATE("special values", T, float, double) {
  constexpr T inf = Limits<T>::infinity(), nan = Limits<T>::quiet_NaN(), tiny = Limits<T>::denorm_min();
  constexpr T largest = Limits<T>::max();
  struct Row {
    T x, exp, expm1, log, log1p, tanh, sigmoid, sqrt;
  };
  const Row rows[] = {
      {0, 1, 0, -inf, 0, 0, T(0.5), 0},
      {T(-0.0), 1, T(-0.0), -inf, T(-0.0), T(-0.0), T(0.5), T(-0.0)},
      {inf, inf, inf, inf, inf, 1, 1, inf},
      {-inf, 0, -1, nan, nan, -1, 0, nan},
      {nan, nan, nan, nan, nan, nan, nan, nan},
      {1000, inf, inf, std::log(T(1000)), std::log1p(T(1000)), 1, 1, std::sqrt(T(1000))},
      {-1000, 0, -1, nan, nan, -1, 0, nan},
      {largest, inf, inf, std::log(largest), std::log(largest), 1, 1, std::sqrt(largest)},
      {-largest, 0, -1, nan, nan, -1, 0, nan},
      {tiny, 1, tiny, std::log(tiny), tiny, tiny, T(0.5), std::sqrt(tiny)},
      {-tiny, 1, -tiny, nan, -tiny, -tiny, T(0.5), nan},
  };
  for (const Row& row : rows) {
    CAPTURE(row.x);
    CHECK(same(at(vector_exp, row.x), row.exp));
    CHECK(same(at(vector_expm1, row.x), row.expm1));
    CHECK(ulps(at(vector_log, row.x), static_cast<long double>(row.log)) <= 1);
    CHECK(ulps(at(vector_log1p, row.x), static_cast<long double>(row.log1p)) <= 1);
    CHECK(same(at(vector_tanh, row.x), row.tanh));
    CHECK(same(at(vector_sigmoid, row.x), row.sigmoid));
    CHECK(same(at(vector_sqrt, row.x), row.sqrt));
  }
  CHECK(same(at(vector_log, T(1)), T(0)));
  CHECK(same(at(vector_log1p, T(-1)), -inf));
  CHECK(std::signbit(at(vector_log1p, T(-0.0))));
  CHECK(std::isnan(at(vector_log, -tiny)));
}

TEST_CASE("exp and sigmoid at the edges of the range") {
  CHECK(std::isfinite(at(vector_exp, 88.72283f)));
  CHECK(at(vector_exp, 88.722847f) == HUGE_VALF);
  CHECK(at(vector_exp, -103.97f) == Limits<float>::denorm_min());
  CHECK(at(vector_exp, -103.98f) == 0);
  CHECK(std::isfinite(at(vector_exp, 0x1.62e42fefa39efp+9)));
  CHECK(at(vector_exp, 0x1.62e42fefa39f0p+9) == HUGE_VAL);
  CHECK(at(vector_exp, -745.13) == Limits<double>::denorm_min());
  CHECK(at(vector_exp, -745.14) == 0);
  CHECK(ulps(at(vector_sigmoid, -100.f), exact_sigmoid(-100)) <= 1);  // a denormal, not 0
  CHECK(ulps(at(vector_sigmoid, -740.0), exact_sigmoid(-740)) <= 1);
}

TEST_CASE_TEMPLATE("tanh and sigmoid stay in their ranges and are odd", T, float, double) {
  std::vector<T> x = points<T>(), y(x.size()), mirrored(x.size()), s(x.size());
  const T* in = x.data();
  simd::map_n(y.data(), x.size(), vector_tanh, in);
  simd::map_n(
      mirrored.data(), x.size(), [](auto v) { return -simd::tanh(-v); }, in);
  simd::map_n(s.data(), x.size(), vector_sigmoid, in);
  bool ok = true;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) continue;
    ok = ok && y[i] >= -1 && y[i] <= 1 && s[i] >= 0 && s[i] <= 1 && same(y[i], mirrored[i]);
  }
  CHECK(ok);
}

TEST_CASE_TEMPLATE("an element's bits do not depend on its position", T, float, double) {
  constexpr size_t width = simd::Lanes<T>::width, n = 5 * width;
  std::vector<T> x(n), whole(n), part(n + 1), single(n), scalar(n);
  for (size_t i = 0; i < n; ++i) x[i] = std::sin(static_cast<T>(i + 1)) * 8;
  auto f = [](auto v) {
    auto a = simd::abs(v);
    return simd::tanh(v) + simd::sigmoid(v) * simd::log(a) - simd::exp(-a) +
           simd::sqrt(a) * simd::log1p(simd::expm1(a));
  };
  simd::map_n(whole.data(), n, f, static_cast<const T*>(x.data()));
  for (size_t i = 0; i < n; ++i) simd::map_n(&single[i], 1, f, static_cast<const T*>(&x[i]));
  CHECK(std::memcmp(whole.data(), single.data(), n * sizeof(T)) == 0);
  for (size_t start = 0; start < width; ++start) {
    for (size_t count = 0; count <= 2 * width + 1; ++count) {
      std::fill(part.begin(), part.end(), T(-7));
      simd::map_n(part.data(), count, f, static_cast<const T*>(x.data() + start));
      REQUIRE(std::memcmp(part.data(), whole.data() + start, count * sizeof(T)) == 0);
      REQUIRE(std::all_of(part.begin() + static_cast<std::ptrdiff_t>(count), part.end(), [](T y) { return y == -7; }));
    }
  }

  // Scalar calls run the vector code on one lane. One function at a time: across functions products may contract
  // otherwise.
  auto check_scalar = [&](auto g) {
    simd::map_n(whole.data(), n, g, static_cast<const T*>(x.data()));
    map_scalars(scalar.data(), n, g, static_cast<const T*>(x.data()));
    for (size_t i = 0; i < n; ++i) CHECK(same(whole[i], scalar[i]));
  };
  check_scalar(vector_exp);
  check_scalar(vector_expm1);
  check_scalar(vector_log);
  check_scalar(vector_log1p);
  check_scalar(vector_tanh);
  check_scalar(vector_sigmoid);
  check_scalar(vector_sqrt);
}

TEST_CASE_TEMPLATE("partial loads and stores touch n elements", T, float, double) {
  constexpr size_t width = simd::Lanes<T>::width;
  for (size_t n = 0; n <= width; ++n) {
    std::vector<T> x(n, T(3)), y(width + 1, T(-7));  // ASan watches the end of x
    simd::Vec<T> v = simd::load(static_cast<const T*>(x.data()), n);
    simd::store(y.data(), v + T(1), n);
    for (size_t i = 0; i < width; ++i) CHECK(T(v[i]) == (i < n ? 3 : 0));
    for (size_t i = 0; i <= width; ++i) CHECK(y[i] == (i < n ? 4 : -7));
  }
}

TEST_CASE_TEMPLATE("map_n takes any number of inputs and works in place", T, float, double) {
  constexpr size_t n = 37;
  std::vector<T> a(n), b(n), c(n);
  for (size_t i = 0; i < n; ++i) a[i] = static_cast<T>(i), b[i] = static_cast<T>(2 * i), c[i] = T(1);
  auto read = [](const std::vector<T>& v) { return v.data(); };
  simd::map_n(
      a.data(), n, [](auto x, auto y, auto z) { return x * y + z; }, read(a), read(b), read(c));
  for (size_t i = 0; i < n; ++i) CHECK(a[i] == static_cast<T>(2 * i * i + 1));
  simd::map_n(a.data(), n, [] { return simd::splat(T(5)); });
  CHECK(std::all_of(a.begin(), a.end(), [](T x) { return x == 5; }));
  simd::map_n(a.data(), 0, vector_exp, read(b));
  CHECK(a[0] == 5);
}

TEST_CASE_TEMPLATE("max min abs select and splat", T, float, double) {
  constexpr T nan = Limits<T>::quiet_NaN(), inf = Limits<T>::infinity();
  const T values[] = {0, T(-0.0), 1, T(-2.5), inf, -inf, nan};
  for (T x : values) {
    for (T y : values) {
      T larger = std::isnan(x) || std::isnan(y) ? nan : std::max(x, y);
      T smaller = std::isnan(x) || std::isnan(y) ? nan : std::min(x, y);
      auto equal = [](T p, T q) { return std::isnan(p) ? std::isnan(q) : p == q; };
      CHECK(equal(simd::max(simd::splat(x), simd::splat(y))[1], larger));
      CHECK(equal(simd::min(simd::splat(x), simd::splat(y))[1], smaller));
      CHECK(equal(simd::max(x, y), larger));
      CHECK(equal(simd::min(x, y), smaller));
      CHECK(same(simd::select(simd::splat(x) < simd::splat(y), simd::splat(x), simd::splat(y))[0], x < y ? x : y));
      CHECK(same(simd::select(x < y, x, y), x < y ? x : y));
    }
    CHECK(same(simd::splat(x)[0], x));
    CHECK(same(simd::abs(x), std::fabs(x)));
  }
}
}
