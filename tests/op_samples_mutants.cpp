#include "op_samples.h"

#include <tapedeck/ops/ops.h>

#include <cmath>

// Wrong rules, planted: what people get wrong when they write ops. Each comes with the right rule, which must pass.
namespace tapedeck::samples {
namespace {

using Rule = std::function<Var(const Var& x, const Var& g, const Var& y)>;

// f's values at x[0] with a rule of our own.
Function with_rule(const char* op, std::function<Var(const Var&)> f, Rule rule) {
  return [op, f, rule](In x) {
    return record(op, f(x[0].detach()).value(),
                  Input{x[0], [x = x[0], rule](const Var& g, const Var& y) { return rule(x, g, y); }});
  };
}

// (x - mean) / sqrt(variance + epsilon), along the last axis
Var normalise(const Var& x) {
  Var centred = x - mean(x, -1, true);
  return centred / sqrt(mean(centred * centred, -1, true) + 1e-5);
}

Var tanh_slope(const Var& y) { return 1 - y * y; }

}  // namespace

const std::vector<Mutant>& op_mutants() {
  static const std::vector<Mutant> mutants = [] {
    std::vector<Mutant> list;

    // ---- What L = sum(y) cannot see -------------------------------------------------------------------------------
    auto rotate = [](const Var& x) { return permute(x, {1, 2, 0}); };
    list.push_back(
        {.name = "permute: applies the same permutation",
         .wrong = with_rule("permute", rotate, [=](const Var&, const Var& g, const Var&) { return rotate(g); }),
         .right = [=](In x) { return rotate(x[0]); },
         .inputs = {real({2, 2, 2})},
         .hidden_by_sum = true});
    list.push_back(
        {.name = "mul: divides by the incoming gradient",
         .wrong = with_rule(
             "mul", [](const Var& x) { return x * 3; }, [](const Var&, const Var& g, const Var&) { return 3 / g; }),
         .right = [](In x) { return x[0] * 3; },
         .inputs = {real({2, 3})},
         .hidden_by_sum = true});
    list.push_back({.name = "tanh: ignores the incoming gradient",
                    .wrong = with_rule(
                        "tanh", [](const Var& x) { return tanh(x); },
                        [](const Var&, const Var&, const Var& y) { return tanh_slope(y); }),
                    .right = [](In x) { return tanh(x[0]); },
                    .inputs = {real({2, 3})},
                    .hidden_by_sum = true});
    list.push_back({.name = "softmax: returns zeros",
                    .wrong = with_rule(
                        "softmax", [](const Var& x) { return softmax(x); },
                        [](const Var&, const Var& g, const Var&) { return g * 0; }),
                    .right = [](In x) { return softmax(x[0]); },
                    .inputs = {real({2, 3})},
                    .hidden_by_sum = true});
    list.push_back(
        {.name = "normalise: returns zeros",
         .wrong = with_rule("normalise", normalise, [](const Var&, const Var& g, const Var&) { return g * 0; }),
         .right = [](In x) { return normalise(x[0]); },
         .inputs = {real({2, 4})},
         .hidden_by_sum = true});

    // ---- Wrong formulas ---------------------------------------------------------------------------------------------
    list.push_back({.name = "softmax: forgets that the row sums to 1",
                    .wrong = with_rule(
                        "softmax", [](const Var& x) { return softmax(x); },
                        [](const Var&, const Var& g, const Var& y) { return g * y * (1 - y); }),
                    .right = [](In x) { return softmax(x[0]); },
                    .inputs = {real({2, 3})}});
    list.push_back({.name = "log_softmax: sums along the wrong axis",
                    .wrong = with_rule(
                        "log_softmax", [](const Var& x) { return log_softmax(x); },
                        [](const Var&, const Var& g, const Var& y) { return g - exp(y) * sum(g, 0, true); }),
                    .right = [](In x) { return log_softmax(x[0]); },
                    .inputs = {real({3, 3})},
                    .hidden_by_sum = true});
    list.push_back({.name = "sigmoid: slope y (1 + y)",
                    .wrong = with_rule(
                        "sigmoid", [](const Var& x) { return sigmoid(x); },
                        [](const Var&, const Var& g, const Var& y) { return g * (y * (1 + y)); }),
                    .right = [](In x) { return sigmoid(x[0]); },
                    .inputs = {real({2, 3})}});
    list.push_back({.name = "mean: divides by the other extent",
                    .wrong = with_rule(
                        "mean", [](const Var& x) { return mean(x, 0, true); },
                        [](const Var& x, const Var& g, const Var&) {
                          return broadcast_to(g / static_cast<double>(x.size(1)), x.shape());
                        }),
                    .right = [](In x) { return mean(x[0], 0, true); },
                    .inputs = {real({2, 3})}});
    list.push_back({.name = "matmul: does not transpose",
                    .wrong =
                        [](In x) {
                          return record("matmul", matmul(x[0].value(), x[1].value()).value(),
                                        Input{x[0], [b = x[1]](const Var& g) { return matmul(g, b); }},
                                        Input{x[1], [a = x[0]](const Var& g) { return matmul(a, g); }});
                        },
                    .right = [](In x) { return matmul(x[0], x[1]); },
                    .inputs = {real({3, 3}), real({3, 3})}});
    list.push_back({.name = "linear: bias gradient twice as large",
                    .wrong =
                        [](In x) {
                          return record("linear", linear(x[0].value(), x[1].value(), x[2].value()).value(),
                                        Input{x[0], [w = x[1]](const Var& g) { return matmul(g, w); }},
                                        Input{x[1], [x = x[0]](const Var& g) { return matmul(transpose(g), x); }},
                                        Input{x[2], [](const Var& g) { return 2 * sum(g, 0); }});
                        },
                    .right = [](In x) { return linear(x[0], x[1], x[2]); },
                    .inputs = {real({3, 2}), real({4, 2}), real({4})}});
    list.push_back({.name = "embedding: a repeated id overwrites",
                    .wrong = with_rule(
                        "embedding",
                        [](const Var& w) {
                          return embedding(w, tensor({1, 0, 1}));
                        },
                        [](const Var&, const Var& g, const Var&) {
                          return stack({select(g, 0, 1), select(g, 0, 2)});
                        }),
                    .right =
                        [](In x) {
                          return embedding(x[0], tensor({1, 0, 1}));
                        },
                    .inputs = {real({2, 3})}});
    list.push_back({.name = "slice: puts the gradient one place off",
                    .wrong = with_rule(
                        "slice", [](const Var& x) { return slice(x, 0, 1, 5, 2); },
                        [](const Var& x, const Var& g, const Var&) { return slice_scatter(g, x.shape(), 0, 0, 2); }),
                    .right = [](In x) { return slice(x[0], 0, 1, 5, 2); },
                    .inputs = {real({5})}});
    list.push_back({.name = "cross_entropy: divides by ignored targets too",
                    .wrong = with_rule(
                        "cross_entropy",
                        [](const Var& x) {
                          return cross_entropy(x, tensor({2, 0, 1}), {.ignore_index = 0});
                        },
                        [](const Var& x, const Var& g, const Var&) {
                          Tensor hot = f64({{0, 0, 1}, {1, 0, 0}, {0, 1, 0}}), counted = f64({{1}, {0}, {1}});
                          return g * ((softmax(x) - hot) * counted / 3);
                        }),
                    .right =
                        [](In x) {
                          return cross_entropy(x[0], tensor({2, 0, 1}), {.ignore_index = 0});
                        },
                    .inputs = {real({3, 3})}});
    list.push_back(
        {.name = "sum: gradient of the wrong shape",
         .wrong = with_rule(
             "sum", [](const Var& x) { return sum(x, 0); }, [](const Var&, const Var& g, const Var&) { return g; }),
         .right = [](In x) { return sum(x[0], 0); },
         .inputs = {real({2, 3})}});
    list.push_back({.name = "mul: cuts one factor from the tape",
                    .wrong = [](In x) { return x[0] * x[0].detach(); },
                    .right = [](In x) { return x[0] * x[0]; },
                    .inputs = {real({2, 3})}});
    list.push_back({.name = "exp: does not reach its input",
                    .wrong = [](In x) { return exp(x[0].detach()); },
                    .right = [](In x) { return exp(x[0]); },
                    .inputs = {real({2, 3})}});

    // ---- Right at first order, wrong at second --------------------------------------------------------------------
    list.push_back({.name = "tanh: its slope is cut from the tape",
                    .wrong = with_rule(
                        "tanh", [](const Var& x) { return tanh(x); },
                        [](const Var&, const Var& g, const Var& y) { return g * tanh_slope(y.detach()); }),
                    .right = [](In x) { return tanh(x[0]); },
                    .inputs = {real({2, 3})},
                    .order = 2});
    list.push_back({.name = "mul: the gradient of the gradient is halved",
                    .wrong =
                        [](In x) {
                          auto halved = [](const Var& v) {  // v itself, with half of its derivative
                            return record("halved", v.value(), Input{v, [](const Var& g) { return 0.5 * g; }});
                          };
                          return record("mul", (x[0].detach() * x[1].detach()).value(),
                                        Input{x[0], [=, b = x[1]](const Var& g) { return g * halved(b); }},
                                        Input{x[1], [=, a = x[0]](const Var& g) { return g * halved(a); }});
                        },
                    .right = [](In x) { return x[0] * x[1]; },
                    .inputs = {real({2, 3}), real({2, 3})},
                    .order = 2});
    return list;
  }();
  return mutants;
}

}  // namespace tapedeck::samples
