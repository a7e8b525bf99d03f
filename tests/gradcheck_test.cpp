// The checker itself: it must catch planted wrong rules, and must not cry wolf where nothing can be measured.
#include "op_samples.h"

#include <doctest/doctest.h>
#include <tapedeck/core/gradcheck.h>
#include <tapedeck/ops/ops.h>

#include <cmath>

using namespace tapedeck;
using namespace tapedeck::samples;

namespace {

bool notes_say(const GradcheckReport& report, const std::string& part) {
  for (const std::string& note : report.notes) {
    if (note.find(part) != std::string::npos) return true;
  }
  return false;
}

// What many checkers do: L = sum(y), incoming gradient 1, plain central differences.
bool passes_with_sum(const Function& f, std::vector<Tensor> inputs) {
  Tape tape;
  std::vector<Var> xs;
  for (const Tensor& x : inputs) xs.push_back(tape.leaf(x));
  Var loss = sum(f(xs));
  if (!loss.tracked()) return false;
  Gradients grads = tape.backward(loss);
  auto total = [&] {
    NoGrad pause;
    std::vector<Var> constants(inputs.begin(), inputs.end());
    return sum(f(constants)).item();
  };
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!grads.find(xs[k])) return false;
    std::vector<double> g = grads[xs[k]].to_vector<double>();
    inputs[k] = inputs[k].clone();
    for (size_t i = 0; i < g.size(); ++i) {
      const double h = 1e-5, x = inputs[k].data<double>()[i];
      inputs[k].mutable_data<double>()[i] = x + h;
      double right = total();
      inputs[k].mutable_data<double>()[i] = x - h;
      double left = total();
      inputs[k].mutable_data<double>()[i] = x;
      if (std::abs((right - left) / (2 * h) - g[i]) > 1e-6) return false;
    }
  }
  return true;
}

}  // namespace

