#include <tapedeck/core/simd.h>
#include <tapedeck/nn/checkpoint.h>
#include <tapedeck/nn/optim.h>

#include <cmath>

namespace tapedeck {

namespace {

// ---- Kernels: dense arrays of n elements ----

template <class T>
struct AdamFactors {
  T shrink, weight_decay, beta1, rate1, beta2, rate2, step, root, eps;
};

// `largest` is null without amsgrad.
template <class T>
TAPEDECK_KERNEL void adam_kernel(T* p, const T* grad, T* m, T* v, T* largest, int64_t n, const AdamFactors<T> k) {
  simd::each_vector<T>(n, [=](auto at) TAPEDECK_LANES {
    auto x = k.shrink * at.load(p);
    auto g = at.load(grad) + k.weight_decay * x;
    auto first = k.beta1 * at.load(m) + k.rate1 * g;
    auto second = k.beta2 * at.load(v) + k.rate2 * g * g;
    at.store(m, first);
    at.store(v, second);
    if (largest) {
      second = simd::max(at.load(largest), second);
      at.store(largest, second);
    }
    at.store(p, x - k.step * first / (simd::sqrt(second) * k.root + k.eps));
  });
}

template <class T>
struct SgdFactors {
  T weight_decay, keep, rate, momentum, lr;
  bool nesterov;
};

template <class T>
TAPEDECK_KERNEL void sgd_kernel(T* p, const T* grad, T* buffer, int64_t n, const SgdFactors<T> k) {
  simd::each_vector<T>(n, [=](auto at) TAPEDECK_LANES {
    auto x = at.load(p);
    auto g = at.load(grad) + k.weight_decay * x;
    if (buffer) {
      auto b = k.keep * at.load(buffer) + k.rate * g;
      at.store(buffer, b);
      g = k.nesterov ? g + k.momentum * b : b;
    }
    at.store(p, x - k.lr * g);
  });
}

// Sum of squares in f64, in eight interleaved parts.
template <class T>
TAPEDECK_KERNEL double square_sum(const T* x, int64_t n) {
  double part[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) part[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  }
  for (int64_t j = 0; i < n; ++i, ++j) part[j] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}

// max |x|; NaN if there is one.
template <class T>
double largest_magnitude(const T* x, int64_t n) {
  T best = 0;
  for (int64_t i = 0; i < n; ++i) best = simd::max(best, simd::abs(x[i]));
  return static_cast<double>(best);
}

// ---- What both optimisers share ----

void check_range(const char* optimiser, const char* option, double value, double end) {
  if (value >= 0 && value < end) return;
  if (std::isinf(end)) fail("{}: {} must be a finite number >= 0, got {}", optimiser, option, value);
  fail("{}: {} must be in 0..{}, {} excluded, got {}", optimiser, option, end, end, value);
}

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<NamedParameter> checked(const char* optimiser, std::vector<NamedParameter> parameters) {
  if (parameters.empty()) fail("{}: there are no parameters to train", optimiser);
  for (const auto& [name, parameter] : parameters) {
    if (!is_floating(parameter.dtype())) {
      fail("{}: parameter {} is {}; only f32 and f64 can be trained", optimiser, name, parameter.dtype());
    }
  }
  return detail::first_paths(std::move(parameters));
}

// `state`: a tensor of the parameter's state, if there is one.
void check_step(const char* optimiser, const NamedParameter& p, const Tensor& grad, const Tensor* state) {
  const Tensor& value = p.parameter.value();
  if (grad.shape() != value.shape() || grad.dtype() != value.dtype()) {
    fail("{}: the gradient of {} is {} {}, the parameter {} {}", optimiser, p.name, grad.dtype(), grad.shape(),
         value.dtype(), value.shape());
  }
  if (state && (state->shape() != value.shape() || state->dtype() != value.dtype())) {
    fail("{}: parameter {} was {} {} when the optimiser was made and is {} {} now; make a new optimiser", optimiser,
         p.name, state->dtype(), state->shape(), value.dtype(), value.shape());
  }
  if (value.overlaps_itself()) {
    fail("{}: elements of parameter {} share memory (it was expanded); clone() the tensor it is made of", optimiser,
         p.name);
  }
}

// Calls update(p) with the elements of a parameter in row-major order.
template <class T, class Update>
void update_dense(const Parameter& parameter, Update update) {
  Tensor& value = parameter.mutable_value();
  if (value.is_contiguous()) return update(value.mutable_data<T>());
  Tensor dense = value.clone();
  update(dense.mutable_data<T>());
  value.copy_(dense);
}

Tensor zeros_like(const Parameter& parameter) { return Tensor::zeros(parameter.shape(), parameter.dtype()); }

}  // namespace

// ---- Adam ----

Adam::Adam(std::vector<NamedParameter> parameters, const AdamOptions& options)
    : Adam(std::move(parameters), options, "Adam", false) {}

Adam::Adam(std::vector<NamedParameter> parameters, const AdamOptions& options, const char* name, bool decoupled)
    : name_(name), decoupled_(decoupled), options_(options), parameters_(checked(name, std::move(parameters))) {
  check_range(name, "lr", options.lr, infinity);
  check_range(name, "beta1", options.beta1, 1);
  check_range(name, "beta2", options.beta2, 1);
  check_range(name, "eps", options.eps, infinity);
  check_range(name, "weight_decay", options.weight_decay, infinity);
  for (const auto& [path, parameter] : parameters_) {
    states_.push_back(
        {zeros_like(parameter), zeros_like(parameter), options.amsgrad ? zeros_like(parameter) : Tensor()});
  }
}

AdamW::AdamW(std::vector<NamedParameter> parameters, const AdamWOptions& o)
    : Adam(std::move(parameters),
           {.lr = o.lr,
            .beta1 = o.beta1,
            .beta2 = o.beta2,
            .eps = o.eps,
            .weight_decay = o.weight_decay,
            .amsgrad = o.amsgrad},
           "AdamW", true) {}

void Adam::set_lr(double lr) {
  check_range(name_, "lr", lr, infinity);
  options_.lr = lr;
}

void Adam::step(const Gradients& grads) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (const Tensor* grad = grads.find(parameters_[i].parameter)) {
      check_step(name_, parameters_[i], *grad, &states_[i].m);
    }
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i].parameter;
    const Tensor* grad = grads.find(parameter);
    if (!grad) continue;
    State& state = states_[i];
    double t = static_cast<double>(++state.step);
    const double decay = options_.weight_decay;
    dispatch_floating(name_, parameter.dtype(), [&]<class T> {
      AdamFactors<T> factors{static_cast<T>(decoupled_ ? 1 - options_.lr * decay : 1),
                             static_cast<T>(decoupled_ ? 0 : decay),
                             static_cast<T>(options_.beta1),
                             static_cast<T>(1 - options_.beta1),
                             static_cast<T>(options_.beta2),
                             static_cast<T>(1 - options_.beta2),
                             static_cast<T>(options_.lr / (1 - std::pow(options_.beta1, t))),
                             static_cast<T>(1 / std::sqrt(1 - std::pow(options_.beta2, t))),
                             static_cast<T>(options_.eps)};
      Tensor g = grad->contiguous();
      update_dense<T>(parameter, [&](T* p) {
        adam_kernel(p, g.data<T>(), state.m.mutable_data<T>(), state.v.mutable_data<T>(),
                    options_.amsgrad ? state.u.mutable_data<T>() : nullptr, g.numel(), factors);
      });
    });
  }
}

