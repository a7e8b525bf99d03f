#include <tapedeck/nn/checkpoint.h>
#include <tapedeck/nn/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tapedeck {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

void check_step(const char* schedule, int64_t step) {
  if (step < 1) fail("{}: expected a step >= 1, got {}", schedule, step);
}

void check(const char* schedule, const char* member, bool fits, const char* expected, auto got) {
  if (!fits) fail("{}: {} must be {}, got {}", schedule, member, expected, got);
}

bool is_rate(double lr) { return lr >= 0 && lr < infinity; }
constexpr const char* a_rate = "a finite number >= 0";

}  // namespace

// ---- Learning rates ----

double ConstantRate::operator()(int64_t step) const {
  check_step("ConstantRate", step);
  check("ConstantRate", "lr", is_rate(lr), a_rate, lr);
  return lr;
}

double StepDecay::operator()(int64_t step) const {
  check_step("StepDecay", step);
  check("StepDecay", "lr", is_rate(lr), a_rate, lr);
  check("StepDecay", "every", every >= 1, ">= 1", every);
  check("StepDecay", "factor", factor >= 0 && factor <= 1, "in 0..1", factor);
  return lr * std::pow(factor, static_cast<double>((step - 1) / every));
}

double WarmupInverseRoot::operator()(int64_t step) const {
  check_step("WarmupInverseRoot", step);
  check("WarmupInverseRoot", "width", width >= 1, ">= 1", width);
  check("WarmupInverseRoot", "warmup", warmup >= 1, ">= 1", warmup);
  check("WarmupInverseRoot", "factor", is_rate(factor), a_rate, factor);
  const double s = static_cast<double>(step), w = static_cast<double>(warmup);
  return factor / std::sqrt(static_cast<double>(width)) * std::min(1 / std::sqrt(s), s / (w * std::sqrt(w)));
}

double WarmupCosine::operator()(int64_t step) const {
  check_step("WarmupCosine", step);
  check("WarmupCosine", "lowest", is_rate(lowest), a_rate, lowest);
  check("WarmupCosine", "peak", is_rate(peak) && peak >= lowest, "finite and not below lowest", peak);
  check("WarmupCosine", "warmup", warmup >= 0, ">= 0", warmup);
  check("WarmupCosine", "steps", steps > warmup, "above warmup", steps);
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (step >= steps) return lowest;
  const double done = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  return lowest + (peak - lowest) * .5 * (1 + std::cos(std::numbers::pi * done));
}

Plateau::Plateau(const PlateauOptions& o)
    : options_(o), lr_(o.lr), best_(o.better == Better::lower ? infinity : -infinity) {
  check("Plateau", "lr", is_rate(o.lr), a_rate, o.lr);
  check("Plateau", "factor", o.factor > 0 && o.factor < 1, "in 0..1, ends excluded", o.factor);
  check("Plateau", "patience", o.patience >= 0, ">= 0", o.patience);
  check("Plateau", "threshold", is_rate(o.threshold), a_rate, o.threshold);
  check("Plateau", "cooldown", o.cooldown >= 0, ">= 0", o.cooldown);
  check("Plateau", "lowest", o.lowest >= 0 && o.lowest <= o.lr, "in 0..lr", o.lowest);
}

double Plateau::operator()(int64_t step) const {
  check_step("Plateau", step);
  return lr_;
}

void Plateau::observe(double metric) {
  if (std::isnan(metric)) fail("Plateau: the metric is NaN");
  const double margin = std::isinf(best_) ? 0 : options_.threshold * std::abs(best_);
  const bool progress = options_.better == Better::lower ? metric < best_ - margin : metric > best_ + margin;
  if (progress) best_ = metric;
  waited_ = progress ? 0 : waited_ + 1;
  if (cooling_ > 0) --cooling_, waited_ = 0;
  if (waited_ <= options_.patience) return;
  lr_ = std::max(options_.lowest, lr_ * options_.factor);
  cooling_ = options_.cooldown;
  waited_ = 0;
}

NamedTensors Plateau::state() const {
  return {{"lr", Tensor::full({}, lr_, DType::f64)},
          {"best", Tensor::full({}, best_, DType::f64)},
          {"waited", Tensor::full({}, waited_, DType::i64)},
          {"cooling", Tensor::full({}, cooling_, DType::i64)}};
}

