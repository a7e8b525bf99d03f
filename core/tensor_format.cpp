// Printing as NumPy does: aligned columns, the shortest digits that tell neighbours apart up to eight places,
// scientific notation for extreme ranges, and an ellipsis inside long axes of tensors with more than a thousand
// elements.
#include <tapedeck/core/tensor.h>

#include <algorithm>
#include <cmath>

namespace tapedeck {
namespace {

constexpr int64_t summarise_above = 1000, edge_items = 3;
constexpr size_t line_width = 75;
constexpr int precision = 8;

// Digits of |x| without trailing zeros: "0.1", "25."; the shortest that read back as the same element.
std::string positional(double x, bool is_float) {
  std::string best;
  for (int digits = 0; digits <= precision; ++digits) {
    best = fmt::format("{:.{}f}", x, digits);
    double back = std::stod(best);
    if (is_float ? static_cast<float>(back) == static_cast<float>(x) : back == x) break;
  }
  if (best.find('.') == std::string::npos) best += '.';
  while (best.back() == '0') best.pop_back();
  return best;
}

std::string scientific(double x, bool is_float) {
  std::string best;
  for (int digits = 0; digits <= precision; ++digits) {
    best = fmt::format("{:.{}e}", x, digits);
    double back = std::stod(best);
    if (is_float ? static_cast<float>(back) == static_cast<float>(x) : back == x) break;
  }
  size_t e = best.find('e');
  std::string mantissa = best.substr(0, e);
  if (mantissa.find('.') == std::string::npos) mantissa += '.';
  return mantissa + best.substr(e);
}

class Printer {
 public:
  explicit Printer(const Tensor& tensor) : tensor_(tensor.contiguous()), summarised_(tensor.numel() > summarise_above) {
    collect(0, 0);
    choose_format();
  }

  std::string text() {
    std::string out;
    write(out, 0, 0, 1);
    return out;
  }

 private:
  bool skips(int64_t i, int64_t n) const {
    return summarised_ && n > 2 * edge_items && i >= edge_items && i < n - edge_items;
  }

  double element(int64_t offset) const {
    return dispatch(tensor_.dtype(), [&]<class T> { return static_cast<double>(tensor_.data<T>()[offset]); });
  }

  void collect(int dim, int64_t offset) {
    if (dim == tensor_.rank()) {
      shown_.push_back(element(offset));
      return;
    }
    for (int64_t i = 0; i < tensor_.shape()[dim]; ++i) {
      if (!skips(i, tensor_.shape()[dim])) collect(dim + 1, offset + i * tensor_.strides()[dim]);
    }
  }

  void choose_format() {
    if (!is_floating(tensor_.dtype())) {
      for (double v : shown_) width_ = std::max(width_, plain(v).size());
      return;
    }
    double smallest = HUGE_VAL, largest = 0;
    for (double v : shown_) {
      if (!std::isfinite(v) || v == 0) continue;
      smallest = std::min(smallest, std::abs(v));
      largest = std::max(largest, std::abs(v));
    }
    scientific_ = largest > 0 && (largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1000.0 * 1e5);
    for (double v : shown_) {
      if (!std::isfinite(v)) continue;
      std::string text = scientific_ ? scientific(v, is_float()) : positional(v, is_float());
      size_t point = text.find('.'), end = std::min(text.find('e'), text.size());
      left_ = std::max(left_, point);
      right_ = std::max(right_, end - point - 1);
    }
    for (double v : shown_) width_ = std::max(width_, number(v).size());
  }

  bool is_float() const { return tensor_.dtype() == DType::f32; }

  std::string plain(double v) const {
    if (tensor_.dtype() == DType::boolean) return v != 0 ? "True" : "False";
    return fmt::format("{:.0f}", v);
  }

  std::string number(double v) const {
    if (!is_floating(tensor_.dtype())) return plain(v);
    if (std::isnan(v)) return "nan";
    if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
    if (scientific_) return fmt::format("{:.{}e}", v, right_);
    std::string text = positional(v, is_float());
    text += std::string(right_ - (text.size() - text.find('.') - 1), ' ');
    return text;
  }

  std::string cell(double v) const {
    std::string text = number(v);
    return std::string(width_ - std::min(width_, text.size()), ' ') + text;
  }

  void write(std::string& out, int dim, int64_t offset, size_t indent) {
    if (dim == tensor_.rank()) {
      out += number(element(offset));
      return;
    }
    int64_t n = tensor_.shape()[dim], step = tensor_.strides()[dim];
    bool last = dim == tensor_.rank() - 1;
    out += '[';
    size_t column = indent;
    for (int64_t i = 0; i < n; ++i) {
      std::string item;
      if (skips(i, n)) {
        item = "...";
        i = n - edge_items - 1;
      } else if (last) {
        item = cell(element(offset + i * step));
      }
      bool first = i == 0;
      if (last) {
        if (!first && column + item.size() + 1 > line_width) {
          out += '\n' + std::string(indent, ' ');
          column = indent;
        } else if (!first) {
          out += ' ';
          ++column;
        }
        out += item;
        column += item.size();
      } else {
        if (!first) out += std::string(static_cast<size_t>(tensor_.rank() - 1 - dim), '\n') + std::string(indent, ' ');
        if (item.empty())
          write(out, dim + 1, offset + i * step, indent + 1);
        else
          out += item;
      }
    }
    out += ']';
  }

  Tensor tensor_;
  bool summarised_, scientific_ = false;
  std::vector<double> shown_;
  size_t left_ = 0, right_ = 0, width_ = 0;
};

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  if (tensor.numel() == 0) return "[]";
  return Printer(tensor).text();
}

}  // namespace tapedeck
