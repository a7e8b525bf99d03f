// Errors: one exception type, one builder. Messages read "op: what was expected, what came, where, what to do".
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tapedeck {

// Everything this library throws on wrong input or wrong use.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
[[noreturn]] void throw_error(const std::string& message);
}

// Throws Error with a message in fmt's syntax: fail("bmm: inner sizes differ: a {}, b {}", a.shape(), b.shape()).
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  detail::throw_error(fmt::format(text, std::forward<Args>(args)...));
}

namespace detail {
// For formatters of our types: "{}" only.
struct PlainFormatter {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <class Context>
  auto write(std::string_view text, Context& context) const {
    return std::copy(text.begin(), text.end(), context.out());  // format_to does not link with clang 14 and libfmt 9
  }
};
}  // namespace detail

}  // namespace tapedeck
