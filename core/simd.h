// Elementwise vector code on the compilers' own vector types: one source for SSE2, AVX2, AVX-512 and NEON, no
// intrinsics to learn. Kernels are generic lambdas that run on Vec<float>, Vec<double>, float and double alike:
//
//   simd::map_n(y, n, [](auto v) TAPEDECK_LANES { return simd::tanh(v); }, x);
//
// Arithmetic, comparisons and `mask ? a : b` are the vector types' operators; a scalar operand is repeated in all
// lanes. Whatever a TAPEDECK_KERNEL calls with vectors must end up inlined in it, because the clones pass vectors
// differently, and a call would hand over garbage: helper functions need TAPEDECK_INLINE, lambdas TAPEDECK_LANES
// behind their parameters (flatten alone does not always do, tests/check_inlined.sh looks).
//
// Bits: lanes never influence each other, so the position of an element (body, tail, scalar call) changes nothing.
// Where the machine has fused multiply-add, multiplications and additions contract, so the last bit may differ between
// machines, and between a kernel's clone and code compiled for the baseline.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// TAPEDECK_INLINE, TAPEDECK_LANES: for everything that takes or returns vectors. TAPEDECK_KERNEL: for the loops around
// it, function templates included. With g++ on x86-64 a kernel is compiled three times and the processor picks one at
// load time; clang 14 does not resolve these names rightly, debug and sanitizer builds must not, a build with -march
// above x86-64-v2 need not.
#define TAPEDECK_INLINE [[gnu::always_inline]] inline
#define TAPEDECK_LANES __attribute__((always_inline))
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__OPTIMIZE__) && !defined(__clang__) &&    \
    !defined(__AVX__) && !defined(__AES__) && !defined(__PCLMUL__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && !defined(TAPEDECK_NO_CLONES)
#define TAPEDECK_CLONES 1
#define TAPEDECK_KERNEL [[gnu::target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4"), gnu::flatten]]
#else
#define TAPEDECK_KERNEL [[gnu::flatten]]
#endif

#pragma GCC diagnostic ignored "-Wpsabi"  // about vectors passed between functions; kept for the file's own lambdas

namespace tapedeck::simd {

// ---- Types ----

// Wider vectors than the machine's are lowered badly by g++ 12 (4 times slower), so 32 bytes on x86 and 16 elsewhere.
#if defined(__x86_64__)
#define TAPEDECK_VECTOR __attribute__((vector_size(32)))
#else
#define TAPEDECK_VECTOR __attribute__((vector_size(16)))
#endif

// Lanes<T>: the vector type of T, the masks its comparisons give (0 or -1 in each lane), and its bits as unsigned
// integers.
template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float type TAPEDECK_VECTOR;                            // the vector
  typedef int32_t mask TAPEDECK_VECTOR;                          // of comparisons
  typedef uint32_t uint TAPEDECK_VECTOR;                         // the bits
  static constexpr size_t width = sizeof(type) / sizeof(float);  // the number of lanes
};
template <>
struct Lanes<double> {
  typedef double type TAPEDECK_VECTOR;                            // the vector
  typedef int64_t mask TAPEDECK_VECTOR;                           // of comparisons
  typedef uint64_t uint TAPEDECK_VECTOR;                          // the bits
  static constexpr size_t width = sizeof(type) / sizeof(double);  // the number of lanes
};
#undef TAPEDECK_VECTOR

// The machine's vector of T.
template <class T>
using Vec = typename Lanes<T>::type;

namespace detail {
template <class V>
struct ElementOf {};
template <>
struct ElementOf<Vec<float>> {
  using type = float;
};
template <>
struct ElementOf<Vec<double>> {
  using type = double;
};
}  // namespace detail

// Vec<float> or Vec<double>; float or double; and the second for the first.
template <class V>
concept Vector = requires {
  typename detail::ElementOf<V>::type;
};
template <class T>
concept Scalar = std::same_as<T, float> || std::same_as<T, double>;
template <Vector V>
using Element = typename detail::ElementOf<V>::type;

// ---- Loads and stores: no alignment needed ----

namespace detail {
// The first n <= width elements, in pieces of 4, 2 and 1: a call of memcpy would cost more than the arithmetic.
template <class T>
TAPEDECK_INLINE void copy_part(T* to, const T* from, size_t n) {
  constexpr size_t width = Lanes<T>::width;
  size_t done = 0;
  if constexpr (width > 4) {
    if (n & 8) return static_cast<void>(std::memcpy(to, from, 8 * sizeof(T)));
  }
  if (n & 4) {
    std::memcpy(to, from, 4 * sizeof(T));
    done = 4;
  }
  if (n & 2) {
    std::memcpy(to + done, from + done, 2 * sizeof(T));
    done += 2;
  }
  if (n & 1) to[done] = from[done];
}
}  // namespace detail

// c in every lane.
template <Scalar T>
TAPEDECK_INLINE Vec<T> splat(T c) {
  return c - Vec<T>{};  // keeps -0
}

// The next `width` elements.
template <Scalar T>
TAPEDECK_INLINE Vec<T> load(const T* p) {
  Vec<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The first n <= width elements; the other lanes are 0.
template <Scalar T>
TAPEDECK_INLINE Vec<T> load(const T* p, size_t n) {
  T lanes[Lanes<T>::width] = {};
  detail::copy_part(lanes, p, n);
  return load(static_cast<const T*>(lanes));
}

// All lanes.
template <Scalar T>
TAPEDECK_INLINE void store(T* p, Vec<T> v) {
  std::memcpy(p, &v, sizeof v);
}

// The first n <= width lanes.
template <Scalar T>
TAPEDECK_INLINE void store(T* p, Vec<T> v, size_t n) {
  T lanes[Lanes<T>::width];
  store(lanes, v);
  detail::copy_part(p, static_cast<const T*>(lanes), n);
}

// ---- Exact functions ----

// mask ? a : b, lane by lane; bool for scalars.
template <Vector V>
TAPEDECK_INLINE V select(typename Lanes<Element<V>>::mask mask, V a, V b) {
  return mask ? a : b;
}
template <Scalar T>
TAPEDECK_INLINE T select(bool mask, T a, T b) {
  return mask ? a : b;
}

// The larger and the smaller one; NaN if either is NaN.
template <Vector V>
TAPEDECK_INLINE V max(V a, V b) {
  return ((a > b) | (a != a)) ? a : b;
}
template <Vector V>
TAPEDECK_INLINE V min(V a, V b) {
  return ((a < b) | (a != a)) ? a : b;
}

namespace detail {
template <Vector V>
using UintOf = typename Lanes<Element<V>>::uint;
template <Vector V>
TAPEDECK_INLINE UintOf<V> bits(V v) {
  return __builtin_bit_cast(UintOf<V>, v);
}
template <Vector V>
TAPEDECK_INLINE V from_bits(UintOf<V> v) {
  return __builtin_bit_cast(V, v);
}
template <Vector V>
TAPEDECK_INLINE UintOf<V> sign_bit(V v) {
  return bits(v) & bits(splat(Element<V>(-0.0)));
}
}  // namespace detail

// |x|
template <Vector V>
TAPEDECK_INLINE V abs(V x) {
  return detail::from_bits<V>(detail::bits(x) ^ detail::sign_bit(x));
}

// The square root, correctly rounded; NaN below 0, errno untouched.
template <Vector V>
TAPEDECK_INLINE V sqrt(V x) {
#if defined(__SSE2__)
  // By halves: SSE2 is on every x86-64, and no slower than one wide root. Shuffles, because halves that go through
  // memory stall the wide load behind them.
  if constexpr (std::same_as<Element<V>, float>) {
    __m128 low = _mm_sqrt_ps(__builtin_shufflevector(x, x, 0, 1, 2, 3));
    __m128 high = _mm_sqrt_ps(__builtin_shufflevector(x, x, 4, 5, 6, 7));
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  } else {
    __m128d low = _mm_sqrt_pd(__builtin_shufflevector(x, x, 0, 1));
    __m128d high = _mm_sqrt_pd(__builtin_shufflevector(x, x, 2, 3));
    return __builtin_shufflevector(low, high, 0, 1, 2, 3);
  }
#elif defined(__aarch64__)
  if constexpr (std::same_as<Element<V>, float>)
    return __builtin_bit_cast(V, vsqrtq_f32(__builtin_bit_cast(float32x4_t, x)));
  else
    return __builtin_bit_cast(V, vsqrtq_f64(__builtin_bit_cast(float64x2_t, x)));
#else
  for (size_t i = 0; i < Lanes<Element<V>>::width; ++i) {
    bool negative = x[i] < 0;
    Element<V> root = static_cast<Element<V>>(__builtin_sqrt(negative ? 0 : x[i]));  // exact for float too
    x[i] = negative ? std::numeric_limits<Element<V>>::quiet_NaN() : root;
  }
  return x;
#endif
}

// ---- Transcendental functions ----

namespace detail {

// c[0] x^n + ... + c[n], by Horner's rule.
template <Vector V, class... C>
TAPEDECK_INLINE V horner(V x, Element<V> first, C... rest) {
  V p = splat(first);
  ((p = p * x + rest), ...);
  return p;
}

// What differs between f32 and f64. ln2 = ln2_hi + ln2_lo, where n ln2_hi is exact for every exponent n.
// The polynomials are minimax fits (Remez, 60 digits), rounded to T:
//   expm1_tail(r) = (e^r - 1 - r) / r^2                on |r| <= ln2 / 2
//   log_tail(z)   = (log((1+s)/(1-s)) / s - 2) / z     on z = s^2 <= ((sqrt2 - 1) / (sqrt2 + 1))^2
template <class T>
struct Math;

template <>
struct Math<float> {
  using V = Vec<float>;
  static constexpr int mantissa = 23;
  static constexpr uint32_t bias = 127;
  static constexpr float ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f, log2_e = 0x1.715476p+0f;
  static constexpr float exp_zero = -104, exp_inf = 89;  // exp(x) is 0 up to here, inf from here
  static constexpr float expm1_one = -17.5f;             // expm1(x) is -1 up to here
  static constexpr float tanh_one = 9.1f;                // tanh(x) is 1 from here
  TAPEDECK_INLINE static V expm1_tail(V r) {
    return horner(r, 0x1.a1801ap-13f, 0x1.6d43cp-10f, 0x1.1110aap-7f, 0x1.5554e8p-5f, 0x1.555556p-3f, 0.5f);
  }
  TAPEDECK_INLINE static V log_tail(V z) { return horner(z, 0x1.2f2732p-2f, 0x1.997abp-2f, 0x1.55555cp-1f); }
};

template <>
struct Math<double> {
  using V = Vec<double>;
  static constexpr int mantissa = 52;
  static constexpr uint64_t bias = 1023;
  static constexpr double ln2_hi = 0x1.62e42fefa38p-1, ln2_lo = 0x1.ef35793c7673p-45, log2_e = 0x1.71547652b82fep+0;
  static constexpr double exp_zero = -746, exp_inf = 710;
  static constexpr double expm1_one = -37.5;
  static constexpr double tanh_one = 19.1;
  TAPEDECK_INLINE static V expm1_tail(V r) {
    return horner(r, 0x1.1f5b74c6a84ebp-29, 0x1.af4f6ace23758p-26, 0x1.27e4e6c9a94e6p-22, 0x1.71de01777ef9dp-19,
                  0x1.a01a01a33a64ep-16, 0x1.a01a01ac22f93p-13, 0x1.6c16c16c1697fp-10, 0x1.111111111006fp-7,
                  0x1.5555555555555p-5, 0x1.5555555555557p-3, 0.5);
  }
  TAPEDECK_INLINE static V log_tail(V z) {
    return horner(z, 0x1.2b5cf01c55d74p-3, 0x1.39fdfe2bd97edp-3, 0x1.7462b79e7e115p-3, 0x1.c71c62dbb3ab2p-3,
                  0x1.2492492df75d8p-2, 0x1.99999999952ddp-2, 0x1.5555555555558p-1);
  }
};

template <class T>
inline constexpr T inf = std::numeric_limits<T>::infinity();

// x brought into [lo, hi]; NaN passes.
template <Vector V>
TAPEDECK_INLINE V clamp(V x, Element<V> lo, Element<V> hi) {
  x = x < lo ? splat(lo) : x;
  return x > hi ? splat(hi) : x;
}

// x = n ln2 + r, |r| <= ln2 / 2; q = e^r - 1. n is an integer in two's complement.
template <Vector V>
struct Reduced {
  V q;
  UintOf<V> n;
};

template <Vector V>
TAPEDECK_INLINE Reduced<V> reduce(V x) {
  using T = Element<V>;
  using M = Math<T>;
  constexpr T magic = T(1.5) * T(uint64_t{1} << M::mantissa);  // adding it rounds to an integer, in the low bits
  V t = x * M::log2_e + magic;
  V n = t - magic;
  V r = (x - n * M::ln2_hi) - n * M::ln2_lo;
  return {M::expm1_tail(r) * (r * r) + r, bits(t) - bits(splat(magic))};
}

// 2^n for n in [-bias + 1, bias].
template <Vector V>
TAPEDECK_INLINE V power_of_two(UintOf<V> n) {
  using M = Math<Element<V>>;
  return from_bits<V>((n + M::bias) << M::mantissa);
}

// e^x for x clamped to [exp_zero, exp_inf]: 2^n goes in by two factors, so that denormals and the largest values come
// out.
template <Vector V>
TAPEDECK_INLINE V exp_clamped(V x) {
  using M = Math<Element<V>>;
  auto [q, n] = reduce(x);
  constexpr auto even = 4 * (M::bias + 1);  // makes n positive, for the shift
  UintOf<V> half = ((n + even) >> 1) - even / 2;
  return (q + Element<V>(1)) * power_of_two<V>(half) * power_of_two<V>(n - half);
}

// log(x + c) for finite x > 0 and c below x's last place.
template <Vector V>
TAPEDECK_INLINE V log_positive(V x, V c) {
  using T = Element<V>;
  using M = Math<T>;
  constexpr T denormal_scale = T(uint64_t{1} << M::mantissa);
  auto denormal = x < std::numeric_limits<T>::min();
  V y = denormal ? x * denormal_scale : x;
  // y = 2^n m with m in [sqrt(1/2), sqrt(2)); n is shifted by bias + 1 to stay positive, and read through the mantissa.
  const UintOf<V> root_half = bits(splat(T(0.70710678118654752440)));
  constexpr auto shift = M::bias + 1;
  UintOf<V> u = bits(y) - root_half + (shift << M::mantissa);
  V n = from_bits<V>((u >> M::mantissa) | bits(splat(denormal_scale))) - (denormal_scale + T(shift));
  n = denormal ? n - T(M::mantissa) : n;
  constexpr auto fraction = (decltype(shift){1} << M::mantissa) - 1;
  V f = from_bits<V>((u & fraction) + root_half) - T(1);
  // log m = f - f^2/2 + s (f^2/2 + z log_tail(z)), s = f / (2 + f), z = s^2 (Tang 1990; Ng, fdlibm 1993).
  V s = f / (f + T(2)), z = s * s, h = f * f * T(0.5);
  return n * M::ln2_hi - ((h - (s * (h + z * M::log_tail(z)) + (n * M::ln2_lo + c))) - f);
}

}  // namespace detail

// Error bounds are in units in the last place of the result, measured over the whole range (tests/simd_test.cpp holds
// them). NaN gives NaN; denormal arguments and results are right (unless the thread flushes them).

// e^x: 1 ulp. 0 and inf beyond the range, as IEEE rounds them; exp(0) = 1.
template <Vector V>
TAPEDECK_INLINE V exp(V x) {
  using M = detail::Math<Element<V>>;
  return detail::exp_clamped(detail::clamp(x, M::exp_zero, M::exp_inf));
}

// e^x - 1: 2 ulp, also around 0. expm1(-inf) = -1, expm1(-0.0) = -0.0.
template <Vector V>
TAPEDECK_INLINE V expm1(V x) {
  using T = Element<V>;
  using M = detail::Math<T>;
  auto [q, n] = detail::reduce(detail::clamp(x, M::expm1_one, M::exp_inf));
  V half = detail::power_of_two<V>(n - 1u);  // 2^n itself may be too large
  V y = (half * q + (half - T(0.5))) * T(2);
  return abs(x) < std::numeric_limits<T>::epsilon() / 4 ? x : y;
}

// The natural logarithm: 0.9 ulp. log(0) = -inf, log(x < 0) = NaN, log(inf) = inf, log(1) = 0.
template <Vector V>
TAPEDECK_INLINE V log(V x) {
  using T = Element<V>;
  V y = detail::log_positive(x, V{});
  y = x < detail::inf<T> ? y : x;
  return x > T(0) ? y : x == T(0) ? splat(-detail::inf<T>) : splat(std::numeric_limits<T>::quiet_NaN());
}

// log(1 + x): 1 ulp, also around 0. log1p(-1) = -inf, log1p(-0.0) = -0.0.
template <Vector V>
TAPEDECK_INLINE V log1p(V x) {
  using T = Element<V>;
  V u = x + T(1);
  V c = x < T(1) ? x - (u - T(1)) : T(1) - (u - x);  // what the addition lost
  V y = detail::log_positive(u, c / u);
  y = x < detail::inf<T> ? y : x;
  y = abs(x) < std::numeric_limits<T>::epsilon() / 4 ? x : y;
  return x > T(-1) ? y : x == T(-1) ? splat(-detail::inf<T>) : splat(std::numeric_limits<T>::quiet_NaN());
}

// tanh x = e / (e + 2), e = e^(2|x|) - 1, with the sign of x: 2.6 ulp. In [-1, 1]; tanh(-0.0) = -0.0.
template <Vector V>
TAPEDECK_INLINE V tanh(V x) {
  using T = Element<V>;
  using M = detail::Math<T>;
  V a = abs(x);
  a = a > M::tanh_one ? splat(M::tanh_one) : a;
  auto [q, n] = detail::reduce(a + a);
  V s = detail::power_of_two<V>(n);
  V e = s * q + (s - T(1));
  return detail::from_bits<V>(detail::bits(e / (e + T(2))) | detail::sign_bit(x));
}

// 1 / (1 + e^-x), as e / (1 + e) with e = e^x where x < 0: 2.5 ulp down to the smallest denormal. In [0, 1].
template <Vector V>
TAPEDECK_INLINE V sigmoid(V x) {
  using T = Element<V>;
  using M = detail::Math<T>;
  V a = -abs(x);
  V e = detail::exp_clamped(a < M::exp_zero ? splat(M::exp_zero) : a);
  return (x < T(0) ? e : splat(T(1))) / (e + T(1));
}

// The same functions of one number, with the bits of a vector's lane.
template <Scalar T>
TAPEDECK_INLINE T max(T a, T b) {
  return a > b || a != a ? a : b;
}
template <Scalar T>
TAPEDECK_INLINE T min(T a, T b) {
  return a < b || a != a ? a : b;
}
#define TAPEDECK_SCALAR(name)   \
  template <Scalar T>           \
  TAPEDECK_INLINE T name(T x) { \
    return name(splat(x))[0];   \
  }
TAPEDECK_SCALAR(abs)
TAPEDECK_SCALAR(sqrt)
TAPEDECK_SCALAR(exp)
TAPEDECK_SCALAR(expm1)
TAPEDECK_SCALAR(log)
TAPEDECK_SCALAR(log1p)
TAPEDECK_SCALAR(tanh)
TAPEDECK_SCALAR(sigmoid)
#undef TAPEDECK_SCALAR

// ---- The loop ----

// out[i] = f(in[i]...) for i < n; f maps Vec<T>... to Vec<T>. `out` may be one of the inputs, but not overlap one
// otherwise. The last n % width elements go through the same vector code, so their bits do not depend on their
// position.
template <class F, class T, class... In>
requires(std::same_as<In, T>&&...) TAPEDECK_KERNEL void map_n(T* out, size_t n, F f, const In*... in) {
  constexpr size_t width = Lanes<T>::width;
  size_t i = 0;
  for (; i + width <= n; i += width) store(out + i, f(load(in + i)...));
  if (i < n) store(out + i, f(load(in + i, n - i)...), n - i);
}

// Where a lambda of each_vector() stands: a whole vector, or the last `part` < width elements.
template <class T, bool whole>
struct Place {
  size_t offset, part;  // the first element; how many

  // The elements of p here; a part is filled up with 0.
  TAPEDECK_INLINE Vec<T> load(const T* p) const {
    if constexpr (whole)
      return simd::load(p + offset);
    else
      return simd::load(p + offset, part);
  }
  // Only the elements that are here.
  TAPEDECK_INLINE void store(T* p, Vec<T> v) const {
    if constexpr (whole)
      simd::store(p + offset, v);
    else
      simd::store(p + offset, v, part);
  }
};

// f(place) for every vector of n elements, for kernels with many arrays:
//
//   simd::each_vector<T>(n, [=](auto at) TAPEDECK_LANES { at.store(y, at.load(a) * at.load(b) + at.load(c)); });
template <class T, class F>
TAPEDECK_INLINE void each_vector(int64_t n, F f) {
  constexpr size_t width = Lanes<T>::width;
  const size_t count = static_cast<size_t>(n);
  size_t i = 0;
  for (; i + width <= count; i += width) f(Place<T, true>{i, width});
  if (i < count) f(Place<T, false>{i, count - i});
}

}  // namespace tapedeck::simd
