#include <tapedeck/core/random.h>
#include <tapedeck/nn/checkpoint.h>
#include <tapedeck/nn/optim.h>

#include <doctest/doctest.h>

#include <cmath>

#include "given_gradients.h"
#include "scratch_folder.h"

using namespace tapedeck;

namespace {

struct Two {
  Parameter a, b;
  explicit Two(DType dtype = DType::f64) : a(Tensor::full({2, 3}, 1, dtype)), b(Tensor::full({2}, 1, dtype)) {}
  static void fields(auto& self, auto&& f) { f("a", self.a), f("b", self.b); }
};

struct One {
  Parameter w;
  static void fields(auto& self, auto&& f) { f("w", self.w); }
};

struct Empty {
  static void fields(auto&, auto&&) {}
};

Tensor random(const Shape& shape, DType dtype, Rng& rng) {
  Tensor x = Tensor::empty(shape, DType::f64);
  double* p = x.mutable_data<double>();
  for (int64_t i = 0; i < x.numel(); ++i) p[i] = rng.normal();
  return x.to(dtype);
}

std::vector<double> values(const Tensor& x) { return x.to(DType::f64).to_vector<double>(); }

// Trains one number that is 1 at first by three gradients of both signs.
template <class Optimizer, class Options>
std::vector<double> three_steps(const Options& options, DType dtype = DType::f64) {
  One model{Parameter(Tensor::full({1}, 1, dtype))};
  Optimizer optimizer(model, options);
  std::vector<double> result;
  for (double g : {0.1, -0.2, 0.3}) {
    optimizer.step(given_gradients({{model.w, Tensor::full({1}, g, dtype)}}));
    result.push_back(model.w.value().item());
  }
  return result;
}

void check_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= tolerance);
}

}  // namespace

