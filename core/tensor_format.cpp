// Printing as NumPy does: aligned columns, the shortest digits that tell neighbours apart up to eight places,
// scientific notation for extreme ranges, and an ellipsis inside long axes of tensors with more than a thousand
// elements.
#include <tapedeck/core/tensor.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tapedeck {
namespace {

constexpr int64_t summarise_above = 1000, edge_items = 3;
constexpr size_t line_width = 75;
constexpr int precision = 8;

// sign d.ddd x 10^exponent, without trailing zeros: the fewest digits that read back as the same element.
struct Decimal {
  std::string sign, digits;
  int exponent;
};

template <class T>
Decimal shortest(T x) {
  char buffer[64];
  const char* end = std::to_chars(buffer, buffer + sizeof buffer, std::abs(x), std::chars_format::scientific).ptr;
  const char* e = std::find(static_cast<const char*>(buffer), end, 'e');
  Decimal decimal{std::signbit(x) ? "-" : "", {}, 0};
  std::copy_if(static_cast<const char*>(buffer), e, std::back_inserter(decimal.digits),
               [](char c) { return c != '.'; });
  std::from_chars(e + (e[1] == '+' ? 2 : 1), end, decimal.exponent);
  return decimal;
}

void drop_zeros(std::string& text, size_t from) {
  while (text.size() > from && text.back() == '0') text.pop_back();
}

// "0.1", "-25.", "1234.5": at most `places` digits behind the point, no trailing zeros there.
template <class T>
std::string positional(T x, int places) {
  auto [sign, digits, exponent] = shortest(x);
  if (static_cast<int>(digits.size()) - 1 - exponent > places) {
    std::string text = fmt::format("{:.{}f}", static_cast<double>(x), places);
    drop_zeros(text, text.find('.') + 1);
    return text;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  size_t left = static_cast<size_t>(exponent) + 1;
  if (digits.size() < left && places == precision) return fmt::format("{:.0f}.", static_cast<double>(x));
  if (digits.size() < left) digits.append(left - digits.size(), '0');  // a lone element
  return sign + digits.insert(left, ".");
}

// "1.e-05", "-1.25e+10": at most `places` digits behind the point, no trailing zeros there.
template <class T>
std::string scientific(T x, int places) {
  auto [sign, digits, exponent] = shortest(x);
  if (static_cast<int>(digits.size()) - 1 > places) {
    std::string text = fmt::format("{:.{}e}", static_cast<double>(x), places);
    std::string mantissa = text.substr(0, text.find('e'));
    drop_zeros(mantissa, mantissa.find('.') + 1);
    return mantissa + text.substr(text.find('e'));
  }
  return fmt::format("{}{}e{}{:02}", sign, digits.insert(1, "."), exponent < 0 ? '-' : '+', std::abs(exponent));
}

// A lone element: all its digits.
template <class T>
std::string scalar_text(T x) {
  if constexpr (std::is_same_v<T, bool>) {
    return x ? "True" : "False";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return std::to_string(x);
  } else {
    if (std::isnan(x)) return "nan";
    if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
    T size = std::abs(x);
    constexpr int all = 400;
    if (size == 0 || (static_cast<double>(size) >= 1e-4 && static_cast<double>(size) < 1e16)) {
      std::string text = positional(x, all);
      return text.back() == '.' ? text + '0' : text;
    }
    std::string text = scientific(x, all);
    size_t e = text.find('e');
    return text[e - 1] == '.' ? text.erase(e - 1, 1) : text;
  }
}

// How the elements of one tensor are written: all with the same width.
template <class T>
class Format {
 public:
  explicit Format(const std::vector<T>& shown) {
    if constexpr (std::is_same_v<T, bool>) {
      width_ = 5;
    } else if constexpr (std::is_same_v<T, int64_t>) {
      for (int64_t v : shown) width_ = std::max(width_, std::to_string(v).size());
    } else {
      choose(shown);
    }
  }

  std::string operator()(T v) const {
    std::string text = number(v);
    return std::string(width_ - std::min(width_, text.size()), ' ') + text;
  }

 private:
  void choose(const std::vector<T>& shown) {
    T smallest = std::numeric_limits<T>::infinity(), largest = 0;
    for (T v : shown) {
      if (!std::isfinite(v) || v == 0) continue;
      smallest = std::min(smallest, std::abs(v));
      largest = std::max(largest, std::abs(v));
    }
    scientific_ = largest > 0 && (static_cast<double>(largest) >= 1e8 || static_cast<double>(smallest) < 1e-4 ||
                                  largest / smallest > T{1000});
    size_t left = 0, special = 0;
    for (T v : shown) {
      if (!std::isfinite(v)) {
        special = std::max(special, scalar_text(v).size());
        continue;
      }
      std::string text = scientific_ ? scientific(v, precision) : positional(v, precision);
      size_t point = text.find('.'), end = std::min(text.find('e'), text.size());
      left = std::max(left, point);
      right_ = std::max(right_, end - point - 1);
      if (scientific_) exponent_ = std::max(exponent_, text.size() - end - 2);
    }
    width_ = std::max(left + 1 + right_ + (scientific_ ? 2 + exponent_ : 0), special);
  }

  std::string number(T v) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (!std::isfinite(v)) return scalar_text(v);
      if (!scientific_) {
        std::string text = positional(v, precision);
        return text.append(right_ - (text.size() - text.find('.') - 1), ' ');
      }
      // `right_` true digits, not zeros behind the shortest ones.
      std::string text = fmt::format("{:#.{}e}", static_cast<double>(v), right_);
      size_t digits = text.find('e') + 2;
      text.insert(digits, exponent_ - (text.size() - digits), '0');
      return text;
    } else {
      return scalar_text(v);
    }
  }

