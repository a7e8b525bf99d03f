// Modules: plain structs of parameters and other modules, and the walk over them that gives parameters their paths.
//
//   struct Feedforward {
//     Linear hidden, out;
//     static void fields(auto& self, auto&& f) { f("hidden", self.hidden), f("out", self.out); }
//   };
//   named_parameters(model);   // hidden.weight, hidden.bias, out.weight, out.bias
//
// fields names each field once, in the order of PyTorch's state_dict, and serves const and non-const alike. A field is
// a Parameter, a module, or std::vector, std::optional or std::variant of these: elements of a vector are numbered
// ("layers.0"), optional and variant add nothing to the path, and neither does an empty name.
#pragma once

#include <tapedeck/core/var.h>

#include <concepts>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace tapedeck {

// Tensors by name, in order: a file's, an optimiser's.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// A struct with a static fields(self, f).
template <class M>
concept Module = requires(M& module) {
  std::remove_const_t<M>::fields(module, [](std::string_view, auto&&) {});
};

namespace detail {

template <class T>
inline constexpr bool is_vector = false;
template <class T, class A>
inline constexpr bool is_vector<std::vector<T, A>> = true;
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;
template <class T>
inline constexpr bool is_variant = false;
template <class... T>
inline constexpr bool is_variant<std::variant<T...>> = true;

using Path = std::basic_string<char, std::char_traits<char>, CachingAllocator<char>>;

// Calls f(path, parameter) for every defined parameter of a field. `path` is one buffer that grows and shrinks.
template <class Field, class F>
void walk(Field& field, Path& path, F& f) {
  using T = std::remove_const_t<Field>;
  auto below = [&](std::string_view name, auto& child) {
    size_t length = path.size();
    if (length > 0 && !name.empty()) path += '.';
    path += name;
    walk(child, path, f);
    path.resize(length);
  };
  if constexpr (std::same_as<T, Parameter>) {
    if (field.defined()) f(std::string_view(path), field);
  } else if constexpr (is_vector<T>) {
    size_t i = 0;
    for (auto& element : field) below(std::to_string(i++), element);
  } else if constexpr (is_optional<T>) {
    if (field) walk(*field, path, f);
  } else if constexpr (is_variant<T>) {
    std::visit([&](auto& alternative) { walk(alternative, path, f); }, field);
  } else if constexpr (!std::same_as<T, std::monostate>) {
    static_assert(
        Module<Field>,
        "a field is a Parameter, a module (a struct with static fields()), or a std::vector, std::optional or "
        "std::variant of these");
    T::fields(field, below);
  }
}

// The first path of each identity. Throws where one path names two parameters.
std::vector<NamedParameter> first_paths(std::vector<NamedParameter> all);

// New parameters for old ones, the same new one for the same old one.
class Copies {
 public:
  explicit Copies(std::optional<DType> dtype) : dtype_(dtype) {}
  Parameter of(const Parameter& parameter);

 private:
  std::optional<DType> dtype_;
  std::vector<std::pair<uint64_t, Parameter>> made_;
};

template <Module M>
M copy(const M& module, std::optional<DType> dtype);

}  // namespace detail

// Calls f(path, parameter) for every defined parameter in the order of the fields, under each of its paths. `path` is a
// std::string_view that dies with the call; `parameter` is const where the module is.
template <Module M, class F>
void for_each_parameter(M& module, F&& f) {
  detail::Path path;
  detail::walk(module, path, f);
}

// Every path of every defined parameter: tied ones come several times, as PyTorch's state_dict lists them.
template <Module M>
std::vector<NamedParameter> all_paths(const M& module) {
  std::vector<NamedParameter> all;
  for_each_parameter(module, [&](std::string_view path, const Parameter& parameter) {
    all.push_back({std::string(path), parameter});
  });
  return all;
}

// The defined parameters, each identity once, at its first path. Throws where one path names two parameters.
template <Module M>
std::vector<NamedParameter> named_parameters(const M& module) {
  return detail::first_paths(all_paths(module));
}

// Number of trained elements; tied parameters count once.
template <Module M>
int64_t parameter_count(const M& module) {
  int64_t count = 0;
  for (const NamedParameter& p : named_parameters(module)) count += p.parameter.value().numel();
  return count;
}

// A module with parameters of its own: values copied, what is tied in `module` is tied in the copy.
template <Module M>
M clone(const M& module) {
  return detail::copy(module, std::nullopt);
}

// The same with parameters converted to f32 or f64; any other dtype throws.
template <Module M>
M to(const M& module, DType dtype) {
  if (!is_floating(dtype)) fail("to: parameters are f32 or f64, not {}", dtype);
  return detail::copy(module, dtype);
}

template <Module M>
M detail::copy(const M& module, std::optional<DType> dtype) {
  M result = module;
  Copies copies(dtype);
  for_each_parameter(result, [&](std::string_view, Parameter& parameter) { parameter = copies.of(parameter); });
  return result;
}

}  // namespace tapedeck