NamedTensors Adam::state() const {
  NamedTensors result;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].name;
    result.emplace_back(name + ".exp_avg", states_[i].m.clone());
    result.emplace_back(name + ".exp_avg_sq", states_[i].v.clone());
    if (options_.amsgrad) result.emplace_back(name + ".max_exp_avg_sq", states_[i].u.clone());
    result.emplace_back(name + ".step", Tensor::full({}, states_[i].step, DType::i64));
  }
  return result;
}

void Adam::load_state(const NamedTensors& state) {
  std::vector<detail::Target> targets;
  std::vector<Tensor> steps;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].name;
    steps.push_back(Tensor::zeros({}, DType::i64));
    targets.push_back({{name + ".exp_avg"}, states_[i].m});
    targets.push_back({{name + ".exp_avg_sq"}, states_[i].v});
    if (options_.amsgrad) targets.push_back({{name + ".max_exp_avg_sq"}, states_[i].u});
    targets.push_back({{name + ".step"}, steps[i]});
  }
  detail::restore(fmt::format("{}: the state", name_), state, targets);
  for (size_t i = 0; i < steps.size(); ++i) states_[i].step = *steps[i].data<int64_t>();
}

// ---- Sgd ----

Sgd::Sgd(std::vector<NamedParameter> parameters, const SgdOptions& options)
    : options_(options), parameters_(checked("Sgd", std::move(parameters))) {
  check_range("Sgd", "lr", options.lr, infinity);
  check_range("Sgd", "momentum", options.momentum, infinity);
  check_range("Sgd", "weight_decay", options.weight_decay, infinity);
  if (!std::isfinite(options.dampening)) fail("Sgd: dampening must be a finite number, got {}", options.dampening);
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    fail("Sgd: nesterov needs momentum > 0 and dampening 0, got momentum {} and dampening {}", options.momentum,
         options.dampening);
  }
  if (options.momentum == 0) return;
  for (const auto& [name, parameter] : parameters_) states_.push_back({zeros_like(parameter)});
}

void Sgd::set_lr(double lr) {
  check_range("Sgd", "lr", lr, infinity);
  options_.lr = lr;
}