TEST_SUITE("optim") {
TEST_CASE("adam: three steps with both eps and with L2") {
  check_close(three_steps<Adam>(AdamOptions{.lr = 0.1}), {.900000010000, .936610360388, .902286253948}, 1e-12);
  check_close(three_steps<Adam>(AdamOptions{.lr = 0.1, .eps = 1e-2}), {.909090909091, .943523857663, .910717934831},
              1e-12);
  check_close(three_steps<Adam>(AdamOptions{.lr = 0.1, .weight_decay = 0.1}),
              {.900000005, .877170382467, .813160747371}, 1e-9);
  check_close(three_steps<AdamW>(AdamWOptions{.lr = 0.1, .weight_decay = 0.1}),
              {.89000001, .917710360288, .874209150245}, 1e-9);
  check_close(three_steps<Adam>(AdamOptions{.lr = 0.1, .eps = 1e-2}, DType::f32),
              {.909090909091, .943523857663, .910717934831}, 2e-7);
}

TEST_CASE("adam: amsgrad keeps the largest second moment") {
  // beta2 = 0.5: v = .005, .0225, .00625; u stays at .0225 after the large gradient
  One model{Parameter(Tensor::ones({1}, DType::f64))};
  Adam optimizer(model, {.lr = 0.1, .beta1 = 0, .beta2 = 0.5, .eps = 0, .amsgrad = true});
  double p = 1, v = 0, u = 0;
  for (int t = 1; double g : {0.1, -0.2, 0.01}) {
    optimizer.step(given_gradients({{model.w, Tensor::full({1}, g, DType::f64)}}));
    v = 0.5 * v + 0.5 * g * g;
    u = std::max(u, v);
    p -= 0.1 * g / std::sqrt(u / (1 - std::pow(0.5, t++)));
    CHECK(model.w.value().item() == doctest::Approx(p).epsilon(1e-14));
  }
  CHECK(u > v);
  NamedTensors state = optimizer.state();
  REQUIRE(state.size() == 4);
  CHECK(state[2].first == "w.max_exp_avg_sq");
  CHECK(state[2].second.item() == doctest::Approx(0.0225).epsilon(1e-14));
  CHECK_THROWS_WITH_AS(Adam(model).load_state(state), doctest::Contains("w.max_exp_avg_sq"), Error);
}

TEST_CASE("adamw: decay shrinks the parameter and leaves the moments alone") {
  One model{Parameter(Tensor::full({1}, 2, DType::f64))}, plain{Parameter(Tensor::full({1}, 2, DType::f64))};
  AdamW optimizer(model, {.lr = 0.1, .weight_decay = 0.5});
  Adam without(plain, {.lr = 0.1});
  const Tensor g = tensor({0.25}, DType::f64);
  optimizer.step(given_gradients({{model.w, g}}));
  without.step(given_gradients({{plain.w, g}}));
  CHECK(model.w.value().item() == doctest::Approx(plain.w.value().item() - 0.1 * 0.5 * 2).epsilon(1e-14));
  CHECK(values(optimizer.state()[0].second) == values(without.state()[0].second));
  CHECK(values(optimizer.state()[1].second) == values(without.state()[1].second));
  optimizer.set_lr(0);
  optimizer.step(given_gradients({{model.w, g}}));
  CHECK(optimizer.options().weight_decay == 0.5);
  CHECK(model.w.value().item() == doctest::Approx(plain.w.value().item() - 0.1).epsilon(1e-14));
  CHECK(AdamWOptions{}.weight_decay == 0.01);
  CHECK_THROWS_WITH_AS(AdamW(model, {.beta1 = 1}), doctest::Contains("AdamW: beta1"), Error);
  CHECK_THROWS_WITH_AS(optimizer.set_lr(-1), doctest::Contains("AdamW: lr"), Error);
}

TEST_CASE("sgd: momentum and dampening and nesterov by hand") {
  // g .1 -.2 .3; b: .1, .9*.1-.2, ...
  check_close(three_steps<Sgd>(SgdOptions{.lr = 0.1}), {.99, 1.01, .98}, 1e-15);
  check_close(three_steps<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.9}), {.99, 1.001, .9809}, 1e-15);
  check_close(three_steps<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.5, .dampening = 0.5}), {.99, .995, .9825}, 1e-15);
  check_close(three_steps<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.5, .nesterov = true}), {.985, 1.0125, .97125},
              1e-15);
  check_close(three_steps<Sgd>(SgdOptions{.lr = 0.1, .weight_decay = 1}), {.89, .821, .7089}, 1e-15);
}

TEST_CASE("optim: every size and dtype and layout agrees with plain loops") {
  Rng rng(5);
  for (DType dtype : {DType::f32, DType::f64}) {
    for (int64_t n = 0; n < 20; ++n) {
      Tensor start = random({3, n}, dtype, rng), g1 = random({3, n}, dtype, rng), g2 = random({3, n}, dtype, rng);
      One adam{Parameter(start.clone())}, sgd{Parameter(start.clone())};
      One turned{Parameter(start.transpose().contiguous().transpose())};
      Adam step_adam(adam, {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1});
      Adam step_turned(turned, step_adam.options());
      One decoupled{Parameter(start.clone())};
      AdamW step_decoupled(decoupled, {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1, .amsgrad = true});
      std::vector<double> r = values(start), rm(r.size()), rv(r.size()), ru(r.size());
      Sgd step_sgd(sgd, {.lr = 0.01, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.1});
      std::vector<double> p = values(start), q = p, m(p.size()), v(p.size()), b(p.size());
      for (int t = 1; t <= 2; ++t) {
        const Tensor& grad = t == 1 ? g1 : g2;
        step_adam.step(given_gradients({{adam.w, grad}}));
        step_turned.step(given_gradients({{turned.w, grad}}));
        step_sgd.step(given_gradients({{sgd.w, grad}}));
        step_decoupled.step(given_gradients({{decoupled.w, grad}}));
        std::vector<double> g = values(grad);
        for (size_t i = 0; i < g.size(); ++i) {
          double h = g[i] + 0.1 * p[i];
          m[i] = 0.8 * m[i] + 0.2 * h;
          v[i] = 0.9 * v[i] + 0.1 * h * h;
          p[i] -= 0.01 * m[i] / (1 - std::pow(0.8, t)) / (std::sqrt(v[i] / (1 - std::pow(0.9, t))) + 1e-3);
          h = g[i] + 0.1 * q[i];
          b[i] = t == 1 ? h : 0.9 * b[i] + 0.8 * h;
          q[i] -= 0.01 * b[i];
          rm[i] = 0.8 * rm[i] + 0.2 * g[i];
          rv[i] = 0.9 * rv[i] + 0.1 * g[i] * g[i];
          ru[i] = std::max(ru[i], rv[i]);
          r[i] -= 0.01 * 0.1 * r[i];
          r[i] -= 0.01 * rm[i] / (1 - std::pow(0.8, t)) / (std::sqrt(ru[i] / (1 - std::pow(0.9, t))) + 1e-8);
        }
      }
      double tolerance = dtype == DType::f32 ? 1e-6 : 1e-14;
      check_close(values(adam.w.value()), p, tolerance);
      check_close(values(sgd.w.value()), q, tolerance);
      check_close(values(decoupled.w.value()), r, tolerance);
      CHECK(values(turned.w.value()) == values(adam.w.value()));
    }
  }
}

