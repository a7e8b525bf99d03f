// The four element types, and the one place where a run-time dtype becomes a compile-time type.
#pragma once

#include <tapedeck/core/error.h>

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tapedeck {

// The type of a tensor's elements: float, double, int64_t, bool.
enum class DType : uint8_t { f32, f64, i64, boolean };

// "f32", "f64", "i64" or "boolean".
constexpr std::string_view name(DType dtype) {
  constexpr std::string_view names[] = {"f32", "f64", "i64", "boolean"};
  return names[static_cast<int>(dtype)];
}

// Bytes of one element.
constexpr int64_t size_of(DType dtype) {
  constexpr int64_t sizes[] = {4, 8, 8, 1};
  return sizes[static_cast<int>(dtype)];
}

// True for f32 and f64.
constexpr bool is_floating(DType dtype) { return dtype == DType::f32 || dtype == DType::f64; }

// The dtype of elements of type T; any type but the four does not compile.
template <class T>
inline constexpr DType dtype_of = [] {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::i64;
  else
    static_assert(std::is_same_v<T, bool>, "tensor elements are float, double, int64_t or bool");
  return DType::boolean;
}();

// Calls f.operator()<T>() with the element type of `dtype`, any of the four.
template <class F>
decltype(auto) dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::i64:
      return f.template operator()<int64_t>();
    default:
      return f.template operator()<bool>();
  }
}

// The same for floating tensors only; anything else throws, naming the op.
template <class F>
decltype(auto) dispatch_floating(const char* op, DType dtype, F&& f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  if (dtype == DType::f64) return f.template operator()<double>();
  fail("{}: expected a floating tensor (f32 or f64), got {}; convert with .to(DType::f64)", op, name(dtype));
}

// The same for f32, f64 and i64.
template <class F>
decltype(auto) dispatch_number(const char* op, DType dtype, F&& f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  if (dtype == DType::f64) return f.template operator()<double>();
  if (dtype == DType::i64) return f.template operator()<int64_t>();
  fail("{}: expected numbers (f32, f64 or i64), got {}; convert with .to(DType::f64)", op, name(dtype));
}

}  // namespace tapedeck

template <>
struct fmt::formatter<tapedeck::DType> : tapedeck::detail::PlainFormatter {
  auto format(tapedeck::DType dtype, auto& context) const { return write(tapedeck::name(dtype), context); }
};
