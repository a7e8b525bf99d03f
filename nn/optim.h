// Optimisers: how a gradient changes the parameters.
//
//   Adam optimizer(model, {.lr = 3e-3});
//   clip_grad_norm(model, grads, 1.0);
//   optimizer.step(grads);
//
// An optimiser holds each parameter once, by identity: tied ones are stepped once. A parameter without a gradient keeps
// its value and its state; each one counts its own steps.
#pragma once

#include <tapedeck/core/tape.h>
#include <tapedeck/nn/module.h>

#include <cmath>
#include <concepts>
#include <span>
#include <vector>

namespace tapedeck {

// Settings of Adam.
struct AdamOptions {
  double lr = 1e-3;                   // step size
  double beta1 = 0.9, beta2 = 0.999;  // in 0..1, 1 excluded
  double eps = 1e-8;                  // outside the root, after the bias correction
  double weight_decay = 0;            // added to the gradient: g + weight_decay p
  bool amsgrad = false;               // the largest v so far in place of v (Reddi et al. 2018, arXiv:1904.09237)
};

// Adam (Kingma & Ba 2015, arXiv:1412.6980), as PyTorch computes it. At a parameter's step t = 1, 2, ...:
//   g = grad + weight_decay p
//   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
//   p = p - lr m / (1 - beta1^t) / (sqrt(u / (1 - beta2^t)) + eps),   u = v, with amsgrad u = max(u, v)
class Adam {
 public:
  // Throws on no parameters, and on options outside their range, naming the option.
  template <Module M>
  explicit Adam(const M& module, const AdamOptions& options = {}) : Adam(named_parameters(module), options) {}
  explicit Adam(std::vector<NamedParameter> parameters, const AdamOptions& options = {});
  Adam(Adam&&) = default;
  Adam& operator=(Adam&&) = default;

  // Throws, before anything changes, where a gradient's shape or dtype is not its parameter's.
  void step(const Gradients& grads);

  double lr() const { return options_.lr; }                                      // the step size of the next step
  void set_lr(double lr);                                                        // throws unless finite and >= 0
  const AdamOptions& options() const { return options_; }                        // as they are now
  const std::vector<NamedParameter>& parameters() const { return parameters_; }  // each once, at its first path

  // Copies of what step() needs beside options and parameters: PATH.exp_avg (m), PATH.exp_avg_sq (v),
  // PATH.max_exp_avg_sq (u; with amsgrad only), PATH.step (i64).
  NamedTensors state() const;
  // Continues from such a state. Throws, before anything changes, a list of all names that are missing, unknown, or of
  // another shape or dtype.
  void load_state(const NamedTensors& state);

 protected:
  Adam(std::vector<NamedParameter> parameters, const AdamOptions& options, const char* name, bool decoupled);

 private:
  struct State {
    Tensor m, v, u;  // u: with amsgrad only
    int64_t step = 0;
  };
  const char* name_;
  bool decoupled_;  // weight decay acts on the parameter and not on the gradient
  AdamOptions options_;
  std::vector<NamedParameter> parameters_;
  std::vector<State> states_;  // one a parameter
};

// Settings of AdamW.
struct AdamWOptions {
  double lr = 1e-3;                   // step size
  double beta1 = 0.9, beta2 = 0.999;  // in 0..1, 1 excluded
  double eps = 1e-8;                  // outside the root, after the bias correction
  double weight_decay = 1e-2;         // before the step: p = p - lr weight_decay p
  bool amsgrad = false;               // as Adam's
};

// Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101): decay shrinks the parameter and leaves
// the gradient, and so m and v, alone. State as Adam's.
class AdamW : public Adam {
 public:
  template <Module M>
  explicit AdamW(const M& module, const AdamWOptions& options = {}) : AdamW(named_parameters(module), options) {}
  explicit AdamW(std::vector<NamedParameter> parameters, const AdamWOptions& options = {});
};

// Settings of Sgd.
struct SgdOptions {
  double lr = 1e-3;         // step size
  double momentum = 0;      // of the buffer b; 0: there is none
  double dampening = 0;     // takes this share from a gradient on its way into b
  bool nesterov = false;    // needs momentum > 0 and dampening 0
  double weight_decay = 0;  // added to the gradient: g + weight_decay p
};

// Stochastic gradient descent as PyTorch computes it:
//   g = grad + weight_decay p
//   b = momentum b + (1 - dampening) g   (at the first step b = g)
//   p = p - lr d,   d = g without momentum, b with it, g + momentum b with nesterov
class Sgd {
 public:
  // Throws on no parameters, and on options outside their range, naming the option.
  template <Module M>
  explicit Sgd(const M& module, const SgdOptions& options = {}) : Sgd(named_parameters(module), options) {}
  explicit Sgd(std::vector<NamedParameter> parameters, const SgdOptions& options = {});
  Sgd(Sgd&&) = default;
  Sgd& operator=(Sgd&&) = default;