void Plateau::load_state(const NamedTensors& state) {
  Tensor lr = Tensor::zeros({}, DType::f64), best = lr.clone(), waited = Tensor::zeros({}, DType::i64),
         cooling = waited.clone();
  detail::restore("Plateau: the state", state,
                  {{{"lr"}, lr}, {{"best"}, best}, {{"waited"}, waited}, {{"cooling"}, cooling}});
  lr_ = lr.item(), best_ = best.item();
  waited_ = *waited.data<int64_t>(), cooling_ = *cooling.data<int64_t>();
}

// ---- Ratios ----

namespace {

double checked_step(const char* ratio, int64_t i) {
  if (i < 0) fail("{}: expected a step >= 0, got {}", ratio, i);
  return static_cast<double>(i);
}

}  // namespace

double linear_ratio(int64_t i, double start, double slope, double lowest) {
  const double s = checked_step("linear_ratio", i);
  check("linear_ratio", "start", start >= 0 && start <= 1, "in 0..1", start);
  check("linear_ratio", "slope", is_rate(slope), a_rate, slope);
  check("linear_ratio", "lowest", lowest >= 0 && lowest <= start, "in 0..start", lowest);
  return std::max(lowest, start - slope * s);
}

double exponential_ratio(int64_t i, double k) {
  const double s = checked_step("exponential_ratio", i);
  check("exponential_ratio", "k", k >= 0 && k <= 1, "in 0..1", k);
  return std::pow(k, s);
}

double inverse_sigmoid_ratio(int64_t i, double k) {
  const double s = checked_step("inverse_sigmoid_ratio", i);
  check("inverse_sigmoid_ratio", "k", k >= 1 && k < infinity, "a finite number >= 1", k);
  return k / (k + std::exp(s / k));
}

// ---- The average ----

WeightAverage::WeightAverage(std::vector<NamedParameter> parameters, const WeightAverageOptions& options)
    : options_(options), parameters_(detail::first_paths(std::move(parameters))) {
  check("WeightAverage", "decay", options.decay >= 0 && options.decay < 1, "in 0..1, 1 excluded", options.decay);
  for (const auto& [name, parameter] : parameters_) {
    sums_.push_back(options.bias_correction ? Tensor::zeros(parameter.shape(), parameter.dtype())
                                            : parameter.value().clone());
  }
}

void WeightAverage::update() {
  ++updates_;
  for (size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].mul_(options_.decay);
    sums_[i].add_(parameters_[i].parameter.value(), 1 - options_.decay);
  }
}

NamedTensors WeightAverage::averages() const {
  NamedTensors result;
  for (size_t i = 0; i < sums_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    Tensor average = (updates_ == 0 ? parameter.value() : sums_[i]).clone();
    if (options_.bias_correction && updates_ > 0) {
      average.mul_(1 / (1 - std::pow(options_.decay, static_cast<double>(updates_))));
    }
    result.emplace_back(name, std::move(average));
  }
  return result;
}

WeightAverage::SwappedIn::SwappedIn(const WeightAverage& average) {
  const NamedTensors averages = average.averages();
  for (size_t i = 0; i < averages.size(); ++i) {
    const Parameter& parameter = average.parameters_[i].parameter;
    weights_.emplace_back(parameter, parameter.value().clone());
    parameter.mutable_value().copy_(averages[i].second);
  }
}

WeightAverage::SwappedIn::~SwappedIn() {
  for (auto& [parameter, weights] : weights_) parameter.mutable_value().copy_(weights);
}

NamedTensors WeightAverage::state() const {
  NamedTensors result;
  for (size_t i = 0; i < sums_.size(); ++i) result.emplace_back(parameters_[i].name + ".average", sums_[i].clone());
  result.emplace_back("updates", Tensor::full({}, updates_, DType::i64));
  return result;
}

void WeightAverage::load_state(const NamedTensors& state) {
  std::vector<detail::Target> targets;
  for (size_t i = 0; i < sums_.size(); ++i) targets.push_back({{parameters_[i].name + ".average"}, sums_[i]});
  Tensor updates = Tensor::zeros({}, DType::i64);
  targets.push_back({{"updates"}, updates});
  detail::restore("WeightAverage: the state", state, targets);
  updates_ = *updates.data<int64_t>();
}

}  // namespace tapedeck