  bool scientific_ = false;
  size_t right_ = 0, exponent_ = 0, width_ = 0;
};

template <class T>
class Printer {
 public:
  explicit Printer(const Tensor& tensor)
      : tensor_(tensor), summarised_(tensor.numel() > summarise_above), format_(shown(0, 0)) {}

  std::string text() {
    write(0, 0, 1);
    return std::move(out_);
  }

 private:
  bool skips(int64_t i, int64_t n) const {
    return summarised_ && n > 2 * edge_items && i >= edge_items && i < n - edge_items;
  }

  std::vector<T> shown(int dim, int64_t offset) const {
    if (dim == tensor_.rank()) return {tensor_.template data<T>()[offset]};
    std::vector<T> values;
    for (int64_t i = 0; i < tensor_.shape()[dim]; ++i) {
      if (skips(i, tensor_.shape()[dim])) continue;
      std::vector<T> part = shown(dim + 1, offset + i * tensor_.strides()[dim]);
      values.insert(values.end(), part.begin(), part.end());
    }
    return values;
  }

  // `indent` is where the line's first item stands; the closing brackets of the outer axes stay free at its end.
  void write(int dim, int64_t offset, size_t indent) {
    int64_t n = tensor_.shape()[dim], step = tensor_.strides()[dim];
    bool last = dim == tensor_.rank() - 1;
    const size_t width = line_width - indent;
    out_ += '[';
    size_t column = indent;
    for (int64_t i = 0; i < n; ++i) {
      bool first = i == 0, dots = skips(i, n);
      if (last) {
        std::string item = dots ? "..." : format_(tensor_.template data<T>()[offset + i * step]);
        if (!first) {
          bool wraps = column + 1 + item.size() > width;
          while (wraps && out_.back() == ' ') out_.pop_back();
          out_ += wraps ? '\n' + std::string(indent, ' ') : " ";
          column = wraps ? indent : column + 1;
        }
        out_ += item;
        column += item.size();
      } else {
        if (!first) out_ += std::string(static_cast<size_t>(tensor_.rank() - 1 - dim), '\n') + std::string(indent, ' ');
        if (dots)
          out_ += "...";
        else
          write(dim + 1, offset + i * step, indent + 1);
      }
      if (dots) i = n - edge_items - 1;
    }
    out_ += ']';
  }

  const Tensor& tensor_;
  bool summarised_;
  Format<T> format_;
  std::string out_;
};

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  if (tensor.numel() == 0) return "[]";
  return dispatch(tensor.dtype(), [&]<class T> {
    return tensor.rank() == 0 ? scalar_text(*tensor.data<T>()) : Printer<T>(tensor).text();
  });
}

}  // namespace tapedeck
