// What a tape remembers when it is studied: traced values, NaN watch, profile, hooks. Internal to tape.cpp and
// study.cpp.
#pragma once

#include <tapedeck/core/tape.h>

#include <chrono>
#include <cmath>
#include <map>

namespace tapedeck {

using StudyClock = std::chrono::steady_clock;

// What a tensor holds, for messages: "f32 (3, 4) in [-1.5, 2] with 1 NaN".
struct ValueRange {
  DType dtype;
  Shape shape;
  int64_t nans = 0, infs = 0;
  double low = HUGE_VAL, high = -HUGE_VAL;  // of the finite ones; low > high: there are none

  explicit ValueRange(const Tensor& x);
  bool finite() const { return nans == 0 && infs == 0; }
};
std::string to_string(const ValueRange& range);

struct Tape::Study {
  explicit Study(const TapeOptions& tape_options) : options(tape_options), last_op(StudyClock::now()) {}

  bool traces() const { return options.trace == Trace::on; }
  bool watches() const { return options.anomaly == Anomaly::on; }
  void note_value(uint32_t id, const Tensor& y, bool kept, bool is_leaf);
  void note_fused(uint32_t id, const detail::FusedRule& rule);
  // Before an outermost pass over nodes 0..last: gradients of the pass before are no longer true.
  void begin_pass(uint32_t last);
  void end_pass() { last_op = StudyClock::now(); }
  // Where a rule's time is counted; null: nowhere. The ops of a recorded pass count for themselves.
  double* backward_seconds(const char* op, bool recorded);

  TapeOptions options;
  uint32_t swept = 0;                                   // the last node of the pass that runs or ran
  std::vector<TracedNode> nodes;                        // with Trace::on, one a node
  std::vector<ValueRange> ranges;                       // with Anomaly::on, one a node
  std::map<std::string, ProfileRow, std::less<>> rows;  // by op
  StudyClock::time_point last_op;
  std::multimap<uint32_t, GradientHook> hooks;
  std::vector<Var> retained;
  std::vector<Tensor> copied;  // by a node's rules, each once; see Tape::note_saved
  size_t noted = 0;            // how many of them are in TracedNode::saved
};

// Adds the time of its life to `total`, where there is one.
class Stopwatch {
 public:
  explicit Stopwatch(double* total) : total_(total), start_(total ? StudyClock::now() : StudyClock::time_point()) {}
  ~Stopwatch() {
    if (total_) *total_ += std::chrono::duration<double>(StudyClock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double* total_;
  StudyClock::time_point start_;
};

}  // namespace tapedeck