void Sgd::step(const Gradients& grads) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (const Tensor* grad = grads.find(parameters_[i].parameter)) {
      check_step("Sgd", parameters_[i], *grad, states_.empty() ? nullptr : &states_[i].buffer);
    }
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i].parameter;
    const Tensor* grad = grads.find(parameter);
    if (!grad) continue;
    State* state = states_.empty() ? nullptr : &states_[i];
    bool first = state && state->step++ == 0;
    dispatch_floating("Sgd", parameter.dtype(), [&]<class T> {
      SgdFactors<T> factors{static_cast<T>(options_.weight_decay),
                            static_cast<T>(first ? 0 : options_.momentum),
                            static_cast<T>(first ? 1 : 1 - options_.dampening),
                            static_cast<T>(options_.momentum),
                            static_cast<T>(options_.lr),
                            options_.nesterov};
      Tensor g = grad->contiguous();
      update_dense<T>(parameter, [&](T* p) {
        sgd_kernel(p, g.data<T>(), state ? state->buffer.mutable_data<T>() : nullptr, g.numel(), factors);
      });
    });
  }
}

NamedTensors Sgd::state() const {
  NamedTensors result;
  for (size_t i = 0; i < states_.size(); ++i) {
    const std::string& name = parameters_[i].name;
    result.emplace_back(name + ".momentum_buffer", states_[i].buffer.clone());
    result.emplace_back(name + ".step", Tensor::full({}, states_[i].step, DType::i64));
  }
  return result;
}

void Sgd::load_state(const NamedTensors& state) {
  std::vector<detail::Target> targets;
  std::vector<Tensor> steps;
  for (size_t i = 0; i < states_.size(); ++i) {
    const std::string& name = parameters_[i].name;
    steps.push_back(Tensor::zeros({}, DType::i64));
    targets.push_back({{name + ".momentum_buffer"}, states_[i].buffer});
    targets.push_back({{name + ".step"}, steps[i]});
  }
  detail::restore("Sgd: the state", state, targets);
  for (size_t i = 0; i < steps.size(); ++i) states_[i].step = *steps[i].data<int64_t>();
}

// ---- Clipping ----

// Names the first element that is not finite; if all are, the largest one, whose square is too large for f64.
void detail::report_norm(std::span<const NamedParameter> parameters, const Gradients& grads) {
  const NamedParameter* worst = nullptr;
  int64_t place = 0;
  double worst_value = 0;
  bool finite = true;
  for (const NamedParameter& p : parameters) {
    const Tensor* grad = grads.find(p.parameter);
    if (!grad || !finite) continue;
    dispatch_floating("clip_grad_norm", grad->dtype(), [&]<class T> {
      std::vector<T> values = grad->to_vector<T>();
      for (size_t i = 0; finite && i < values.size(); ++i) {
        double value = static_cast<double>(values[i]);
        finite = std::isfinite(value);
        if (finite && std::abs(value) <= std::abs(worst_value)) continue;
        worst = &p;
        place = static_cast<int64_t>(i);
        worst_value = value;
      }
    });
  }
  const Shape& shape = worst->parameter.shape();
  Shape index = shape;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    index[dim] = place % shape[dim];
    place /= shape[dim];
  }
  fail("clip_grad_norm: the norm of the gradients is not finite: the gradient of {} is {} at {}{}; nothing was changed",
       worst->name, worst_value, index, finite ? ", and its square too large for f64" : "");
}

double detail::clip(std::span<const Parameter> parameters, Gradients& grads, double max_norm, NormKind kind) {
  if (!(max_norm >= 0)) fail("clip_grad_norm: max_norm must be a number >= 0, got {}", max_norm);
  double squares = 0, largest = 0;
  for (const Parameter& p : parameters) {
    const Tensor* grad = grads.find(p);
    if (!grad) continue;
    dispatch_floating("clip_grad_norm", grad->dtype(), [&]<class T> {
      Tensor g = grad->contiguous();
      if (kind == NormKind::l2)
        squares += square_sum(g.data<T>(), g.numel());
      else
        largest = simd::max(largest, largest_magnitude(g.data<T>(), g.numel()));
    });
  }
  const double norm = kind == NormKind::l2 ? std::sqrt(squares) : largest;
  const double factor = max_norm / (norm + 1e-6);
  if (std::isfinite(norm) && factor < 1) {
    for (const Parameter& p : parameters) {
      if (Tensor* grad = grads.find(p)) grad->mul_(factor);
    }
  }
  return norm;
}

double clip_grad_norm(std::span<const NamedParameter> named, Gradients& grads, double max_norm, NormKind kind) {
  CachedVector<Parameter> parameters;
  for (const NamedParameter& p : named) parameters.push_back(p.parameter);
  const double norm = detail::clip(parameters, grads, max_norm, kind);
  if (!std::isfinite(norm)) detail::report_norm(named, grads);
  return norm;
}

}  // namespace tapedeck