TEST_CASE("optim: a parameter without a gradient keeps value and state") {
  Two model;
  Adam optimizer(model, {.lr = 0.1});
  Tensor g = Tensor::ones({2, 3}, DType::f64), h = Tensor::ones({2}, DType::f64);
  optimizer.step(given_gradients({{model.a, g}}));
  CHECK(values(model.b.value()) == std::vector<double>{1, 1});
  NamedTensors state = optimizer.state();
  CHECK(state[2].first == "a.step");
  CHECK(state[2].second.item() == 1);
  CHECK(state[5].first == "b.step");
  CHECK(state[5].second.item() == 0);
  optimizer.step(given_gradients({{model.b, h}}));
  CHECK(model.b.value().at({0}) == doctest::Approx(0.9).epsilon(1e-7));  // a first step, not a second one
  CHECK(model.a.value().at({0, 0}) == doctest::Approx(0.9).epsilon(1e-7));
  Parameter stranger(Tensor::ones({2}, DType::f64));
  optimizer.step(given_gradients({{stranger, h}}));
  CHECK(stranger.value().at({0}) == 1);
  optimizer.step(Gradients());
  CHECK(optimizer.state()[2].second.item() == 1);
}

TEST_CASE("optim: the learning rate can be set") {
  One model{Parameter(Tensor::ones({1}, DType::f64))};
  Sgd optimizer(model, {.lr = 0.5});
  optimizer.set_lr(0.25);
  CHECK(optimizer.lr() == 0.25);
  optimizer.step(given_gradients({{model.w, Tensor::ones({1}, DType::f64)}}));
  CHECK(model.w.value().item() == 0.75);
  CHECK_THROWS_WITH_AS(optimizer.set_lr(-1), doctest::Contains("lr must be a finite number >= 0, got -1"), Error);
  Adam adam(model);
  adam.set_lr(0);
  adam.step(given_gradients({{model.w, Tensor::ones({1}, DType::f64)}}));
  CHECK(model.w.value().item() == 0.75);
  CHECK_THROWS_AS(adam.set_lr(std::nan("")), Error);
}

