#include <tapedeck/core/gradcheck.h>
#include <tapedeck/core/random.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace tapedeck {
namespace {

using Function = std::function<std::vector<Var>(std::span<const Var>)>;
constexpr double floor_of_scale = 1e-3;  // gradients below this are compared absolutely
constexpr size_t projections = 2;

// What is varied: an input handed to f, or a parameter that f reaches by itself.
struct Variable {
  std::string name;
  Tensor value;  // changed element by element and restored; a parameter's own
  Parameter parameter;
};

// f of the variables; inputs come first.
struct Problem {
  Function f;
  std::vector<Variable> variables;
};

std::vector<Var> call(const Problem& problem, Tape* tape) {
  std::vector<Var> inputs;
  for (const Variable& v : problem.variables) {
    if (!v.parameter.defined()) inputs.push_back(tape ? tape->leaf(v.value) : Var(v.value));
  }
  return problem.f(inputs);
}

std::vector<Tensor> values(const Problem& problem) {
  NoGrad pause;
  std::vector<Tensor> out;
  // Copies: an output may be a view of an input that is about to be varied.
  for (const Var& y : call(problem, nullptr)) out.push_back(y.value().clone());
  return out;
}

// Random weights of every output, bounded away from 0 and from each other's sign.
std::vector<Tensor> projection(const std::vector<Tensor>& outputs, Rng& rng) {
  std::vector<Tensor> weights;
  for (const Tensor& y : outputs) {
    Tensor w = Tensor::empty(y.shape(), DType::f64);
    double* p = w.mutable_data<double>();
    for (int64_t i = 0; i < w.numel(); ++i) p[i] = rng.uniform(0.5, 1.5) * (rng.bernoulli(0.5) ? 1 : -1);
    weights.push_back(w);
  }
  return weights;
}

struct Projected {
  double value = 0, magnitude = 0;  // sum of w y, and of |w y|: what rounding is relative to
};
Projected project(const std::vector<Tensor>& weights, const std::vector<Tensor>& outputs) {
  Projected sum;
  for (size_t k = 0; k < outputs.size(); ++k) {
    Tensor y = outputs[k].contiguous();
    const double *w = weights[k].data<double>(), *p = y.data<double>();
    for (int64_t i = 0; i < y.numel(); ++i) {
      sum.value += w[i] * p[i];
      sum.magnitude += std::abs(w[i] * p[i]);
    }
  }
  return sum;
}

// Gradients of the projected outputs with respect to every variable; undefined where not connected.
std::vector<Tensor> analytic(const Problem& problem, const std::vector<Tensor>& weights) {
  Tape tape;
  std::vector<Var> xs;
  std::vector<Var> inputs;
  for (const Variable& v : problem.variables) {
    if (!v.parameter.defined()) inputs.push_back(tape.leaf(v.value));
  }
  std::vector<Var> ys = problem.f(inputs);
  Gradients total;
  for (size_t k = 0; k < ys.size(); ++k) {
    if (ys[k].tracked()) total += tape.backward(ys[k], weights[k], Keep::tape);
  }
  std::vector<Tensor> result;
  size_t i = 0;
  for (const Variable& v : problem.variables) {
    const Tensor* g = v.parameter.defined() ? std::as_const(total).find(v.parameter) : total.find(inputs[i++]);
    result.push_back(g ? *g : Tensor());
  }
  return result;
}

// Infinite where not even the number, the shapes or what is connected agree.
double max_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double worst = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    if (!a[k].defined() && !b[k].defined()) continue;
    if (!a[k].defined() || !b[k].defined() || a[k].shape() != b[k].shape()) return HUGE_VAL;
    std::vector<double> u = a[k].to_vector<double>(), v = b[k].to_vector<double>();
    for (size_t i = 0; i < u.size(); ++i) {
      if (u[i] != v[i] && !(std::isnan(u[i]) && std::isnan(v[i]))) {
        worst = std::max(worst, std::isfinite(u[i] - v[i]) ? std::abs(u[i] - v[i]) : HUGE_VAL);
      }
    }
  }
  return worst;
}

// Derivatives by differences, along one line through the variables, for every projection.
struct Slope {
  std::array<double, projections> value;
  bool kink;
};