  // Throws, before anything changes, where a gradient's shape or dtype is not its parameter's.
  void step(const Gradients& grads);

  double lr() const { return options_.lr; }                                      // the step size of the next step
  void set_lr(double lr);                                                        // throws unless finite and >= 0
  const SgdOptions& options() const { return options_; }                         // as they are now
  const std::vector<NamedParameter>& parameters() const { return parameters_; }  // each once, at its first path

  // As Adam's: PATH.momentum_buffer (b) and PATH.step (i64) with momentum, nothing without.
  NamedTensors state() const;
  void load_state(const NamedTensors& state);

 private:
  struct State {
    Tensor buffer;
    int64_t step = 0;
  };
  SgdOptions options_;
  std::vector<NamedParameter> parameters_;
  std::vector<State> states_;  // one a parameter; none without momentum
};

// What an optimiser has, whoever wrote it.
template <class T>
concept Optimizer = requires(T& optimizer, const T& same, const Gradients& grads, double lr) {
  optimizer.step(grads);
  optimizer.set_lr(lr);
  { same.lr() } -> std::convertible_to<double>;
  { same.parameters() } -> std::same_as<const std::vector<NamedParameter>&>;
};

// An argument that takes any optimiser, by reference: Adam, AdamW, Sgd, your own.
class OptimizerRef {
 public:
  template <Optimizer T>
  requires(!std::same_as<T, OptimizerRef>) OptimizerRef(T& optimizer) : optimizer_(&optimizer), calls_(&calls_of<T>) {}

  // What the optimiser itself does.
  void step(const Gradients& grads) { calls_->step(optimizer_, grads); }
  void set_lr(double lr) { calls_->set_lr(optimizer_, lr); }
  double lr() const { return calls_->lr(optimizer_); }
  const std::vector<NamedParameter>& parameters() const { return calls_->parameters(optimizer_); }

 private:
  struct Calls {
    void (*step)(void*, const Gradients&);
    void (*set_lr)(void*, double);
    double (*lr)(const void*);
    const std::vector<NamedParameter>& (*parameters)(const void*);
  };
  template <class T>
  static constexpr Calls calls_of = {
      [](void* o, const Gradients& grads) { static_cast<T*>(o)->step(grads); },
      [](void* o, double lr) { static_cast<T*>(o)->set_lr(lr); },
      [](const void* o) -> double { return static_cast<const T*>(o)->lr(); },
      [](const void* o) -> const std::vector<NamedParameter>& { return static_cast<const T*>(o)->parameters(); }};

  void* optimizer_;
  const Calls* calls_;
};

// The length of all gradients together: the root of the sum of squares, or the largest magnitude.
enum class NormKind { l2, inf };

namespace detail {
// Returns the norm; where it is not finite, nothing was changed.
double clip(std::span<const Parameter> parameters, Gradients& grads, double max_norm, NormKind kind);
[[noreturn]] void report_norm(std::span<const NamedParameter> parameters, const Gradients& grads);
}  // namespace detail

// Clips by the global norm and returns the norm before (Pascanu et al. 2013, arXiv:1211.5063):
//   norm = sqrt(sum g^2), or max |g|, over all parameters' gradients,   g = g min(1, max_norm / (norm + 1e-6))
// Squares add up in f64 in listing order. Absent gradients, and gradients of other parameters, stay out. A norm that is
// not finite throws, naming parameter, index and value, with nothing touched. max_norm may be infinite: it only
// measures. The span holds each parameter once, as named_parameters and an optimiser's parameters() do.
double clip_grad_norm(std::span<const NamedParameter> parameters, Gradients& grads, double max_norm,
                      NormKind kind = NormKind::l2);
template <Module M>
double clip_grad_norm(const M& module, Gradients& grads, double max_norm, NormKind kind = NormKind::l2) {
  CachedVector<Parameter> parameters;  // names are made only where an error needs them
  for_each_parameter(module, [&](std::string_view, const Parameter& p) {
    for (const Parameter& seen : parameters) {
      if (seen.id() == p.id()) return;
    }
    parameters.push_back(p);
  });
  const double norm = detail::clip(parameters, grads, max_norm, kind);
  if (!std::isfinite(norm)) detail::report_norm(named_parameters(module), grads);
  return norm;
}

}  // namespace tapedeck