TEST_CASE("optim: wrong options are errors that name them") {
  Two m;
  CHECK_THROWS_WITH_AS(Adam(m, {.lr = -1}), doctest::Contains("Adam: lr"), Error);
  CHECK_THROWS_WITH_AS(Adam(m, {.lr = HUGE_VAL}), doctest::Contains("got inf"), Error);
  CHECK_THROWS_WITH_AS(Adam(m, {.beta1 = 1}), doctest::Contains("beta1 must be in 0..1, 1 excluded, got 1"), Error);
  CHECK_THROWS_WITH_AS(Adam(m, {.beta2 = -0.1}), doctest::Contains("beta2"), Error);
  CHECK_THROWS_WITH_AS(Adam(m, {.eps = -1}), doctest::Contains("eps"), Error);
  CHECK_THROWS_WITH_AS(Adam(m, {.weight_decay = -1}), doctest::Contains("weight_decay"), Error);
  CHECK_THROWS_WITH_AS(Sgd(m, {.momentum = -1}), doctest::Contains("momentum"), Error);
  CHECK_THROWS_WITH_AS(Sgd(m, {.nesterov = true}), doctest::Contains("nesterov"), Error);
  CHECK_THROWS_WITH_AS(Sgd(m, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}), doctest::Contains("0.1"), Error);
  CHECK_THROWS_WITH_AS(Adam(Empty{}, {}), doctest::Contains("no parameters"), Error);
  CHECK_THROWS_WITH_AS(Sgd(One{Parameter(Tensor::zeros({1}, DType::i64))}), doctest::Contains("w is i64"), Error);
}

TEST_CASE("optim: a parameter that changed its shape stops the step before anything changes") {
  Two model;
  Adam optimizer(model);
  Gradients grads =
      given_gradients({{model.a, Tensor::ones({2, 3}, DType::f64)}, {model.b, Tensor::ones({2}, DType::f64)}});
  model.b.mutable_value() = Tensor::ones({3}, DType::f64);
  CHECK_THROWS_WITH_AS(optimizer.step(grads), doctest::Contains("gradient of b is f64 (2,), the parameter f64 (3,)"),
                       Error);
  Gradients others =
      given_gradients({{model.a, Tensor::ones({2, 3}, DType::f64)}, {model.b, Tensor::ones({3}, DType::f64)}});
  CHECK_THROWS_WITH_AS(optimizer.step(others), doctest::Contains("make a new optimiser"), Error);
  model.b.mutable_value() = Tensor::ones({1}, DType::f64).expand({2});
  CHECK_THROWS_WITH_AS(optimizer.step(grads), doctest::Contains("parameter b share memory"), Error);
  CHECK(values(model.a.value()) == std::vector<double>(6, 1.));
  CHECK(optimizer.state()[2].second.item() == 0);
}

TEST_CASE("optim: a step is an in-place change that old values notice") {
  One model{Parameter(Tensor::ones({1}, DType::f64))};
  Adam optimizer(model);
  Tape tape;
  Var loss = sum(Var(model.w) * Var(model.w));
  optimizer.step(tape.backward(loss, Keep::tape));
  CHECK_THROWS_AS(tape.backward(loss), Error);
}

TEST_CASE("optim: ten steps in one go equal five and a file and five") {
  ScratchFolder folder;
  auto train = [](auto& optimizer, Two& model, int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t) {
      Rng rng = Rng(11).split(static_cast<uint64_t>(t));
      Tensor a = random({2, 3}, DType::f32, rng), b = random({2}, DType::f32, rng);
      if (t % 3 == 0)
        optimizer.step(given_gradients({{model.a, a}}));
      else
        optimizer.step(given_gradients({{model.a, a}, {model.b, b}}));
    }
  };
  auto check = [&](auto make) {
    Two whole(DType::f32), half(DType::f32), rest(DType::f32);
    auto whole_optimizer = make(whole), half_optimizer = make(half);
    train(whole_optimizer, whole, 0, 10);
    train(half_optimizer, half, 0, 5);
    save(folder.file("model"), half);
    write_safetensors(folder.file("state"), {half_optimizer.state(), {}});
    auto rest_optimizer = make(rest);
    load(folder.file("model"), rest);
    rest_optimizer.load_state(read_safetensors(folder.file("state")).tensors);
    train(rest_optimizer, rest, 5, 10);
    CHECK(values(rest.a.value()) == values(whole.a.value()));
    CHECK(values(rest.b.value()) == values(whole.b.value()));
  };
  check([](Two& model) { return Adam(model, {.lr = 0.1}); });
  check([](Two& model) { return Adam(model, {.lr = 0.1, .amsgrad = true}); });
  check([](Two& model) { return AdamW(model, {.lr = 0.1}); });
  check([](Two& model) { return Sgd(model, {.lr = 0.1, .momentum = 0.9, .dampening = 0.1}); });
  check([](Two& model) { return Sgd(model, {.lr = 0.1}); });
}