TEST_SUITE("gradcheck") {
TEST_CASE("planted wrong rules are caught and their right versions pass") {
  for (const Mutant& mutant : op_mutants()) {
    INFO(mutant.name);
    std::vector<Tensor> inputs = draw(mutant.inputs, mutant.name);
    std::vector<Var> xs(inputs.begin(), inputs.end());
    CHECK(Array(mutant.wrong(xs).value()).data == Array(mutant.right(xs).value()).data);
    for (int order : {1, 2}) {
      CAPTURE(order);
      GradcheckReport right = check(mutant.right, inputs, {.order = order});
      INFO(to_string(right));
      CHECK(right.ok());
      GradcheckReport wrong = check(mutant.wrong, inputs, {.order = order});
      INFO(to_string(wrong));
      if (order < mutant.order) CHECK(wrong.ok());
      if (order == mutant.order) CHECK(wrong.verdict == Verdict::mismatch);
    }
    // Random directions see it too.
    CHECK(check(mutant.wrong, inputs, {.order = mutant.order, .directions = 3}).verdict == Verdict::mismatch);
  }
}

TEST_CASE("checking the sum of the outputs would let some of them pass") {
  int hidden = 0;
  for (const Mutant& mutant : op_mutants()) {
    if (mutant.order > 1 || mutant.name.starts_with("sum:")) continue;
    INFO(mutant.name);
    CHECK(passes_with_sum(mutant.right, draw(mutant.inputs, mutant.name)));
    CHECK(passes_with_sum(mutant.wrong, draw(mutant.inputs, mutant.name)) == mutant.hidden_by_sum);
    hidden += mutant.hidden_by_sum;
  }
  CHECK(hidden >= 5);
}

TEST_CASE("f32 is refused with the reason") {
  Tensor x = Tensor::full({200}, 0.5), y = Tensor::full({200}, 0.25);
  for (int order : {1, 2}) {
    GradcheckReport report =
        gradcheck([](In v) { return sum(v[0] * v[1]); }, {{"x", x}, {"y", y}}, {}, {.order = order});
    CHECK(report.verdict == Verdict::not_checked);
    CHECK_FALSE(report.ok());
    CHECK(notes_say(report, "x is f32"));
    CHECK(notes_say(report, ".to(DType::f64)"));
  }
  Parameter weight(Tensor::ones({2}));
  GradcheckReport report = gradcheck([&](In) { return weight * 2; }, {}, {{"layer.weight", weight}});
  CHECK(notes_say(report, "layer.weight is f32"));
  CHECK(gradcheck([](In v) { return sum(v[0] * v[1]); }, {{"x", x.to(DType::f64)}, {"y", y.to(DType::f64)}}).ok());
}

TEST_CASE("inputs that share memory are refused") {
  GradcheckReport report = gradcheck([](In v) { return exp(v[0]); }, {{"x", f64({1, 2}).expand({3, 2})}});
  CHECK(report.verdict == Verdict::not_checked);
  CHECK(notes_say(report, "x (shape (3, 2)) was expanded"));
  CHECK(notes_say(report, "clone()"));
}

TEST_CASE("a function that is not deterministic is called so") {
  Tensor x = f64({1, 2, 3, 4, 5, 6, 7, 8});
  Rng fresh(3);
  for (int order : {1, 2}) {
    GradcheckReport report =
        gradcheck([&](In v) { return dropout(v[0], 0.5, &fresh); }, {{"x", x}}, {}, {.order = order});
    CHECK(report.verdict == Verdict::not_checked);
    CHECK(notes_say(report, "not deterministic (max difference"));
    auto fixed = [](In v) {
      Rng rng(3);
      return dropout(v[0], 0.5, &rng);
    };
    CHECK(gradcheck(fixed, {{"x", x}}, {}, {.order = order}).ok());
  }
  int calls = 0;
  GradcheckReport report = gradcheck([&](In v) { return v[0] * ++calls; }, {{"x", x}});
  CHECK(report.verdict == Verdict::not_checked);
  CHECK(notes_say(report, "between two forward runs"));
  // The same values with another derivative each time.
  int passes = 0;
  auto flaky = [&](In v) {
    double factor = ++passes % 2;
    return record("flaky", v[0].value(), Input{v[0], [factor](const Var& g) { return factor * g; }});
  };
  report = gradcheck(flaky, {{"x", x}});
  CHECK(report.verdict == Verdict::not_checked);
  CHECK(notes_say(report, "between two backward runs"));
  // Even the shape may change.
  report = gradcheck([&](In v) { return slice(v[0], 0, 0, ++calls % 2 + 1); }, {{"x", x}});
  CHECK(report.verdict == Verdict::not_checked);
  CHECK(notes_say(report, "not deterministic"));
}

TEST_CASE("kinks are neither right nor wrong") {
  struct Kink {
    const char* name;
    Function f;
    Tensor x;
    const char* where;
  };
  const std::vector<Kink> kinks = {
      {"relu at 0", [](In x) { return relu(x[0]); }, f64({1, 0, -1}), "x0[1]"},
      {"absolute value at 0", [](In x) { return where(x[0] < 0, -x[0], x[0]); }, f64({0, 2}), "x0[0]"},
      {"max of equal elements", [](In x) { return max(x[0]); }, f64({1, 1}), "x0[0]"},
      {"sqrt at 0", [](In x) { return sqrt(x[0]); }, f64({4, 0}), "x0[1]"},
      {"a mask that switches", [](In x) { return masked_fill(x[0], x[0] > 1, 0); }, f64({0.5, 1}), "x0[1]"},
      {"clamped at its bound", [](In x) { return where(x[0] > 1, 1, x[0]); }, f64({{0.5, 3}, {2, 1}}), "x0[1, 1]"},
  };
  for (const Kink& kink : kinks) {
    INFO(kink.name);
    GradcheckReport report = check(kink.f, {kink.x});
    INFO(to_string(report));
    CHECK(report.verdict == Verdict::not_differentiable);
    CHECK_FALSE(report.ok());
    CHECK(notes_say(report, std::string("kink at ") + kink.where));
    CHECK(check(kink.f, {kink.x}, {.directions = 5}).verdict == Verdict::not_differentiable);
  }
  // Near a kink, at it with equal slopes, and at strong curvature there is nothing wrong.
  CHECK(check([](In x) { return relu(x[0]); }, {f64({1e-3, -1e-3, 5e-4, -5e-4})}).ok());
  CHECK(check([](In x) { return relu(x[0]) * relu(x[0]); }, {f64({0, 1})}).ok());
  CHECK(check([](In x) { return exp(20 * x[0]); }, {f64({0, 0.1})}).ok());
  CHECK(check([](In x) { return 1 / x[0]; }, {f64({0.05, -0.1})}).ok());
  // A wrong rule elsewhere is still wrong.
  auto wrong = [](In x) {
    return record("relu", relu(x[0].detach()).value(), Input{x[0], [](const Var& g) { return 2 * g; }});
  };
  CHECK(check(wrong, {f64({1, 0})}).verdict == Verdict::mismatch);
  // First-order kinks in second order.
  CHECK(check([](In x) { return relu(x[0]) * relu(x[0]); }, {f64({0, 1})}, {.order = 2}).verdict ==
        Verdict::not_differentiable);
}

TEST_CASE("the report lists what is wrong with the worst first") {
  Rng rng(5);
  auto drawn = [&](const Shape& shape) { return real(shape).make(shape, rng); };
  Parameter w1(drawn({4, 3})), b1(drawn({4})), w2(drawn({2, 4})), b2(drawn({2})), unused(drawn({2}));
  Tensor x = drawn({5, 3});
  const std::vector<NamedParameter> parameters = {
      {"hidden.weight", w1}, {"hidden.bias", b1}, {"out.weight", w2}, {"out.bias", b2}, {"spare.bias", unused}};

  // y = x W^T + b, with a bias gradient twice as large
  auto wrong_linear = [](const Var& in, const Var& weight, const Var& bias) {
    return record("linear", linear(in.detach(), weight.detach(), bias.detach()).value(),
                  Input{in, [weight](const Var& g) { return matmul(g, weight); }},
                  Input{weight, [in](const Var& g) { return matmul(transpose(g), in); }},
                  Input{bias, [](const Var& g) { return 2 * sum(g, 0); }});
  };
  auto net = [&](In v) { return linear(tanh(wrong_linear(v[0], w1, b1)), w2, b2); };
  GradcheckReport report = gradcheck(net, {{"x", x}}, parameters);
  CHECK(report.verdict == Verdict::mismatch);
  CHECK(report.worst == doctest::Approx(1).epsilon(1e-6));  // max|a - n| / max|n| = |2n - n| / |n|
  REQUIRE(report.rows.size() == 20);
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const GradcheckRow& row = report.rows[i];
    if (i > 0) CHECK(row.relative <= report.rows[i - 1].relative);
    if (i >= 8) continue;  // four elements along two projections
    CHECK(row.input == "hidden.bias");
    CHECK(row.analytic == doctest::Approx(2 * row.numeric).epsilon(1e-8));
    CHECK(row.absolute == doctest::Approx(std::abs(row.numeric)).epsilon(1e-8));
    CHECK(row.relative == doctest::Approx(0.5).epsilon(1e-8));  // |a - n| / max(|a|, |n|)
  }
  CHECK(report.rows[8].relative < 1e-8);
  CHECK(report.elements == 2 * (15 + 12 + 4 + 8 + 2 + 2));

  std::string text = to_string(report);
  for (const char* part : {"mismatch", "hidden.bias", "analytic", "numeric", "absolute", "relative", "[3]"}) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, part);
  }
  // A parameter that nothing depends on is no mistake of the rules, but is said.
  CHECK(notes_say(report, "spare.bias: not connected: no gradient reaches it (and the outputs do not depend on it)"));
  auto right = [&](In v) { return linear(tanh(linear(v[0], w1, b1)), w2, b2); };
  report = gradcheck(right, {{"x", x}}, parameters);
  CHECK(report.ok());
  CHECK(notes_say(report, "spare.bias: not connected"));

  // One that the output depends on behind the tape's back is one.
  report = gradcheck([&](In v) { return linear(tanh(linear(v[0], w1, b1.value())), w2, b2); }, {{"x", x}}, parameters);
  CHECK(report.verdict == Verdict::mismatch);
  CHECK(notes_say(report, "hidden.bias: not connected: no gradient reaches it, yet the outputs depend on it"));

  auto misshapen = [&](In v) {
    return record("mul", (v[0].detach() * 3).value(), Input{v[0], [](const Var& g) { return sum(g, 0); }});
  };
  report = gradcheck(misshapen, {{"x", x}});
  CHECK(report.verdict == Verdict::mismatch);
  CHECK(notes_say(report, "the backward pass throws"));
  CHECK(notes_say(report, "for an input f64 of shape (5, 3) returned a gradient f64 of shape (3,)"));
}

