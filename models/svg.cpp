#include <tapedeck/models/color.h>
#include <tapedeck/models/svg.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

namespace tapedeck {
namespace {

using Text = std::back_insert_iterator<std::string>;

constexpr const char *ink = "#222", *faint = "#ddd", *unknown = "#bbb";
constexpr double cell = 28, letter = 8;  // a square; the advance of a 13 px monospace letter

// "#21918c"
std::string viridis_hex(double t) {
  const Rgb c = viridis(t);
  return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b);
}

std::string color_of(double weight, double top) {
  return std::isnan(weight) ? unknown : viridis_hex(top > 0 ? weight / top : 0);
}

void check(const char* op, const HeatMap& map) {
  if (map.rows < 1 || map.cols < 1) fail("{}: expected sizes of at least 1, got ({}, {})", op, map.rows, map.cols);
  const int64_t count = static_cast<int64_t>(map.weights.size());
  if (count % map.cols != 0 || count / map.cols != map.rows) {
    fail("{}: expected {} x {} weights, got {}", op, map.rows, map.cols, count);
  }
  auto labels = [&](const char* what, const std::vector<std::string>& given, int64_t expected) {
    if (!given.empty() && static_cast<int64_t>(given.size()) != expected) {
      fail("{}: expected {} {} labels, got {}", op, expected, what, given.size());
    }
  };
  labels("row", map.row_labels, map.rows);
  labels("column", map.col_labels, map.cols);
  for (size_t i = 0; i < map.weights.size(); ++i) {
    const double w = map.weights[i];
    if (w < 0 || std::isinf(w)) {
      fail("{}: expected weights of at least 0, got {} at ({}, {})", op, w, static_cast<int64_t>(i) / map.cols,
           static_cast<int64_t>(i) % map.cols);
    }
  }
}

double largest(const HeatMap& map) {
  double top = map.full;
  for (double w : map.weights) top = std::isnan(w) ? top : std::max(top, w);
  return top;
}

// Letters of UTF-8 text.
double letters(const std::string& text) {
  return static_cast<double>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

double longest(const std::vector<std::string>& labels) {
  double n = 0;
  for (const std::string& label : labels) n = std::max(n, letters(label));
  return n;
}

std::string opening(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 {0:g} {1:g}\" "
      "font-family=\"monospace\" font-size=\"13\" fill=\"{2}\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#fff\"/>\n",
      width, height, ink);
}

// Where the parts of a heat map lie.
struct Layout {
  double left, top, width, height;  // of the squares' corner; of the picture
  bool upright;                     // column labels stand level