class Line {
 public:
  // move(t) puts the variables at distance t along the line.
  Line(const Problem& problem, const std::vector<std::vector<Tensor>>& weights, const std::vector<Tensor>& at_zero,
       std::function<void(double)> move)
      : problem_(problem), weights_(weights), at_zero_(at_zero), move_(std::move(move)) {}

  Slope slope(double step) const {
    Stencil coarse = measure(step);
    if (coarse.smooth && coarse.even) return {coarse.central, false};
    // Across a kink the one-sided slopes keep their distance however small the step; curvature fades with its cube.
    Stencil fine = measure(step / 16);
    if (!fine.finite || (!fine.smooth && fine.gap > coarse.gap / 4)) return {fine.central, true};
    // Where only the second derivative jumps (relu(x)^2 at 0), the central slope is off by a multiple of the step, not
    // of its square; the one-sided slopes, which see one side each, are right.
    bool second_jumps = !fine.even && fine.bend > coarse.bend / 64;
    return {second_jumps ? fine.one_sided : fine.central, false};
  }

 private:
  struct Stencil {
    std::array<double, projections> central, one_sided;  // one_sided: the mean of the two
    double gap = 0;                                      // largest distance of the one-sided slopes from each other
    double bend = 0;  // and of their mean from the central slope, whose error is about bend^2 where f is smooth
    bool finite = true, smooth = true, even = true;
  };

  Stencil measure(double h) const {
    const double offsets[] = {-2 * h, -h, h, 2 * h};
    std::vector<Tensor> outputs[4];
    {
      struct Return {
        const std::function<void(double)>& move;
        ~Return() { move(0); }
      } on_exit{move_};
      for (int i = 0; i < 4; ++i) {
        move_(offsets[i]);
        outputs[i] = values(problem_);
      }
    }
    Stencil s;
    for (size_t p = 0; p < projections; ++p) {
      Projected f0 = project(weights_[p], at_zero_);
      double f[4], magnitude = f0.magnitude;
      for (int i = 0; i < 4; ++i) {
        Projected at = project(weights_[p], outputs[i]);
        f[i] = at.value;
        magnitude = std::max(magnitude, at.magnitude);
      }
      s.central[p] = (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * h);
      double right = (-3 * f0.value + 4 * f[2] - f[3]) / (2 * h), left = (3 * f0.value - 4 * f[1] + f[0]) / (2 * h);
      s.one_sided[p] = (right + left) / 2;
      double gap = std::abs(right - left), bend = std::abs(s.central[p] - s.one_sided[p]);
      double scale = std::max({std::abs(right), std::abs(left), std::abs(s.central[p]), floor_of_scale});
      double noise = 16 * std::numeric_limits<double>::epsilon() * magnitude / h;
      s.finite = s.finite && std::isfinite(s.central[p]) && std::isfinite(gap);
      s.smooth = s.smooth && gap <= 1e-4 * scale + noise;
      s.even = s.even && bend <= 1e-5 * scale + noise;
      s.gap = std::max(s.gap, gap);
      s.bend = std::max(s.bend, bend);
    }
    return s;
  }

  const Problem& problem_;
  const std::vector<std::vector<Tensor>>& weights_;
  const std::vector<Tensor>& at_zero_;
  std::function<void(double)> move_;
};

std::string index_text(const Shape& shape, int64_t flat) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()));
  for (int i = shape.rank() - 1; i >= 0; --i) {
    index[static_cast<size_t>(i)] = flat % shape[i];
    flat /= shape[i];
  }
  std::string text = "[";
  for (size_t i = 0; i < index.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", index[i]);
  return text + "]";
}

// Where the element that is number `flat` in row-major order lies.
int64_t offset_of(const Tensor& x, int64_t flat) {
  int64_t offset = 0;
  for (int i = x.rank() - 1; i >= 0; --i) {
    offset += flat % x.shape()[i] * x.strides()[i];
    flat /= x.shape()[i];
  }
  return offset;
}

GradcheckReport refuse(std::string why) {
  GradcheckReport report;
  report.verdict = Verdict::not_checked;
  report.notes.push_back(std::move(why));
  return report;
}

class Checker {
 public:
  Checker(const Problem& problem, const GradcheckOptions& options) : problem_(problem), options_(options) {}