TEST_CASE("excluded rows are named and not compared") {
  Tensor ids = tensor({{0, 1, 1, 2}});
  auto f = [&](In v) { return embedding(v[0], ids, 0); };
  Tensor weight = f64({{1, 2}, {3, 4}, {5, 6}});
  for (int order : {1, 2}) {
    GradcheckOptions options{.order = order, .excluded = {{"weight", 0, "padding rule"}}};
    GradcheckReport report = gradcheck(f, {{"weight", weight}}, {}, options);
    INFO(to_string(report));
    CHECK(report.ok());
    CHECK(notes_say(report, "weight: row 0 excluded by padding rule"));
    options.directions = 3;
    CHECK(gradcheck(f, {{"weight", weight}}, {}, options).ok());
  }
  CHECK(gradcheck(f, {{"weight", weight}}).verdict == Verdict::mismatch);
  // An exclusion that fits nothing is a mistake in the call.
  CHECK_THROWS_WITH_AS(gradcheck(f, {{"weight", weight}}, {}, {.excluded = {{"wieght", 0, "padding rule"}}}),
                       doctest::Contains("wieght"), Error);
  CHECK_THROWS_WITH_AS(gradcheck(f, {{"weight", weight}}, {}, {.excluded = {{"weight", 3, "padding rule"}}}),
                       doctest::Contains("row 3"), Error);
}