  Layout(const HeatMap& map, double title_letters) : upright(longest(map.col_labels) <= 3) {
    const double label = longest(map.col_labels) * letter;
    left = 16 + longest(map.row_labels) * letter + (map.row_labels.empty() ? 0 : 8);
    top = (title_letters > 0 ? 34 : 16) + (map.col_labels.empty() ? 0 : upright ? 20 : label + 10);
    const double bar = 70, columns = static_cast<double>(map.cols) * cell;
    width = std::max(left + columns + bar, 32 + title_letters * letter);
    height = top + std::max(static_cast<double>(map.rows), 3.0) * cell + 16;
  }
};

void labels(std::string& out, const HeatMap& map, const Layout& at) {
  for (size_t i = 0; i < map.row_labels.size(); ++i) {
    fmt::format_to(Text(out), "<text x=\"{:g}\" y=\"{:g}\" text-anchor=\"end\">{}</text>\n", at.left - 8,
                   at.top + (static_cast<double>(i) + .66) * cell, xml_escaped(map.row_labels[i]));
  }
  for (size_t j = 0; j < map.col_labels.size(); ++j) {
    const double x = at.left + (static_cast<double>(j) + .5) * cell;
    if (at.upright) {
      fmt::format_to(Text(out), "<text x=\"{:g}\" y=\"{:g}\" text-anchor=\"middle\">{}</text>\n", x, at.top - 7,
                     xml_escaped(map.col_labels[j]));
    } else {
      fmt::format_to(Text(out), "<text transform=\"translate({:g} {:g}) rotate(-90)\">{}</text>\n", x + 4, at.top - 7,
                     xml_escaped(map.col_labels[j]));
    }
  }
}

// Colors from 0 to `top` at the right of the squares.
void scale(std::string& out, const HeatMap& map, const Layout& at, double top) {
  const double x = at.left + static_cast<double>(map.cols) * cell + 14;
  const double height = std::max(static_cast<double>(map.rows), 3.0) * cell, step = height / 32;
  for (int k = 0; k < 32; ++k) {
    fmt::format_to(Text(out), "<rect x=\"{:g}\" y=\"{:g}\" width=\"10\" height=\"{:g}\" fill=\"{}\"/>\n", x,
                   at.top + k * step, step + .3, viridis_hex((31 - k) / 31.0));
  }
  fmt::format_to(Text(out), "<text x=\"{0:g}\" y=\"{1:g}\">{2:.3g}</text>\n<text x=\"{0:g}\" y=\"{3:g}\">0</text>\n",
                 x + 14, at.top + 10, top, at.top + height);
}

std::string tooltip(const HeatMap& map, size_t i, size_t j) {
  std::string text;
  if (!map.row_labels.empty()) text += map.row_labels[i];
  if (!map.col_labels.empty()) text += (text.empty() ? "" : ", ") + map.col_labels[j];
  return xml_escaped(text);
}

// Draws every square; paint(i, j) gives its colour, inner(i, j) what is inside its element.
template <class Paint, class Inner>
void squares(std::string& out, const HeatMap& map, const Layout& at, Paint paint, Inner inner) {
  for (size_t i = 0; i < static_cast<size_t>(map.rows); ++i) {
    for (size_t j = 0; j < static_cast<size_t>(map.cols); ++j) {
      fmt::format_to(Text(out),
                     "<rect class=\"cell\" x=\"{:g}\" y=\"{:g}\" width=\"{}\" height=\"{}\" fill=\"{}\">{}</rect>\n",
                     at.left + static_cast<double>(j) * cell, at.top + static_cast<double>(i) * cell, cell, cell,
                     paint(i, j), inner(i, j));
    }
  }
}

double weight(const HeatMap& map, size_t i, size_t j) { return map.weights[i * static_cast<size_t>(map.cols) + j]; }

void check_frames(const char* op, std::span<const HeatMap> frames) {
  if (frames.empty()) fail("{}: expected at least one frame", op);
  for (size_t k = 0; k < frames.size(); ++k) {
    check(op, frames[k]);
    if (frames[k].rows != frames[0].rows || frames[k].cols != frames[0].cols) {
      fail("{}: frame {} has size ({}, {}), frame 0 ({}, {})", op, k, frames[k].rows, frames[k].cols, frames[0].rows,
           frames[0].cols);
    }
  }
}

}  // namespace

std::string xml_escaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) { return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u; };
    const unsigned first = byte(0);
    size_t length = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    unsigned code = length == 1 ? first : first & (0x7Fu >> length);
    bool ok = first < 0x80 || (first >= 0xC2 && first <= 0xF4);
    for (size_t k = 1; ok && k < length; ++k) {
      ok = (byte(k) & 0xC0) == 0x80;
      code = code << 6 | (byte(k) & 0x3F);
    }
    ok = ok && (code >= 0x20 || code == '\t' || code == '\n' || code == '\r') && !(code >= 0xD800 && code < 0xE000) &&
         code != 0xFFFE && code != 0xFFFF && code < 0x110000 && !(length == 3 && code < 0x800) &&
         !(length == 4 && code < 0x10000);
    if (!ok) {
      out += "\xEF\xBF\xBD";
      length = 1;
    } else if (code == '&') {
      out += "&amp;";
    } else if (code == '<') {
      out += "&lt;";
    } else if (code == '>') {
      out += "&gt;";
    } else if (code == '"') {
      out += "&quot;";
    } else if (code == '\'') {
      out += "&#39;";
    } else {
      out += text.substr(i, length);
    }
    i += length;
  }
  return out;
}

std::string svg_heat_map(const HeatMap& map) {
  check("svg_heat_map", map);
  const Layout at(map, letters(map.title));
  const double top = largest(map);
  std::string out = opening(at.width, at.height);
  if (!map.title.empty()) fmt::format_to(Text(out), "<text x=\"16\" y=\"22\">{}</text>\n", xml_escaped(map.title));
  labels(out, map, at);
  squares(
      out, map, at, [&](size_t i, size_t j) { return color_of(weight(map, i, j), top); },
      [&](size_t i, size_t j) {
        const std::string names = tooltip(map, i, j);
        return fmt::format("<title>{}{}{:.4g}</title>", names, names.empty() ? "" : ": ", weight(map, i, j));
      });
  scale(out, map, at, top);
  return out + "</svg>\n";
}