  GradcheckReport run() {
    for (const Variable& v : problem_.variables) {
      if (v.value.dtype() != DType::f64) {
        return refuse(fmt::format(
            "{} is {}: differences in f32 cannot tell a wrong gradient from rounding; convert with .to(DType::f64)",
            v.name, v.value.dtype()));
      }
      if (v.value.overlaps_itself()) {
        return refuse(
            fmt::format("{} (shape {}) was expanded: its elements share memory and cannot be varied one by "
                        "one; clone() it, or expand inside the function",
                        v.name, v.value.shape()));
      }
    }
    try {
      at_zero_ = values(problem_);
    } catch (const Error& error) {
      return refuse(fmt::format("the function throws at the point itself: {}", error.what()));
    }
    for (const Tensor& y : at_zero_) {
      if (y.dtype() != DType::f64) return refuse(fmt::format("an output is {}, expected f64", y.dtype()));
      for (double v : y.to_vector<double>()) {
        if (!std::isfinite(v)) return refuse("an output is not finite at the point itself");
      }
    }
    double d = max_difference(at_zero_, values(problem_));
    if (d > 0) return refuse(fmt::format("not deterministic (max difference {:.3g} between two forward runs)", d));

    Rng rng = Rng(options_.seed).split("gradcheck");
    for (size_t p = 0; p < projections; ++p) weights_.push_back(projection(at_zero_, rng));
    try {
      analytic_.push_back(analytic(problem_, weights_[0]));
      d = max_difference(analytic_[0], analytic(problem_, weights_[0]));
      for (size_t p = 1; p < projections; ++p) analytic_.push_back(analytic(problem_, weights_[p]));
    } catch (const Error& error) {
      report_.verdict = Verdict::mismatch;
      report_.worst = HUGE_VAL;
      report_.notes.push_back(fmt::format("the backward pass throws: {}", error.what()));
      return report_;
    }
    if (d > 0) return refuse(fmt::format("not deterministic (max difference {:.3g} between two backward runs)", d));

    try {
      if (options_.directions > 0)
        check_directions(rng);
      else
        check_elements();
    } catch (const Error& error) {
      return refuse(fmt::format("the function throws near the point: {}", error.what()));
    }

    std::stable_sort(report_.rows.begin(), report_.rows.end(),
                     [](const GradcheckRow& a, const GradcheckRow& b) { return a.relative > b.relative; });
    if (report_.rows.size() > 20) report_.rows.resize(20);
    if (mismatch_)
      report_.verdict = Verdict::mismatch;
    else if (kinks_ > 0)
      report_.verdict = Verdict::not_differentiable;
    return report_;
  }

 private:
  void check_elements() {
    for (size_t v = 0; v < problem_.variables.size(); ++v) {
      const Variable& variable = problem_.variables[v];
      Tensor value = variable.value;
      double largest_error = 0, largest_numeric = floor_of_scale;
      bool connected = true;
      for (size_t p = 0; p < projections; ++p) {
        const Tensor& g = analytic_[p][v];
        connected = connected && g.defined();
      }
      double largest_unconnected = 0;
      for (int64_t i = 0; i < value.numel(); ++i) {
        if (excluded(variable, i)) continue;
        const int64_t at = offset_of(value, i);
        const double x = value.data<double>()[at];
        Line line(problem_, weights_, at_zero_,
                  [&, at, x](double t) { value.mutable_data<double>()[at] = t == 0 ? x : x + t; });
        Slope slope = line.slope(options_.step * std::max(1.0, std::abs(x)));
        if (slope.kink) {
          note_kink(fmt::format("{}{}", variable.name, index_text(value.shape(), i)));
          continue;
        }
        for (size_t p = 0; p < projections; ++p) {
          double a = connected ? analytic_[p][v].data<double>()[i] : 0;
          double n = slope.value[p];
          add_row(variable.name, index_text(value.shape(), i), a, n);
          double error = std::isfinite(a) ? std::abs(a - n) : HUGE_VAL;
          largest_error = std::max(largest_error, error);
          largest_numeric = std::max(largest_numeric, std::abs(n));
          largest_unconnected = std::max(largest_unconnected, std::abs(n));
        }
      }
      judge(largest_error / largest_numeric);
      if (!connected) {
        report_.notes.push_back(
            fmt::format("{}: not connected: no gradient reaches it{}", variable.name,
                        largest_unconnected / largest_numeric > options_.tolerance
                            ? fmt::format(", yet the outputs depend on it (largest slope {:.3g})", largest_unconnected)
                            : " (and the outputs do not depend on it)"));
      }
    }
  }

