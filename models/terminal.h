// What programs show in a terminal: heat maps and a progress line. Both stay readable without colours and in files.
#pragma once

#include <tapedeck/core/error.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

namespace tapedeck {

// A person reads what is written to `file`.
bool is_terminal(std::FILE* file);

// How a picture may be drawn: as text alone, or with 24-bit ANSI colours.
enum class Color { none, ansi24 };

// Whether 24-bit colours may be written to `file`: it is a terminal, NO_COLOR is unset or empty, TERM is neither unset
// nor "dumb", and COLORTERM ("truecolor", "24bit") or TERM ("...-direct", xterm, screen, tmux, ... -256color) promises
// them.
Color color_support(std::FILE* file);

// A (rows, cols) matrix of weights in row-major order as text, one cell two columns wide for each weight; row labels at
// the left, column labels above, written downwards. 0 is the ramp's dark end, the largest weight (but at least `full`)
// its bright end: viridis with colours, " .:-=+*#%@" without. NaN shows as "??". Ends with a newline; a matrix without
// rows or columns gives an empty string.
//
// Throws Error unless weights.size() = rows * cols, the labels are as many as rows and columns (or none at all), and no
// weight is negative or infinite.
std::string heat_map(std::span<const double> weights, int64_t rows, int64_t cols,
                     std::span<const std::string> row_labels, std::span<const std::string> col_labels, Color color,
                     double full = 0.0);

// One line that tells how far a run has come:
//
//    400/1200 [=========>-------------------]  33%  loss 1.2345  41.2k tok/s  0:12 < 0:24
//
// (elapsed time < time left). On a terminal the line is redrawn at most ten times a second and is cut to the window's
// width; elsewhere a plain line is written as each further tenth of the steps is done.
class Progress {
 public:
  // `total` steps, at least one. The file must outlive this object.
  explicit Progress(int64_t total, std::FILE* file = stderr);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `step` of `total` steps are done, the last one with this loss; `tokens` were processed since the last call. Steps
  // do not go back.
  void update(int64_t step, double loss, int64_t tokens);

  // Shows the last state and ends the line. Further calls do nothing.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  std::string line(int64_t width) const;
  void draw();

  std::FILE* file_;
  bool terminal_;
  bool finished_ = false;
  int64_t total_;
  int64_t step_ = 0;
  int64_t shown_step_ = 0;
  int64_t tokens_ = 0;
  double loss_ = 0.0;
  int64_t drawn_width_ = 0;
  Clock::time_point start_;
  Clock::time_point drawn_at_;
};

}  // namespace tapedeck