std::string svg_film(std::span<const HeatMap> frames, double seconds_per_frame) {
  check_frames("svg_film", frames);
  if (!(seconds_per_frame > 0 && std::isfinite(seconds_per_frame))) {
    fail("svg_film: expected a time above 0 for each frame, got {}", seconds_per_frame);
  }
  const HeatMap& first = frames.front();
  double title = 0, top = 0;
  for (const HeatMap& frame : frames) {
    title = std::max(title, letters(frame.title));
    top = std::max(top, largest(frame));
  }
  // The last frame stays for a quarter of the film.
  const size_t n = frames.size(), slots = n + (n + 3) / 4;
  auto moment = [&](size_t k) { return fmt::format("{:.5g}", static_cast<double>(k) / static_cast<double>(slots)); };
  std::string moments;
  for (size_t k = 0; k < n; ++k) moments += (k ? ";" : "") + moment(k);
  const std::string timing = fmt::format("dur=\"{:g}s\" calcMode=\"discrete\" repeatCount=\"indefinite\"",
                                         seconds_per_frame * static_cast<double>(slots));

  const Layout at(first, title);
  std::string out = opening(at.width, at.height);
  for (size_t k = 0; k < n; ++k) {
    if (frames[k].title.empty()) continue;
    const bool last = k + 1 == n;
    std::string show;
    if (n > 1) {
      show = fmt::format("<animate attributeName=\"visibility\" values=\"{}{}{}\" keyTimes=\"{}{}{}\" {}/>",
                         k > 0 ? "hidden;" : "", "visible", last ? "" : ";hidden", k > 0 ? "0;" : "", moment(k),
                         last ? "" : ";" + moment(k + 1), timing);
    }
    fmt::format_to(Text(out), "<text x=\"16\" y=\"22\" visibility=\"{}\">{}{}</text>\n", last ? "visible" : "hidden",
                   xml_escaped(frames[k].title), show);
  }
  labels(out, first, at);
  squares(
      out, first, at, [&](size_t i, size_t j) { return color_of(weight(frames.back(), i, j), top); },
      [&](size_t i, size_t j) {
        std::string inner = fmt::format("<title>{}</title>", tooltip(first, i, j));
        if (n == 1) return inner;
        std::string colors;
        for (const HeatMap& frame : frames) colors += (colors.empty() ? "" : ";") + color_of(weight(frame, i, j), top);
        return inner + fmt::format("<animate attributeName=\"fill\" values=\"{}\" keyTimes=\"{}\" {}/>", colors,
                                   moments, timing);
      });
  scale(out, first, at, top);
  return out + "</svg>\n";
}

std::string json_film(std::span<const HeatMap> frames) {
  check_frames("json_film", frames);
  nlohmann::ordered_json film = {{"schema", "tapedeck-film/1"},
                                 {"rows", frames[0].row_labels},
                                 {"columns", frames[0].col_labels},
                                 {"frames", nlohmann::ordered_json::array()}};
  for (const HeatMap& frame : frames) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (auto row = frame.weights.begin(); row != frame.weights.end(); row += frame.cols) {
      rows.push_back(std::vector<double>(row, row + frame.cols));
    }
    film["frames"].push_back({{"title", frame.title}, {"weights", rows}});
  }
  return film.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

// ---- Line charts ----------------------------------------------------------------------------------------------------

namespace {

// An axis: values low..high on pixels from..to.
struct Span {
  Axis axis;
  double low = HUGE_VAL, high = -HUGE_VAL, from = 0, to = 0;

  bool shows(double v) const { return std::isfinite(v) && (axis == Axis::linear || v > 0); }
  void include(double v) { low = std::min(low, v), high = std::max(high, v); }
  // Ends that can be divided by; both are ticks on a linear axis.
  void round() {
    if (low > high) low = axis == Axis::linear ? 0 : 1, high = axis == Axis::linear ? 1 : 10;
    if (axis == Axis::logarithmic) {
      if (low == high) low /= 2, high *= 2;
      return;
    }
    if (low == high) low -= std::abs(low) / 2 + (low == 0), high += std::abs(high) / 2 + (high == 0);
    const double unit = step();
    low = std::floor(low / unit + 1e-9) * unit, high = std::ceil(high / unit - 1e-9) * unit;
  }
  // 1, 2 or 5 times a power of ten; about seven of them fill the axis.
  double step() const {
    const double rough = high / 7 - low / 7, power = std::pow(10, std::floor(std::log10(rough)));
    for (double factor : {1., 2., 5.}) {
      if (factor * power >= rough * .999) return factor * power;
    }
    return 10 * power;
  }
  std::vector<double> ticks() const {
    std::vector<double> found;
    if (axis == Axis::linear) {
      const double unit = step();
      for (double k = std::ceil(low / unit - 1e-9) + 0.; k * unit <= high + unit * 1e-9; ++k) found.push_back(k * unit);
      return found;
    }
    const double decades = std::log10(high / low);
    const std::vector<double> factors = decades > 3 ? std::vector{1.} : std::vector{1., 2., 5.};
    const double skip = std::max(1., std::ceil(decades / 8));
    for (double e = std::floor(std::log10(low)); e <= std::log10(high); e += skip) {
      for (double factor : factors) {
        const double v = factor * std::pow(10, e);
        if (v >= low * .9999 && v <= high * 1.0001) found.push_back(v);
      }
    }
    return found;
  }
  double place(double v) const {
    const double t = axis == Axis::linear ? (v - low) / (high - low) : std::log(v / low) / std::log(high / low);
    return from + t * (to - from);
  }
};

// Okabe and Ito's colours, told apart by everybody.
constexpr std::array<const char*, 7> hues = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000"};

}  // namespace