  void check_directions(Rng& rng) {
    std::vector<Tensor> at, step;
    for (const Variable& v : problem_.variables) at.push_back(v.value.clone());
    for (int64_t d = 0; d < options_.directions; ++d) {
      step.clear();
      double norm = 0;
      for (const Variable& v : problem_.variables) {
        Tensor u = Tensor::empty(v.value.shape(), DType::f64);
        double* p = u.mutable_data<double>();
        for (int64_t i = 0; i < u.numel(); ++i) {
          p[i] = excluded(v, i) ? 0 : rng.normal();
          norm += p[i] * p[i];
        }
        step.push_back(u);
      }
      if (norm == 0) continue;
      for (Tensor& u : step) u.mul_(1 / std::sqrt(norm));
      Line line(problem_, weights_, at_zero_, [&](double t) {
        for (size_t v = 0; v < at.size(); ++v) {
          Tensor value = problem_.variables[v].value;
          value.copy_(at[v]);
          if (t != 0) value.add_(step[v], t);
        }
      });
      Slope slope = line.slope(options_.step);
      if (slope.kink) {
        note_kink(fmt::format("direction {}", d));
        continue;
      }
      for (size_t p = 0; p < projections; ++p) {
        double a = 0;
        for (size_t v = 0; v < step.size(); ++v) {
          if (!analytic_[p][v].defined()) continue;
          const double *g = analytic_[p][v].data<double>(), *u = step[v].data<double>();
          for (int64_t i = 0; i < step[v].numel(); ++i) a += g[i] * u[i];
        }
        add_row("all", fmt::format("direction {}", d), a, slope.value[p]);
        judge(std::isfinite(a) ? std::abs(a - slope.value[p]) / std::max(std::abs(slope.value[p]), floor_of_scale)
                               : HUGE_VAL);
      }
    }
  }

  bool excluded(const Variable& variable, int64_t flat) {
    for (const Excluded& rule : options_.excluded) {
      if (rule.input != variable.name) continue;
      int64_t row_size = variable.value.numel() / variable.value.shape()[0];
      if (flat / row_size != rule.row) continue;
      std::string note = fmt::format("{}: row {} excluded by {}", rule.input, rule.row, rule.reason);
      if (std::find(report_.notes.begin(), report_.notes.end(), note) == report_.notes.end()) {
        report_.notes.push_back(note);
      }
      return true;
    }
    return false;
  }

  void add_row(const std::string& input, std::string index, double a, double n) {
    ++report_.elements;
    double error = std::abs(a - n);
    double relative = error / std::max({std::abs(a), std::abs(n), floor_of_scale});
    if (!std::isfinite(a)) error = relative = HUGE_VAL;
    report_.rows.push_back({input, std::move(index), a, n, error, relative});
  }

  void judge(double error) {
    report_.worst = std::max(report_.worst, error);
    if (!(error <= options_.tolerance)) mismatch_ = true;
  }

  void note_kink(const std::string& where) {
    if (++kinks_ <= 5)
      report_.notes.push_back(fmt::format("kink at {}: its one-sided slopes differ", where));
    else if (kinks_ == 6)
      report_.notes.emplace_back("further kinks are not listed");
  }

  const Problem& problem_;
  const GradcheckOptions& options_;
  GradcheckReport report_;
  std::vector<Tensor> at_zero_;
  std::vector<std::vector<Tensor>> weights_, analytic_;  // by projection
  int64_t kinks_ = 0;
  bool mismatch_ = false;
};

