// What changes over a training run beside the weights: learning rates, the teacher-forcing ratio, a running average.
//
//   const WarmupCosine lr{.peak = 3e-3, .warmup = 100, .steps = 2000};
//   optimizer.set_lr(lr(step));   // step = 1, 2, ...
//
// A learning rate is a function of the step about to be taken, so a run that is resumed at step n goes on as if it had
// never stopped. Only Plateau remembers: save its state() beside the optimiser's.
#pragma once

#include <tapedeck/nn/module.h>

#include <limits>

namespace tapedeck {

// ---- Learning rates: each throws on a step < 1 and on members outside their range, naming the member ----

// The same at every step.
struct ConstantRate {
  double lr;  // >= 0

  double operator()(int64_t step) const;  // the rate of a step >= 1
};

// lr factor^floor((step - 1) / every): lr for `every` steps, then less.
struct StepDecay {
  double lr;           // >= 0
  int64_t every;       // >= 1
  double factor = .1;  // 0 ... 1

  double operator()(int64_t step) const;  // the rate of a step >= 1
};

// factor width^-1/2 min(step^-1/2, step warmup^-3/2): linear to its peak at step `warmup`, then falling with the root
// (Vaswani et al. 2017, arXiv:1706.03762).
struct WarmupInverseRoot {
  int64_t width;          // d_model, >= 1
  int64_t warmup = 4000;  // >= 1
  double factor = 1;      // >= 0

  double operator()(int64_t step) const;  // the rate of a step >= 1
};

// Linear to `peak` at step `warmup`, then half a cosine down to `lowest` at step `steps`, where it stays (Loshchilov &
// Hutter 2017, arXiv:1608.03983, without restarts).
struct WarmupCosine {
  double peak;        // >= lowest
  int64_t warmup;     // >= 0; 0: starts at the peak
  int64_t steps;      // > warmup
  double lowest = 0;  // >= 0

  double operator()(int64_t step) const;  // the rate of a step >= 1
};

// Which of two metrics is progress: a lower loss, or a higher score.
enum class Better { lower, higher };

// Settings of Plateau.
struct PlateauOptions {
  double lr = 1e-3;               // to begin with
  double factor = .1;             // 0 ... 1, ends excluded
  int64_t patience = 10;          // observations without progress that are let pass, >= 0
  double threshold = 1e-4;        // progress: better than the best by this share of it, >= 0
  int64_t cooldown = 0;           // observations after a cut that do not count as being without progress, >= 0
  double lowest = 0;              // 0 ... lr
  Better better = Better::lower;  // of the metric
};

// Multiplies the learning rate by `factor` when more than `patience` observations in a row made no progress, as
// PyTorch's ReduceLROnPlateau does. Pass it to a trainer as std::ref(plateau), and observe() after each validation.
class Plateau {
 public:
  // Throws on options outside their range, naming the option.
  explicit Plateau(const PlateauOptions& options = {});

  double operator()(int64_t step) const;  // lr(), at every step
  double lr() const { return lr_; }       // now
  void observe(double metric);            // throws on NaN

  // lr, best (f64), waited, cooling (i64): what observe() changes.
  NamedTensors state() const;
  // Continues from such a state. Throws, before anything changes, on names, shapes or dtypes that do not fit.
  void load_state(const NamedTensors& state);

 private:
  PlateauOptions options_;
  double lr_, best_;
  int64_t waited_ = 0, cooling_ = 0;
};

// ---- The probability of feeding back the right token in scheduled sampling (Bengio et al. 2015, arXiv:1506.03099)
// ----

// All at step i = 0, 1, ...; they throw on i < 0 and on constants outside their range.
double linear_ratio(int64_t i, double start, double slope, double lowest = 0);  // max(lowest, start - slope i)
double exponential_ratio(int64_t i, double k);                                  // k^i, 0 <= k <= 1
double inverse_sigmoid_ratio(int64_t i, double k);                              // k / (k + exp(i / k)), k >= 1

// ---- A running average of weights ----

// Settings of WeightAverage.
struct WeightAverageOptions {
  double decay = .999;          // d in 0 ... 1, 1 excluded
  bool bias_correction = true;  // false: starts at the weights it is made with, which then count like an update
};

// Exponential moving average of a module's parameters p over updates n = 1, 2, ... (Polyak & Juditsky 1992):
//   a = d a + (1 - d) p,   average = a / (1 - d^n)    a starts at 0, as Adam's moments do
//
//   average.update();                          // after every step of the optimiser
//   { auto swapped = average.swap_in(); ... }  // the module holds the averages here, and the weights again behind it
class WeightAverage {
 public:
  // Throws on a decay outside its range.
  template <Module M>
  explicit WeightAverage(const M& module, const WeightAverageOptions& options = {})
      : WeightAverage(named_parameters(module), options) {}
  explicit WeightAverage(std::vector<NamedParameter> parameters, const WeightAverageOptions& options = {});

  void update();                                // takes in the weights as they are
  int64_t updates() const { return updates_; }  // n
  NamedTensors averages() const;  // under the parameters' paths; before the first update, the weights themselves

  // While one lives, the parameters hold the averages; then, bit for bit, what they held before.
  class SwappedIn {
   public:
    SwappedIn(SwappedIn&&) noexcept = default;
    SwappedIn& operator=(SwappedIn&&) = delete;
    ~SwappedIn();

   private:
    friend class WeightAverage;
    explicit SwappedIn(const WeightAverage& average);
    std::vector<std::pair<Parameter, Tensor>> weights_;
  };
  [[nodiscard]] SwappedIn swap_in() const { return SwappedIn(*this); }

  // PATH.average (a) and updates (i64, n).
  NamedTensors state() const;
  // Continues from such a state. Throws, before anything changes, on names, shapes or dtypes that do not fit.
  void load_state(const NamedTensors& state);

 private:
  WeightAverageOptions options_;
  std::vector<NamedParameter> parameters_;
  std::vector<Tensor> sums_;  // a, one a parameter
  int64_t updates_ = 0;
};

}  // namespace tapedeck
