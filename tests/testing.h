// What several test files need: literals, comparisons, the text of an error.
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/core/tensor.h>

#include <doctest/doctest.h>
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace tapedeck::testing {

inline constexpr double inf = std::numeric_limits<double>::infinity();
inline constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

inline Tensor f32(const NestedList& values) { return tensor(values, DType::f32); }
inline Tensor f64(const NestedList& values) { return tensor(values, DType::f64); }

// The text of the Error that f() throws; empty if it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// True if every part is in the text. What is missing appears among doctest's messages.
inline bool says(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts) {
    if (text.find(part) == std::string::npos) {
      MESSAGE("\"" << std::string(part) << "\" is not in \"" << text << "\"");
      return false;
    }
  }
  return true;
}

inline std::vector<double> values(const Tensor& x) { return x.to(DType::f64).to_vector<double>(); }

// Equal shapes and dtypes, and max |a - b| <= tolerance * max(1, max |b|). NaN is close to nothing.
inline bool close(const Tensor& a, const Tensor& b, double tolerance) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) {
    MESSAGE(std::string(name(a.dtype())) << to_string(a.shape()) << " against " << std::string(name(b.dtype()))
                                         << to_string(b.shape()));
    return false;
  }
  std::vector<double> u = values(a), v = values(b);
  double scale = 1;
  for (double x : v) scale = std::max(scale, std::abs(x));
  for (size_t i = 0; i < u.size(); ++i) {
    if (!(std::abs(u[i] - v[i]) <= tolerance * scale)) {
      MESSAGE("element " << i << ": " << u[i] << " against " << v[i]);
      return false;
    }
  }
  return true;
}

// Equal shapes, dtypes and bits.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  Tensor u = a.contiguous(), v = b.contiguous();
  return dispatch(a.dtype(), [&]<class T> {
    return u.numel() == 0 || std::memcmp(u.data<T>(), v.data<T>(), static_cast<size_t>(u.numel()) * sizeof(T)) == 0;
  });
}

inline bool all_zero(const Tensor& x) {
  for (double v : values(x)) {
    if (v != 0) return false;
  }
  return true;
}

inline Tensor normal(const Shape& shape, DType dtype, uint64_t seed) {
  Rng rng(seed);
  Tensor x = Tensor::empty(shape, DType::f64);
  double* p = x.mutable_data<double>();
  for (int64_t i = 0; i < x.numel(); ++i) p[i] = rng.normal();
  return x.to(dtype);
}

inline Tensor range(const Shape& shape, DType dtype = DType::f64) {
  return Tensor::arange(shape.numel(), dtype).reshape(shape);
}

inline Tensor random(const Shape& shape, DType dtype, Rng& rng) { return normal(shape, dtype, rng.next()); }

// max|a - b| / max|b|; inf where shapes differ or anything is not finite.
inline double distance(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return inf;
  std::vector<double> u = values(a), v = values(b);
  double difference = 0, scale = 0;
  for (size_t i = 0; i < u.size(); ++i) {
    if (!std::isfinite(u[i]) || !std::isfinite(v[i])) return inf;
    difference = std::max(difference, std::abs(u[i] - v[i]));
    scale = std::max(scale, std::abs(v[i]));
  }
  return difference == 0 ? 0 : difference / scale;
}

// Runs f on a thread with a stack of 1 MB: recursion over a deep tape would not fit.
inline void on_a_small_stack(const std::function<void()>& f) {
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, size_t{1} << 20) == 0);
  pthread_t thread;
  auto run = [](void* function) -> void* {
    (*static_cast<const std::function<void()>*>(function))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&f)) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

}  // namespace tapedeck::testing