std::string svg_line_chart(std::span<const Series> series, const ChartOptions& options) {
  if (options.width < 200 || options.height < 150) {
    fail("svg_line_chart: expected a picture of at least 200 x 150, got {} x {}", options.width, options.height);
  }
  Span x{.axis = options.x_axis}, y{.axis = options.y_axis};
  for (const Series& line : series) {
    if (line.x.size() != line.y.size()) {
      fail("svg_line_chart: series '{}' has {} x and {} y", line.name, line.x.size(), line.y.size());
    }
    for (size_t i = 0; i < line.x.size(); ++i) {
      if (x.shows(line.x[i]) && y.shows(line.y[i])) x.include(line.x[i]), y.include(line.y[i]);
    }
  }
  x.round(), y.round();
  const double legend = series.empty() ? 0 : 18;
  x.from = 74, x.to = options.width - 24;
  y.from = options.height - 50, y.to = (options.title.empty() ? 14 : 34) + legend;

  std::string out = opening(options.width, options.height);
  if (!options.title.empty()) {
    fmt::format_to(Text(out), "<text x=\"16\" y=\"22\">{}</text>\n", xml_escaped(options.title));
  }
  for (double v : x.ticks()) {
    fmt::format_to(Text(out),
                   "<path d=\"M{0:.2f} {1:g}V{2:g}\" stroke=\"{3}\"/><text x=\"{0:.2f}\" y=\"{4:g}\" "
                   "text-anchor=\"middle\">{5:.4g}</text>\n",
                   x.place(v), y.from, y.to, faint, y.from + 17, v);
  }
  for (double v : y.ticks()) {
    fmt::format_to(Text(out),
                   "<path d=\"M{0:g} {1:.2f}H{2:g}\" stroke=\"{3}\"/><text x=\"{4:g}\" y=\"{5:.2f}\" "
                   "text-anchor=\"end\">{6:.4g}</text>\n",
                   x.from, y.place(v), x.to, faint, x.from - 7, y.place(v) + 4, v);
  }
  fmt::format_to(Text(out), "<path d=\"M{0:g} {1:g}V{2:g}H{3:g}\" fill=\"none\" stroke=\"{4}\"/>\n", x.from, y.to,
                 y.from, x.to, ink);
  fmt::format_to(Text(out), "<text x=\"{:g}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (x.from + x.to) / 2,
                 options.height - 12, xml_escaped(options.x_label));
  fmt::format_to(Text(out), "<text transform=\"translate(16 {:g}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                 (y.from + y.to) / 2, xml_escaped(options.y_label));
  double legend_x = x.from;
  for (size_t k = 0; k < series.size(); ++k) {
    const Series& line = series[k];
    const char* hue = hues[k % hues.size()];
    const std::string name = xml_escaped(line.name);
    fmt::format_to(
        Text(out),
        "<path d=\"M{:g} {:g}h16\" stroke=\"{}\" stroke-width=\"2\"/><text x=\"{:g}\" y=\"{:g}\">{}</text>\n", legend_x,
        y.to - 14, hue, legend_x + 20, y.to - 10, name);
    legend_x += 36 + letters(line.name) * letter;
    std::string path;
    bool drawing = false;
    for (size_t i = 0; i < line.x.size(); ++i) {
      const bool shown = x.shows(line.x[i]) && y.shows(line.y[i]);
      // A lone point is a line of no length, which round caps make a dot.
      if (shown) {
        fmt::format_to(Text(path), "{}{:.2f} {:.2f}", drawing ? "L" : "M", x.place(line.x[i]), y.place(line.y[i]));
        if (!drawing) path += "h0";
      }
      drawing = shown;
    }
    fmt::format_to(Text(out),
                   "<path class=\"series\" d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" "
                   "stroke-linecap=\"round\" stroke-linejoin=\"round\"><title>{}</title></path>\n",
                   path.empty() ? "M0 0" : path, hue, name);
  }
  return out + "</svg>\n";
}

}  // namespace tapedeck
