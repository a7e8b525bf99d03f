#include <tapedeck/models/color.h>
#include <tapedeck/models/terminal.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace tapedeck {
namespace {

constexpr std::string_view density = " .:-=+*#%@";

// The width of a line that goes to a file: no bar, no cut.
constexpr int64_t plain = 0;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string cell(double weight, double top, Color color) {
  if (std::isnan(weight)) return "??";
  double t = top > 0.0 ? std::min(weight / top, 1.0) : 0.0;
  if (color == Color::ansi24) {
    Rgb c = viridis(t);
    return fmt::format("\x1b[48;2;{};{};{}m  ", c.r, c.g, c.b);
  }
  // Any weight that rounds to nothing is blank; the largest is '@'.
  size_t i = static_cast<size_t>(std::lround(t * static_cast<double>(density.size() - 1)));
  return std::string(2, density[i]);
}

void trim_right(std::string& text) { text.erase(text.find_last_not_of(' ') + 1); }

int64_t longest(std::span<const std::string> labels) {
  size_t n = 0;
  for (const std::string& label : labels) n = std::max(n, label.size());
  return static_cast<int64_t>(n);
}

// Three digits: 1234567 -> "1.23M", 41234 -> "41.2k", 398000 -> "398k".
std::string short_number(double x) {
  const char* unit = "";
  for (const char* next : {"k", "M", "G"}) {
    if (x < 999.5) break;
    x /= 1e3;
    unit = next;
  }
  const int decimals = *unit == '\0' || x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", x, decimals, unit);
}

// 75 -> "1:15", 3675 -> "1:01:15".
std::string clock_time(double seconds) {
  int64_t s = std::llround(std::clamp(seconds, 0.0, 3.6e8));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

int64_t window_width(std::FILE* file) {
  winsize size{};
  if (ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

bool is_terminal(std::FILE* file) { return file && isatty(fileno(file)) == 1; }

Color color_support(std::FILE* file) {
  if (!is_terminal(file) || !variable("NO_COLOR").empty()) return Color::none;
  std::string_view term = variable("TERM"), colorterm = variable("COLORTERM");
  if (term.empty() || term == "dumb") return Color::none;
  if (colorterm == "truecolor" || colorterm == "24bit") return Color::ansi24;
  // Terminals in use that name 256 colours take 24-bit ones too; the Linux console and the old hardware names do not.
  bool promises = term.ends_with("-direct") || term.ends_with("-256color") || term.starts_with("xterm-kitty") ||
                  term.starts_with("alacritty") || term.starts_with("foot");
  return promises ? Color::ansi24 : Color::none;
}

std::string heat_map(std::span<const double> weights, int64_t rows, int64_t cols,
                     std::span<const std::string> row_labels, std::span<const std::string> col_labels, Color color,
                     double full) {
  auto size = [](const auto& span) { return static_cast<int64_t>(span.size()); };
  if (rows < 0 || cols < 0) fail("heat_map: expected sizes of at least 0, got ({}, {})", rows, cols);
  if (cols > 0 && rows > size(weights) / cols) {
    fail("heat_map: expected {} weights for ({}, {}), got {}", static_cast<double>(rows) * static_cast<double>(cols),
         rows, cols, weights.size());
  }
  if (size(weights) != rows * cols) {
    fail("heat_map: expected {} weights for ({}, {}), got {}", rows * cols, rows, cols, weights.size());
  }
  if (!row_labels.empty() && size(row_labels) != rows) {
    fail("heat_map: expected {} row labels, got {}", rows, row_labels.size());
  }
  if (!col_labels.empty() && size(col_labels) != cols) {
    fail("heat_map: expected {} column labels, got {}", cols, col_labels.size());
  }
  double top = full;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < 0.0 || std::isinf(weights[i])) {
      fail("heat_map: expected weights of at least 0, got {} at ({}, {})", weights[i], static_cast<int64_t>(i) / cols,
           static_cast<int64_t>(i) % cols);
    }
    if (!std::isnan(weights[i])) top = std::max(top, weights[i]);
  }
  if (rows == 0 || cols == 0) return "";

  auto at = [](int64_t i) { return static_cast<size_t>(i); };
  // Without colours a bar at each side shows where blank cells begin and end.
  const std::string bar = color == Color::ansi24 ? "" : "|";
  const size_t margin = row_labels.empty() ? 0 : at(longest(row_labels)) + 1;
  std::string out;

  // Labels of one character stand above their cells, longer ones hang down to them.
  const size_t height = at(longest(col_labels));
  for (size_t line = 0; line < height; ++line) {
    std::string text(margin + bar.size(), ' ');
    for (const std::string& label : col_labels) {
      size_t skip = height - label.size();
      text += {' ', line < skip ? ' ' : label[line - skip]};
    }
    trim_right(text);
    out += text + '\n';
  }
  for (int64_t i = 0; i < rows; ++i) {
    if (margin > 0) out += fmt::format("{:>{}} ", row_labels[at(i)], margin - 1);
    out += bar;
    for (int64_t j = 0; j < cols; ++j) out += cell(weights[at(i * cols + j)], top, color);
    out += color == Color::ansi24 ? "\x1b[0m\n" : "|\n";
  }
  return out;
}

Progress::Progress(int64_t total, std::FILE* file)
    : file_(file), terminal_(is_terminal(file)), total_(total), start_(Clock::now()), drawn_at_(start_) {
  if (total < 1) fail("Progress: expected at least one step, got {}", total);
  if (!file) fail("Progress: expected an open file, got none");
}

Progress::~Progress() {
  // Out of memory while the last line is formatted must not end the program.
  try {
    finish();
  } catch (...) {}
}

void Progress::update(int64_t step, double loss, int64_t tokens) {
  if (finished_) return;
  if (step < step_ || step > total_) {
    fail("Progress: expected a step from {} to {} (total), got {}", step_, total_, step);
  }
  if (tokens < 0) fail("Progress: expected at least 0 tokens, got {}", tokens);
  auto tenths = [this] {
    return static_cast<int64_t>(10.0 * static_cast<double>(step_) / static_cast<double>(total_));
  };
  const int64_t tenths_before = tenths();
  step_ = step;
  loss_ = loss;
  tokens_ += tokens;
  if (terminal_) {
    if (Clock::now() - drawn_at_ >= std::chrono::milliseconds(100) || shown_step_ == 0) draw();
  } else if (tenths() > tenths_before) {
    draw();
  }
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (step_ > shown_step_ || (terminal_ && step_ > 0)) draw();
  if (terminal_ && drawn_width_ > 0) {
    std::fputc('\n', file_);
    std::fflush(file_);
  }
}

std::string Progress::line(int64_t width) const {
  const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
  const double share = static_cast<double>(step_) / static_cast<double>(total_);
  const std::string total = std::to_string(total_);
  const std::string counts = fmt::format("{:>{}}/{}", step_, total.size(), total);
  std::string rest = fmt::format(" {:3.0f}%  loss {:.4f}", std::floor(100.0 * share), loss_);
  if (tokens_ > 0 && elapsed > 0.0) {
    rest += fmt::format("  {:>5} tok/s", short_number(static_cast<double>(tokens_) / elapsed));
  }
  rest += fmt::format("  {}", clock_time(elapsed));
  if (step_ > 0 && step_ < total_) rest += fmt::format(" < {}", clock_time(elapsed * (1.0 - share) / share));

  if (width == plain) return counts + rest;

  // The bar takes what is left of the line, up to 30 columns, and is the first thing to go.
  std::string bar;
  const int64_t room = width - static_cast<int64_t>(counts.size() + rest.size()) - 3;
  if (room >= 5) {
    const int64_t cells = std::min<int64_t>(room, 30);
    const int64_t done = static_cast<int64_t>(share * static_cast<double>(cells));
    bar = " [" + std::string(static_cast<size_t>(done), '=');
    if (done < cells) bar += '>' + std::string(static_cast<size_t>(cells - done - 1), '-');
    bar += ']';
  }
  std::string text = counts + bar + rest;
  if (static_cast<int64_t>(text.size()) > width) text.resize(static_cast<size_t>(width));
  return text;
}

void Progress::draw() {
  if (terminal_) {
    // The last column stays free: a character there makes some terminals wrap.
    const int64_t width = std::max<int64_t>(window_width(file_) - 1, 1);
    std::string text = line(width);
    const int64_t length = static_cast<int64_t>(text.size());
    // Spaces instead of an escape code: right on a dumb terminal too.
    text.resize(static_cast<size_t>(std::max(length, std::min(drawn_width_, width))), ' ');
    std::fputs(("\r" + text).c_str(), file_);
    drawn_width_ = length;
    drawn_at_ = Clock::now();
  } else {
    std::fputs((line(plain) + '\n').c_str(), file_);
  }
  shown_step_ = step_;
  std::fflush(file_);
}

}  // namespace tapedeck
