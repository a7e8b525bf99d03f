// Gradient checking: derivatives by the tape against derivatives by differences.
//
// f64, five-point central differences, at least two random projections of the outputs (with sum() alone, a rule that
// permutes, scales or ignores its incoming gradient can pass). One-sided slopes tell a kink from a wrong gradient.
#pragma once

#include <tapedeck/core/tape.h>

#include <concepts>
#include <functional>
#include <string>
#include <vector>

namespace tapedeck {

// What a check has found.
enum class Verdict {
  match,               // every derivative within the tolerance
  mismatch,            // the gradient is wrong
  not_differentiable,  // a kink: one-sided slopes differ, so there is nothing to compare with
  not_checked,         // a precondition failed: f32, overlapping memory, not deterministic, ...
};

// "match", "mismatch", "not differentiable here" or "not checked".
std::string_view name(Verdict verdict);

// Elements that the gradient leaves out by a documented rule (the frozen pad row of an embedding).
struct Excluded {
  std::string input;   // the name of an input or parameter
  int64_t row;         // along axis 0
  std::string reason;  // the rule, for the report
};

// Settings of gradcheck.
struct GradcheckOptions {
  int order = 1;            // 2: the gradient, as a function of inputs and incoming gradient, is checked instead
  double tolerance = 1e-8;  // on max|analytic - numeric| / max|numeric|, per input
  // Times max(1, |x|), and a sixteenth of it where f bends. Measured over the table of ops, orders 1 and 2, the worst
  // relative error was 2e-7 at 1e-1, 1e-8 at 1e-2, 5e-11 at 1e-3, 2e-11 at 3e-4, 5e-11 at 1e-4 and 6e-10 at 1e-5: first
  // truncation, then rounding. The median, all rounding, grows like 1 / step from 4e-13 at 1e-3; outputs larger than
  // those of single ops round more, so the larger of the two best steps it is.
  double step = 1e-3;
  int64_t directions = 0;               // 0: every element; n: n random directions through all inputs at once
  uint64_t seed = 1;                    // of the projections and directions
  std::vector<Excluded> excluded = {};  // names and rows must exist
};

// One derivative, both ways.
struct GradcheckRow {
  std::string input, index;                      // "weight", "[2, 0]"
  double analytic, numeric, absolute, relative;  // relative: |a - n| / max(|a|, |n|, 1e-3)
};

// What gradcheck returns.
struct GradcheckReport {
  Verdict verdict = Verdict::match;  // the worst of all inputs
  double worst = 0;                  // the largest relative error of an input
  int64_t elements = 0;              // derivatives compared
  std::vector<GradcheckRow> rows;    // worst first, twenty at most
  std::vector<std::string> notes;    // not connected, wrong shape, kinks, exclusions, failed preconditions
  bool ok() const { return verdict == Verdict::match; }  // all derivatives match
};

// Verdict, worst error, the rows as a table, and the notes.
std::string to_string(const GradcheckReport& report);

// An input of the checked function.
struct NamedTensor {
  std::string name;  // as the report calls it
  Tensor value;      // f64
};

// Checks f at the inputs, and at the parameters, which f reaches by itself. Inputs, parameters and outputs
// must be f64; anything else is not checked. f gets the inputs as Vars. Parameters are changed during the check and
// restored bit for bit.
GradcheckReport gradcheck(const std::function<std::vector<Var>(std::span<const Var>)>& f,
                          const std::vector<NamedTensor>& inputs, const std::vector<NamedParameter>& parameters = {},
                          const GradcheckOptions& options = {});

// The same for f with one output: gradcheck([](auto x) { return tanh(x[0]); }, {{"x", x}}).
template <class F>
requires std::same_as<std::invoke_result_t<F&, std::span<const Var>>, Var> GradcheckReport
gradcheck(F f, const std::vector<NamedTensor>& inputs, const std::vector<NamedParameter>& parameters = {},
          const GradcheckOptions& options = {}) {
  return gradcheck(std::function<std::vector<Var>(std::span<const Var>)>(
                       [f](std::span<const Var> x) mutable { return std::vector<Var>{f(x)}; }),
                   inputs, parameters, options);
}

}  // namespace tapedeck