TEST_CASE("inputs and parameters come back bit for bit") {
  Rng rng(6);
  Parameter weight(real({3, 2}).make({3, 2}, rng)), turned(real({2, 3}).make({2, 3}, rng).transpose());
  Tensor x = real({3, 2}).make({3, 2}, rng), before = x.clone(), w = weight.value().clone(), t = turned.value().clone();
  auto f = [&](In v) { return exp(v[0] * weight + turned); };
  for (GradcheckOptions options :
       {GradcheckOptions{}, GradcheckOptions{.order = 2}, GradcheckOptions{.directions = 3}}) {
    CHECK(gradcheck(f, {{"x", x}}, {{"weight", weight}, {"turned", turned}}, options).ok());
    CHECK(Array(x).data == Array(before).data);
    CHECK(Array(weight.value()).data == Array(w).data);
    CHECK(Array(turned.value()).data == Array(t).data);
  }
  // Also when the function throws in the middle.
  for (int last : {9, 40, 60}) {
    int calls = 0;
    auto failing = [&](In v) {
      if (++calls == last) fail("stop: {} calls", calls);
      return f(v);
    };
    GradcheckReport report = gradcheck(failing, {{"x", x}}, {{"weight", weight}, {"turned", turned}});
    CHECK(report.verdict == Verdict::not_checked);
    CHECK(notes_say(report, fmt::format("stop: {} calls", last)));
    CHECK(Array(x).data == Array(before).data);
    CHECK(Array(weight.value()).data == Array(w).data);
    CHECK(Array(turned.value()).data == Array(t).data);
  }
}

TEST_CASE("what cannot be checked is said") {
  GradcheckReport report = check([](In) -> Var { fail("never: works"); }, {f64({1})});
  CHECK(report.verdict == Verdict::not_checked);
  CHECK(notes_say(report, "never: works"));
  report = check([](In x) { return log(x[0]); }, {f64({0})});
  CHECK(report.verdict == Verdict::not_checked);
  CHECK(notes_say(report, "not finite"));
  report = check([](In x) { return argmax(x[0]); }, {f64({0})});
  CHECK(report.verdict == Verdict::not_checked);
  CHECK(notes_say(report, "i64"));
  CHECK_THROWS_WITH_AS(check([](In x) { return x[0]; }, {f64({0})}, {.order = 3}), doctest::Contains("got 3"), Error);
}

TEST_CASE("modules and models of the samples agree with differences") {
  for (const ModuleSample& sample : module_samples()) {
    ModuleCase given = sample.make();
    for (int order : {1, 2}) {
      INFO(sample.name, ", order ", order);
      given.options.order = order;
      GradcheckReport report = gradcheck(given.f, given.inputs, given.parameters, given.options);
      INFO(to_string(report));
      CHECK(report.ok());
    }
  }
}
}