// The gradient of f, as a function of f's inputs, parameters and incoming gradients.
Problem gradient_of(const Problem& problem, size_t input_count, Rng rng) {
  std::vector<Tensor> outputs = values(problem);
  std::vector<Tensor> seeds = projection(outputs, rng);
  Problem second;
  second.variables = problem.variables;
  std::vector<Parameter> parameters;
  for (const Variable& v : problem.variables) {
    if (v.parameter.defined()) parameters.push_back(v.parameter);
  }
  for (size_t k = 0; k < seeds.size(); ++k) second.variables.push_back({fmt::format("g{}", k), seeds[k], {}});
  second.f = [f = problem.f, input_count, parameters](std::span<const Var> vars) {
    std::optional<Tape> own;  // the values of the gradient need a tape even where nobody asks for their derivatives
    std::vector<Var> xs(vars.begin(), vars.begin() + static_cast<std::ptrdiff_t>(input_count));
    if (!Tape::recording()) {
      own.emplace();
      for (Var& x : xs) x = own->leaf(x.value());
    }
    std::vector<Var> ys = f(xs);
    for (const Parameter& p : parameters) xs.emplace_back(p);
    std::vector<Var> total(xs.size());
    for (size_t k = 0; k < ys.size(); ++k) {
      if (!ys[k].tracked()) continue;
      std::vector<Var> g = grad(ys[k], xs, {.create_graph = !own, .allow_unused = true, .seed = vars[input_count + k]});
      for (size_t i = 0; i < xs.size(); ++i) {
        if (g[i].defined()) total[i] = total[i].defined() ? add(total[i], g[i]) : g[i];
      }
    }
    std::vector<Var> result;
    for (size_t i = 0; i < xs.size(); ++i) {
      result.push_back(total[i].defined() ? total[i] : Var(Tensor::zeros(xs[i].shape(), DType::f64)));
      if (own) result.back() = result.back().detach();
    }
    return result;
  };
  return second;
}

}  // namespace

std::string_view name(Verdict verdict) {
  constexpr std::string_view names[] = {"match", "mismatch", "not differentiable here", "not checked"};
  return names[static_cast<int>(verdict)];
}

std::string to_string(const GradcheckReport& report) {
  std::string text = fmt::format("{}: {} derivatives compared, worst relative error {:.2e}\n", name(report.verdict),
                                 report.elements, report.worst);
  for (const std::string& note : report.notes) text += "  " + note + '\n';
  if (report.verdict == Verdict::mismatch && !report.rows.empty()) {
    text += fmt::format("  {:24} {:14} {:>14} {:>14} {:>10} {:>10}\n", "input", "index", "analytic", "numeric",
                        "absolute", "relative");
    for (size_t i = 0; i < std::min<size_t>(report.rows.size(), 10); ++i) {
      const GradcheckRow& row = report.rows[i];
      text += fmt::format("  {:24} {:14} {:14.6e} {:14.6e} {:10.2e} {:10.2e}\n", row.input, row.index, row.analytic,
                          row.numeric, row.absolute, row.relative);
    }
  }
  return text;
}

GradcheckReport gradcheck(const Function& f, const std::vector<NamedTensor>& inputs,
                          const std::vector<NamedParameter>& parameters, const GradcheckOptions& options) {
  if (options.order != 1 && options.order != 2) fail("gradcheck: expected order 1 or 2, got {}", options.order);
  Problem problem{f, {}};
  for (const NamedTensor& input : inputs) {
    bool varied = input.value.overlaps_itself() || input.value.dtype() != DType::f64;  // refused below, as they are
    problem.variables.push_back({input.name, varied ? input.value : input.value.clone(), {}});
  }
  for (const NamedParameter& p : parameters) problem.variables.push_back({p.name, p.parameter.value(), p.parameter});
  for (const Excluded& rule : options.excluded) {
    auto named = [&](const Variable& v) { return v.name == rule.input; };
    auto it = std::find_if(problem.variables.begin(), problem.variables.end(), named);
    if (it == problem.variables.end())
      fail("gradcheck: no input or parameter is called {}, to exclude from", rule.input);
    if (it->value.rank() == 0 || rule.row < 0 || rule.row >= it->value.shape()[0]) {
      fail("gradcheck: {} (shape {}) has no row {} to exclude", rule.input, it->value.shape(), rule.row);
    }
  }
  if (options.order == 1) return Checker(problem, options).run();
  for (const Variable& v : problem.variables) {
    if (v.value.dtype() != DType::f64) return Checker(problem, options).run();  // says why
  }
  Problem second = gradient_of(problem, inputs.size(), Rng(options.seed).split("order two"));
  // The checker hands over inputs (parameters excluded): f's inputs, then the incoming gradients.
  return Checker(second, options).run();
}

}  // namespace tapedeck