TEST_CASE("optim: a state that does not fit is refused with every name") {
  Two model;
  Adam optimizer(model);
  optimizer.step(given_gradients({{model.a, Tensor::ones({2, 3}, DType::f64)}}));
  NamedTensors state = optimizer.state();
  state[0].first = "a.exp_avgs";
  state[4].second = Tensor::zeros({3}, DType::f64);
  state[5].second = Tensor::zeros({}, DType::f64);
  Adam other(model);
  std::string message;
  try {
    other.load_state(state);
  } catch (const Error& error) {
    message = error.what();
  }
  CAPTURE(message);
  for (const char* part : {"Adam: the state does not fit, nothing was loaded", "a.exp_avg f64 (2, 3) is missing",
                           "a.exp_avgs f64 (2, 3) is unknown", "b.exp_avg_sq has shape (3,), expected (2,)",
                           "b.step is f64, expected i64"}) {
    CHECK(message.find(part) != std::string::npos);
  }
  CHECK(message.find("LoadOptions") == std::string::npos);
  for (const auto& [name, value] : other.state())
    CHECK(values(value) == std::vector<double>(static_cast<size_t>(value.numel()), 0.));
}
}

TEST_SUITE("clip_grad_norm") {
TEST_CASE("clip: the norm before comes back and gradients shrink") {
  Two model;
  Gradients grads =
      given_gradients({{model.a, Tensor::full({2, 3}, 2, DType::f64)}, {model.b, tensor({1, 0}, DType::f64)}});
  CHECK(clip_grad_norm(model, grads, 5) == 5);                                             // sqrt(6 * 4 + 1)
  CHECK(grads[model.a].at({1, 2}) == doctest::Approx(2 * 5 / (5 + 1e-6)).epsilon(1e-15));  // PyTorch's 1e-6 counts here
  grads = given_gradients({{model.a, Tensor::full({2, 3}, 2, DType::f64)}, {model.b, tensor({1, 0}, DType::f64)}});
  CHECK(clip_grad_norm(model, grads, 6) == 5);
  CHECK(grads[model.a].at({1, 2}) == 2);
  CHECK(clip_grad_norm(model, grads, HUGE_VAL) == 5);
  CHECK(grads[model.a].at({1, 2}) == 2);
  CHECK(clip_grad_norm(model, grads, 1) == 5);
  CHECK(grads[model.b].at({0}) == doctest::Approx(1 / (5 + 1e-6)).epsilon(1e-15));
  CHECK(clip_grad_norm(model, grads, 0) == doctest::Approx(1).epsilon(1e-6));
  CHECK(clip_grad_norm(model, grads, 1) == 0);
  CHECK_THROWS_WITH_AS(clip_grad_norm(model, grads, std::nan("")), doctest::Contains("nan"), Error);
  CHECK_THROWS_WITH_AS(clip_grad_norm(model, grads, -1), doctest::Contains("-1"), Error);
}

TEST_CASE("clip: the largest magnitude as norm") {
  Two model;
  auto grads_of = [&] {
    return given_gradients({{model.a, Tensor::full({2, 3}, -2, DType::f64)}, {model.b, tensor({1, 0}, DType::f64)}});
  };
  Gradients grads = grads_of();
  CHECK(clip_grad_norm(model, grads, 3, NormKind::inf) == 2);
  CHECK(grads[model.a].at({0, 0}) == -2);
  CHECK(clip_grad_norm(model, grads, 0.5, NormKind::inf) == 2);
  CHECK(grads[model.a].at({1, 2}) == doctest::Approx(-2 * 0.5 / (2 + 1e-6)).epsilon(1e-15));
  CHECK(grads[model.b].at({0}) == doctest::Approx(0.5 / (2 + 1e-6)).epsilon(1e-15));
  grads = given_gradients({{model.a, Tensor::full({2, 3}, 1e200, DType::f64)}});  // its square is not needed
  CHECK(clip_grad_norm(model, grads, 1, NormKind::inf) == 1e200);
  grads = Gradients();
  CHECK(clip_grad_norm(model, grads, 1, NormKind::inf) == 0);
  for (double bad : {std::nan(""), -HUGE_VAL}) {
    grads = given_gradients({{model.a, Tensor::ones({2, 3}, DType::f64)}, {model.b, tensor({bad, 3.0}, DType::f64)}});
    CHECK_THROWS_WITH_AS(clip_grad_norm(model, grads, 1, NormKind::inf), doctest::Contains("gradient of b"), Error);
    CHECK(values(grads[model.a]) == std::vector<double>(6, 1.));
    CHECK(grads[model.b].at({1}) == 3);
  }
}

TEST_CASE("clip: absent gradients and other parameters stay out") {
  Two model;
  Parameter stranger(Tensor::ones({1}, DType::f64));
  Gradients grads = given_gradients({{model.b, tensor({3, 4}, DType::f64)}, {stranger, tensor({100}, DType::f64)}});
  CHECK(clip_grad_norm(model, grads, 1) == 5);
  CHECK(grads[stranger].item() == 100);
  CHECK(grads.find(model.a) == nullptr);
}

TEST_CASE("clip: f32 squares add up in f64") {
  One model{Parameter(Tensor::zeros({1'000'003}))};
  Gradients grads = given_gradients({{model.w, Tensor::full({1'000'003}, 0.1f)}});
  double g = static_cast<double>(0.1f);
  CHECK(clip_grad_norm(model, grads, 1e9) == doctest::Approx(g * std::sqrt(1'000'003.)).epsilon(1e-10));
  grads = given_gradients({{model.w, Tensor::full({1'000'003}, 1e30f)}});  // the squares are beyond f32
  CHECK(clip_grad_norm(model, grads, 1) == doctest::Approx(1e33).epsilon(1e-5));
  CHECK(grads[model.w].at({5}) == doctest::Approx(1e-3).epsilon(1e-5));
}

TEST_CASE("clip: a norm that is not finite names parameter and place and touches nothing") {
  double inf = HUGE_VAL, nan = std::nan("");
  Two model;
  Tensor fine = tensor({{12, 0, 0}, {0, 0, 0}}, DType::f64);
  struct Case {
    Tensor a, b;
    const char* expected;
  };
  for (const Case& c :
       {Case{fine, tensor({4.0, inf}, DType::f64), "the gradient of b is inf at (1,)"},
        Case{fine, tensor({nan, 4.0}, DType::f64), "the gradient of b is nan at (0,)"},
        Case{tensor({{1.0, 2.0, 3.0}, {4.0, -inf, nan}}, DType::f64), tensor({nan, 1.0}, DType::f64),
             "the gradient of a is -inf at (1, 1)"},
        Case{tensor({{1.0, 2.0, 3.0}, {4.0, 5.0, -1e200}}, DType::f64), tensor({1e180, 1.0}, DType::f64),
             "the gradient of a is -1e+200 at (1, 2), and its square too large"}}) {
    Gradients grads = given_gradients({{model.a, c.a}, {model.b, c.b}});
    std::vector<double> a = values(grads[model.a]);
    for (double limit : {1.0, inf}) {
      CHECK_THROWS_WITH_AS(clip_grad_norm(model, grads, limit), doctest::Contains(c.expected), Error);
    }
    CHECK(std::memcmp(a.data(), grads[model.a].data<double>(), sizeof(double) * 6) == 0);
    CHECK(std::memcmp(c.b.data<double>(), grads[model.b].data<double>(), sizeof(double) * 2) == 0);
  }
  CHECK(values(model.a.value()) == std::vector<double>(6, 1.));
}
}
