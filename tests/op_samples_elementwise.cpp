#include "op_samples_families.h"

#include <algorithm>
#include <cmath>

namespace tapedeck::samples {
using namespace values;

namespace {

// 2 / sqrt(pi) sum_n (-1)^n x^(2n + 1) / (n! (2n + 1)), for small x
double erf_series(double x) {
  double total = 0, power = x;  // (-1)^n x^(2n + 1) / n!
  for (int n = 0; n < 60; ++n) {
    total += power / (2 * n + 1);
    power *= -x * x / (n + 1);
  }
  return 2 / std::sqrt(std::acos(-1)) * total;
}

void add_arithmetic(std::vector<Sample>& table) {
  const Bad no_broadcast{.shapes = {{2, 3}, {4}}};
  const Bad mixed{.shapes = {{2}, {2}}, .dtypes = {f32, DType::f64}, .says = {"f32", "f64"}, .names_shapes = false};

  // ---- add ----
  Reference plus = each([](const double* v) { return v[0] + v[1]; });
  table.push_back(
      {.op = "add",
       .f = [](In x) { return x[0] + x[1]; },
       .inputs = {real({3, 13}), real({3, 13})},
       .expect = plus,
       .empty = {{{0, 3}, {0, 3}}, {{0}, {1}}, {{2, 0}, {}}, {{3, 1}, {0}}},
       .specials = {{.in = {f64({inf, inf, 1, nan}), f64({1, -inf, 0, 1})}, .out = f64({inf, nan, 1, nan})}},
       .bad = {no_broadcast,
               mixed,
               {.shapes = {{3}, {3}}, .dtypes = {boolean, boolean}, .says = {"boolean"}, .names_shapes = false}}});
  table.push_back({.op = "add",
                   .variant = "broadcasting",
                   .f = [](In x) { return x[0] + x[1]; },
                   .inputs = {real({2, 1, 3}), real({4, 1})},
                   .expect = plus,
                   .specials = {{.in = {counting({2, 1, 3}), counting({4, 1})},
                                 .out = f64({{{0, 1, 2}, {1, 2, 3}, {2, 3, 4}, {3, 4, 5}},
                                             {{3, 4, 5}, {4, 5, 6}, {5, 6, 7}, {6, 7, 8}}}),
                                 .gradients = {f64({{{18, 22, 26}}, {{66, 70, 74}}}), f64({{42}, {60}, {78}, {96}})},
                                 .seed = counting({2, 4, 3})}}});
  table.push_back({.op = "add",
                   .variant = "rank 0",
                   .f = [](In x) { return x[0] + x[1]; },
                   .inputs = {real({}), real({5})},
                   .expect = plus});
  table.push_back({.op = "add",
                   .variant = "number",
                   .f = [](In x) { return 2 + (x[0] + 0.5); },
                   .inputs = {real({5})},
                   .expect = each([](const double* v) { return v[0] + 2.5; }),
                   .empty = {{{0}}}});
  table.push_back(
      {.op = "add",
       .variant = "i64",
       .f = [](In x) { return x[0] + x[1] + 3; },
       .inputs = {integers({2, 3}), integers({3})},
       .expect = each([](const double* v) { return v[0] + v[1] + 3; }),
       .order = 0,
       .bad = {{.shapes = {{2}, {2}}, .says = {"0.5"}, .f = [](In x) { return x[0] + 0.5; }, .names_shapes = false}}});

  // ---- sub ----
  Reference minus = each([](const double* v) { return v[0] - v[1]; });
  table.push_back({.op = "sub",
                   .f = [](In x) { return x[0] - x[1]; },
                   .inputs = {real({3, 13}), real({3, 13})},
                   .expect = minus,
                   .empty = {{{0, 3}, {0, 3}}, {{2, 0}, {}}},
                   .specials = {{.in = {f64({inf, inf, 1}), f64({1, inf, -1})}, .out = f64({inf, nan, 2})}},
                   .bad = {no_broadcast, mixed}});
  table.push_back({.op = "sub",
                   .variant = "broadcasting",
                   .f = [](In x) { return x[0] - x[1]; },
                   .inputs = {real({3}), real({2, 1})},
                   .expect = minus});
  table.push_back({.op = "sub",
                   .variant = "number",
                   .f = [](In x) { return 2 - (x[0] - 0.5); },
                   .inputs = {real({5})},
                   .expect = each([](const double* v) { return 2 - (v[0] - 0.5); })});
  table.push_back({.op = "sub",
                   .variant = "i64",
                   .f = [](In x) { return x[0] - x[1]; },
                   .inputs = {integers({2, 3}), integers({2, 1})},
                   .expect = minus,
                   .order = 0});

  // ---- mul ----
  Reference times = each([](const double* v) { return v[0] * v[1]; });
  table.push_back(
      {.op = "mul",
       .f = [](In x) { return x[0] * x[1]; },
       .inputs = {real({3, 13}), real({3, 13})},
       .expect = times,
       .empty = {{{0, 3}, {0, 3}}, {{0, 1}, {3}}, {{}, {0}}},
       .specials = {{.in = {f64({0, inf, nan, -1000}), f64({inf, -1, 0, 1000})}, .out = f64({nan, -inf, nan, -1e6})}},
       .bad = {no_broadcast, mixed}});
  table.push_back(
      {.op = "mul",
       .variant = "broadcasting",
       .f = [](In x) { return x[0] * x[1]; },
       .inputs = {real({2, 1, 3}), real({4, 1})},
       .expect = times,
       .specials = {
           {.in = {counting({2, 1, 3}), counting({4, 1})},
            .out = f64({{{0, 0, 0}, {0, 1, 2}, {0, 2, 4}, {0, 3, 6}}, {{0, 0, 0}, {3, 4, 5}, {6, 8, 10}, {9, 12, 15}}}),
            .gradients = {f64({{{42, 48, 54}}, {{114, 120, 126}}}), f64({{163}, {208}, {253}, {298}})},
            .seed = counting({2, 4, 3})}}});
  table.push_back({.op = "mul",
                   .variant = "number",
                   .f = [](In x) { return -2 * (x[0] * 0.25); },
                   .inputs = {real({5})},
                   .expect = each([](const double* v) { return -0.5 * v[0]; })});
  table.push_back({.op = "mul",
                   .variant = "i64",
                   .f = [](In x) { return x[0] * x[1]; },
                   .inputs = {integers({3}), integers({2, 1})},
                   .expect = times,
                   .order = 0});

  // ---- div ----
  Reference quotient = each([](const double* v) { return v[0] / v[1]; });
  table.push_back(
      {.op = "div",
       .f = [](In x) { return x[0] / x[1]; },
       .inputs = {positive({3, 13}), positive({3, 13})},
       .expect = quotient,
       .empty = {{{0, 3}, {0, 3}}, {{2, 0}, {}}},
       .specials = {{.in = {f64({1, -1, 0, 1, inf}), f64({0, 0, 0, inf, 2})}, .out = f64({inf, -inf, nan, 0, inf})},
                    // Where nothing comes in, nothing goes on, also at b = 0.
                    {.in = {f64({1, 0, 3}), f64({0, 0, 2})},
                     .out = f64({inf, nan, 1.5}),
                     .gradients = {f64({0, 0, 0.5}), f64({0, 0, -0.75})},
                     .seed = f64({0, 0, 1})}},
       .bad = {
           no_broadcast, mixed, {.shapes = {{3}, {3}}, .dtypes = {i64, i64}, .says = {"i64"}, .names_shapes = false}}});
  table.push_back({.op = "div",
                   .variant = "broadcasting",
                   .f = [](In x) { return x[0] / x[1]; },
                   .inputs = {real({3}), positive({2, 1})},
                   .expect = quotient});
  table.push_back({.op = "div",
                   .variant = "number",
                   .f = [](In x) { return 3 / (x[0] / 0.5); },
                   .inputs = {positive({5})},
                   .expect = each([](const double* v) { return 1.5 / v[0]; })});
}

void add_unary(std::vector<Sample>& table) {
  const std::vector<std::vector<Shape>> empty = {{{0, 3}}, {{3, 0}}, {{0}}};

  table.push_back({.op = "neg",
                   .f = [](In x) { return -x[0]; },
                   .inputs = {real({3, 13})},
                   .expect = each([](const double* v) { return -v[0]; }),
                   .empty = empty,
                   .specials = {{.in = {f64({0, 1, -inf, nan})}, .out = f64({-0.0, -1, inf, nan})}},
                   .bad = {{.shapes = {{2}}, .dtypes = {boolean}, .says = {"boolean"}, .names_shapes = false}}});
  table.push_back({.op = "neg",
                   .variant = "i64",
                   .f = [](In x) { return -x[0]; },
                   .inputs = {integers({2, 3})},
                   .expect = each([](const double* v) { return -v[0]; }),
                   .order = 0});
  table.push_back(
      {.op = "exp",
       .f = [](In x) { return exp(x[0]); },
       .inputs = {real({3, 13})},
       .expect = each([](const double* v) { return std::exp(v[0]); }),
       .empty = empty,
       .specials =
           {{.in = {f64({0, 1, -1000, -inf, nan})},
             .out = f64({1, std::exp(1), 0, 0, nan}),
             .gradients = {f64({1, std::exp(1), 0, 0, nan})}},
            {.in = {f64({1000, inf})}, .out = f64({inf, inf}), .gradients = {f64({0, 0})}, .seed = f64({0, 0})}},
       .bad = {not_floating}});
  table.push_back({.op = "exp",
                   .variant = "rank 0",
                   .f = [](In x) { return exp(x[0]); },
                   .inputs = {real({})},
                   .expect = each([](const double* v) { return std::exp(v[0]); })});
  table.push_back(
      {.op = "log",
       .f = [](In x) { return log(x[0]); },
       .inputs = {positive({3, 13})},
       .expect = each([](const double* v) { return std::log(v[0]); }),
       .empty = empty,
       .specials =
           {{.in = {f64({1, 1000, 0, -1, inf, nan})},
             .out = f64({0, std::log(1000), -inf, nan, inf, nan}),
             .gradients = {f64({1, 1e-3, inf, -1, 0, nan})}},
            {.in = {f64({0, 2})}, .out = f64({-inf, std::log(2)}), .gradients = {f64({0, 0.5})}, .seed = f64({0, 1})}},
       .bad = {not_floating}});
  table.push_back({.op = "sqrt",
                   .f = [](In x) { return sqrt(x[0]); },
                   .inputs = {positive({3, 13})},
                   .expect = each([](const double* v) { return std::sqrt(v[0]); }),
                   .empty = empty,
                   .specials = {{.in = {f64({4, 0, -1, inf, nan})},
                                 .out = f64({2, 0, nan, inf, nan}),
                                 .gradients = {f64({0.25, inf, nan, 0, nan})}},
                                {.in = {f64({0, 4, -1})},
                                 .out = f64({0, 2, nan}),
                                 .gradients = {f64({0, 0.25, 0})},
                                 .seed = f64({0, 1, 0})}},
                   .bad = {not_floating}});
  table.push_back({.op = "tanh",
                   .f = [](In x) { return tanh(x[0]); },
                   .inputs = {real({3, 13})},
                   .expect = each([](const double* v) { return std::tanh(v[0]); }),
                   .empty = empty,
                   .specials = {{.in = {f64({0, 1000, -1000, inf, -inf, nan})},
                                 .out = f64({0, 1, -1, 1, -1, nan}),
                                 .gradients = {f64({1, 0, 0, 0, 0, nan})}}},
                   .bad = {not_floating}});
  table.push_back({.op = "sigmoid",
                   .f = [](In x) { return sigmoid(x[0]); },
                   .inputs = {real({3, 13})},
                   .expect = each([](const double* v) { return 1 / (1 + std::exp(-v[0])); }),
                   .empty = empty,
                   .specials = {{.in = {f64({0, 1000, -1000, inf, -inf, nan})},
                                 .out = f64({0.5, 1, 0, 1, 0, nan}),
                                 .gradients = {f64({0.25, 0, 0, 0, 0, nan})}}},
                   .bad = {not_floating}});
  table.push_back({.op = "relu",
                   .f = [](In x) { return relu(x[0]); },
                   .inputs = {apart({3, 13})},
                   .expect = each([](const double* v) { return v[0] > 0 ? v[0] : 0; }),
                   .empty = empty,
                   .specials = {{.in = {f64({0, 1000, -1000, inf, -inf, 0.5})},
                                 .out = f64({0, 1000, 0, inf, 0, 0.5}),
                                 .gradients = {f64({0, 1, 0, 1, 0, 1})}},
                                {.in = {f64({nan, 1})}, .out = f64({nan, 1})}},
                   .bad = {not_floating}});
}

void add_choices(std::vector<Sample>& table) {
  Reference chosen = each([](const double* v) { return v[0] != 0 ? v[1] : v[2]; });
  const Bad no_mask{
      .shapes = {{2, 3}, {2, 3}, {2, 3}}, .dtypes = {f32, f32, f32}, .says = {"f32"}, .names_shapes = false};
  table.push_back({.op = "where",
                   .f = [](In x) { return where(x[0], x[1], x[2]); },
                   .inputs = {mask({2, 5}), real({2, 5}), real({2, 5})},
                   .expect = chosen,
                   .empty = {{{0}, {0}, {0}}, {{2, 0}, {2, 1}, {}}},
                   // Nothing comes from what was not chosen, not even an infinity.
                   .specials = {{.in = {tensor({true, false, false}), f64({1, nan, inf}), f64({nan, 2, 3})},
                                 .out = f64({1, 2, 3}),
                                 .gradients = {f64({5, 0, 0}), f64({0, 6, 7})},
                                 .seed = f64({5, 6, 7})}},
                   .bad = {{.shapes = {{2, 3}, {2, 3}, {4}}}, {.shapes = {{4}, {2, 3}, {2, 3}}}, no_mask}});
  table.push_back({.op = "where",
                   .variant = "broadcasting",
                   .f = [](In x) { return where(x[0], x[1], x[2]); },
                   .inputs = {mask({3}), real({2, 1}), real({})},
                   .expect = chosen});
  table.push_back({.op = "where",
                   .variant = "numbers",
                   .f = [](In x) { return where(x[0], x[1], 0.5) + where(x[0], -1, x[1]); },
                   .inputs = {mask({2, 3}), real({2, 3})},
                   .expect = each([](const double* v) { return v[0] != 0 ? v[1] - 1 : 0.5 + v[1]; })});

  table.push_back(
      {.op = "masked_fill",
       .f = [](In x) { return masked_fill(x[0], x[1], -7.5); },
       .inputs = {real({2, 5}), mask({2, 5})},
       .expect = each([](const double* v) { return v[1] != 0 ? -7.5 : v[0]; }),
       .empty = {{{0, 3}, {3}}, {{2, 0}, {}}},
       .specials = {{.in = {f64({nan, 2, inf}), tensor({true, false, true})},
                     .out = f64({-7.5, 2, -7.5}),
                     .gradients = {f64({0, 1, 0})}}},
       .bad = {{.shapes = {{2, 3}, {4}}},
               {.shapes = {{3}, {2, 3}}},
               {.shapes = {{3}, {3}}, .dtypes = {f32, f32}, .says = {"f32", "boolean"}, .names_shapes = false}}});
  table.push_back({.op = "masked_fill",
                   .variant = "broadcasting",
                   .f = [](In x) { return masked_fill(x[0], x[1], 0); },
                   .inputs = {real({2, 3, 2}), mask({3, 1})},
                   .expect =
                       [](const std::vector<Array>& in) {
                         return each([](const double* v) { return v[1] != 0 ? 0 : v[0]; })(in);
                       }});

  using Compare = bool (*)(double, double);
  auto comparison = [&](const char* op, Var (*f)(Operand, Operand), Compare expected,
                        std::initializer_list<bool> special) {
    Reference reference = each([expected](const double* v) { return expected(v[0], v[1]) ? 1.0 : 0.0; });
    Tensor out = Tensor::from(std::span<const bool>(special.begin(), special.size()), {4});
    table.push_back(
        {.op = op,
         .f = [f](In x) { return f(x[0], x[1]); },
         .inputs = {whole({3, 13}), whole({3, 13})},
         .expect = reference,
         .order = 0,
         .empty = {{{0, 3}, {3}}, {{2, 0}, {}}},
         .specials = {{.in = {f64({nan, inf, 0, -inf}), f64({nan, inf, -0.0, 1000})}, .out = out}},
         .bad = {{.shapes = {{2, 3}, {4}}},
                 {.shapes = {{2}, {2}}, .dtypes = {f32, i64}, .says = {"f32", "i64"}, .names_shapes = false}}});
    table.push_back({.op = op,
                     .variant = "number",
                     .f =
                         [f](In x) {
                           return stack({f(x[0], 1), f(1, x[0])});
                         },
                     .inputs = {whole({5})},
                     .expect =
                         [expected](const std::vector<Array>& in) {
                           Array y({2, in[0].shape[0]});
                           for_each_index(in[0].shape, [&](const Index& i) {
                             y({0, i[0]}) = expected(in[0](i), 1);
                             y({1, i[0]}) = expected(1, in[0](i));
                           });
                           return y;
                         },
                     .order = 0});
    table.push_back({.op = op,
                     .variant = "i64",
                     .f = [f](In x) { return f(x[0], x[1]); },
                     .inputs = {integers({2, 5}), integers({5})},
                     .expect = reference,
                     .order = 0});
    table.push_back({.op = op,
                     .variant = "boolean",
                     .f = [f](In x) { return f(x[0], x[1]); },
                     .inputs = {mask({2, 5}), mask({2, 1})},
                     .expect = reference,
                     .order = 0});
  };
  comparison("eq", eq, [](double u, double v) { return u == v; }, {false, true, true, false});
  comparison("ne", ne, [](double u, double v) { return u != v; }, {true, false, false, true});
  comparison("lt", lt, [](double u, double v) { return u < v; }, {false, false, false, true});
  comparison("le", le, [](double u, double v) { return u <= v; }, {false, true, true, true});
  comparison("gt", gt, [](double u, double v) { return u > v; }, {false, false, false, false});
  comparison("ge", ge, [](double u, double v) { return u >= v; }, {false, true, true, false});
}

void add_smooth(std::vector<Sample>& table) {
  const std::vector<std::vector<Shape>> empty = {{{0, 3}}, {{3, 0}}, {{0}}};
  auto row = [&](const char* op, Var (*f)(Operand), std::function<double(double)> expect, std::vector<Special> specials,
                 const Bad& bad = not_floating) {
    table.push_back({.op = op,
                     .f = [f](In x) { return f(x[0]); },
                     .inputs = {real({3, 13})},
                     .expect = each([expect](const double* v) { return expect(v[0]); }),
                     .empty = empty,
                     .specials = std::move(specials),
                     .bad = {bad}});
    table.push_back({.op = op,
                     .variant = "rank 0",
                     .f = [f](In x) { return f(x[0]); },
                     .inputs = {real({})},
                     .expect = each([expect](const double* v) { return expect(v[0]); })});
  };
  row("erf", erf, erf_series,
      {{.in = {f64({0, 0.5, 1000, -1000, inf, -inf, nan})},
        .out = f64({0, 0.5204998778130465, 1, -1, 1, -1, nan}),
        .gradients = {f64({1.1283791670955126, 0.8787825789354448, 0, 0, 0, 0, nan})}}});
  row("gelu", gelu, [](double x) { return x / 2 * (1 + erf_series(x / std::sqrt(2))); },
      {{.in = {f64({0, 1, -1, 1000, -1000, inf, -inf, nan})},
        .out = f64({0, 0.8413447460685429, -0.15865525393145707, 1000, 0, inf, 0, nan}),
        .gradients = {f64({0.5, 1.0833154705876864, -0.08331547058768629, 1, 0, 1, 0, nan})}}});
  row("softplus", softplus, [](double x) { return std::log(1 + std::exp(x)); },
      {{.in = {f64({-1000, 0, 50, 1000, inf, -inf, nan})},
        .out = f64({0, std::log(2), 50, 1000, inf, 0, nan}),
        .gradients = {f64({0, 0.5, 1, 1, 1, 0, nan})}}});
  row("log_sigmoid", log_sigmoid, [](double x) { return -std::log(1 + std::exp(-x)); },
      {{.in = {f64({-1000, -50, 0, 1000, inf, -inf, nan})},
        .out = f64({-1000, -50, -std::log(2), 0, 0, -inf, nan}),
        .gradients = {f64({1, 1, 0.5, 0, 0, 1, nan})}}});
  // sin and cos by their series
  auto series = [](double x, int n) {
    double total = 0, term = n == 0 ? 1 : x;
    for (; n < 60; n += 2) {
      total += term;
      term *= -x * x / ((n + 1) * (n + 2));
    }
    return total;
  };
  row("sin", sin, [series](double x) { return series(x, 1); },
      {{.in = {f64({0, 1000, -1000, inf, nan})},
        .out = f64({0, 0.8268795405320025, -0.8268795405320025, nan, nan}),
        .gradients = {f64({1, 0.5623790762907029, 0.5623790762907029, nan, nan})}}});
  row("cos", cos, [series](double x) { return series(x, 0); },
      {{.in = {f64({0, 1000, -1000, -inf, nan})},
        .out = f64({1, 0.5623790762907029, 0.5623790762907029, nan, nan}),
        .gradients = {f64({0, -0.8268795405320025, 0.8268795405320025, nan, nan})}}});
  row("square", square, [](double x) { return x * x; },
      {{.in = {f64({0, 1000, -1000, inf, -inf, nan})},
        .out = f64({0, 1e6, 1e6, inf, inf, nan}),
        .gradients = {f64({0, 2000, -2000, inf, -inf, nan})}}},
      {.shapes = {{2}}, .dtypes = {boolean}, .says = {"boolean"}, .names_shapes = false});
  table.push_back({.op = "square",
                   .variant = "i64",
                   .f = [](In x) { return square(x[0]); },
                   .inputs = {integers({2, 3})},
                   .expect = each([](const double* v) { return v[0] * v[0]; }),
                   .order = 0});

  // ---- pow ----
  auto power = [&](const char* variant, double exponent, const Draw& x, std::vector<Special> specials) {
    table.push_back({.op = "pow",
                     .variant = variant,
                     .f = [exponent](In v) { return pow(v[0], exponent); },
                     .inputs = {x},
                     .expect = each([exponent](const double* v) {
                       const double magnitude = std::exp(exponent * std::log(std::abs(v[0])));
                       return v[0] < 0 && std::fmod(exponent, 2) != 0 ? -magnitude : magnitude;
                     }),
                     .empty = empty,
                     .specials = std::move(specials),
                     .bad = {not_floating}});
  };
  // Where nothing comes in, nothing goes on, also where the slope is infinite.
  power("", 2.5, positive({3, 13}),
        {{.in = {f64({0, 4, -1, inf, nan})},
          .out = f64({0, 32, nan, inf, nan}),
          .gradients = {f64({0, 20, nan, inf, nan})}},
         {.in = {f64({inf, -1, 4})},
          .out = f64({inf, nan, 32}),
          .gradients = {f64({0, 0, 20})},
          .seed = f64({0, 0, 1})}});
  power("cube", 3, apart({3, 5}),
        {{.in = {f64({0, -2, 1000, -inf})}, .out = f64({0, -8, 1e9, -inf}), .gradients = {f64({0, 12, 3e6, inf})}}});
  power("square", 2, apart({5}),
        {{.in = {f64({0, -1000, inf})}, .out = f64({0, 1e6, inf}), .gradients = {f64({0, -2000, inf})}}});
  power("root", 0.5, positive({5}),
        {{.in = {f64({0, 4, -1})}, .out = f64({0, 2, nan}), .gradients = {f64({inf, 0.25, nan})}},
         {.in = {f64({0, 4, -1})}, .out = f64({0, 2, nan}), .gradients = {f64({0, 0.25, 0})}, .seed = f64({0, 1, 0})}});
  power(
      "reciprocal", -1, positive({5}),
      {{.in = {f64({0, 2, -1000, inf})}, .out = f64({inf, 0.5, -1e-3, 0}), .gradients = {f64({-inf, -0.25, -1e-6, 0})}},
       {.in = {f64({0, 2})}, .out = f64({inf, 0.5}), .gradients = {f64({0, -0.25})}, .seed = f64({0, 1})}});
  power("exponent 1", 1, apart({5}), {{.in = {f64({0, -2})}, .out = f64({0, -2}), .gradients = {f64({1, 1})}}});
  power("exponent 0", 0, apart({5}),
        {{.in = {f64({0, inf, nan})}, .out = f64({1, 1, 1}), .gradients = {f64({0, 0, 0})}}});
}

void add_bends(std::vector<Sample>& table) {
  const Bad no_broadcast{.shapes = {{2, 3}, {4}}};
  const Bad mixed{.shapes = {{2}, {2}}, .dtypes = {f32, DType::f64}, .says = {"f32", "f64"}, .names_shapes = false};
  const Bad logical{.shapes = {{2}, {2}}, .dtypes = {boolean, boolean}, .says = {"boolean"}, .names_shapes = false};

  table.push_back({.op = "abs",
                   .f = [](In x) { return abs(x[0]); },
                   .inputs = {apart({3, 13})},
                   .expect = each([](const double* v) { return v[0] > 0 ? v[0] : -v[0]; }),
                   .empty = {{{0, 3}}, {{3, 0}}},
                   .specials = {{.in = {f64({0, -0.0, 1000, -1000, inf, -inf})},
                                 .out = f64({0, 0, 1000, 1000, inf, inf}),
                                 .gradients = {f64({0, 0, 1, -1, 1, -1})}},
                                {.in = {f64({nan, -1})}, .out = f64({nan, 1})}},
                   .bad = {{.shapes = {{2}}, .dtypes = {boolean}, .says = {"boolean"}, .names_shapes = false}}});
  table.push_back({.op = "abs",
                   .variant = "i64",
                   .f = [](In x) { return abs(x[0]); },
                   .inputs = {integers({2, 3})},
                   .expect = each([](const double* v) { return std::abs(v[0]); }),
                   .order = 0});

  // Never as large as a place of `apart`, nor near one.
  auto between = [](const Shape& shape) {
    Draw draw = apart(shape);
    draw.element = [inner = draw.element](int64_t i, int64_t n, Rng& rng) { return inner(i, n, rng) + 0.075; };
    return draw;
  };
  auto extremum = [&](const char* op, Var (*f)(Operand, Operand), bool largest, std::vector<Special> specials) {
    Reference expect = each([largest](const double* v) { return (v[0] > v[1]) == largest ? v[0] : v[1]; });
    table.push_back({.op = op,
                     .f = [f](In x) { return f(x[0], x[1]); },
                     .inputs = {apart({3, 13}), between({3, 13})},
                     .expect = expect,
                     .empty = {{{0, 3}, {3}}, {{2, 0}, {}}},
                     .specials = std::move(specials),
                     .bad = {no_broadcast, mixed, logical}});
    table.push_back({.op = op,
                     .variant = "broadcasting",
                     .f = [f](In x) { return f(x[0], x[1]); },
                     .inputs = {apart({2, 1, 3}), between({4, 1})},
                     .expect = expect});
    table.push_back({.op = op,
                     .variant = "number",
                     .f = [f](In x) { return f(x[0], 0) + f(0.3, x[0]); },
                     .inputs = {apart({9})},
                     .expect = each([largest](const double* v) {
                       return ((v[0] > 0) == largest ? v[0] : 0) + ((v[0] > 0.3) == largest ? v[0] : 0.3);
                     })});
    table.push_back({.op = op,
                     .variant = "i64",
                     .f = [f](In x) { return f(x[0], x[1]); },
                     .inputs = {integers({2, 5}), integers({5})},
                     .expect = expect,
                     .order = 0});
  };
  // Equal ones share evenly.
  extremum("maximum", maximum, true,
           {{.in = {f64({1, 2, inf, -inf, -1000}), f64({1, 3, inf, 0, -inf})},
             .out = f64({1, 3, inf, 0, -1000}),
             .gradients = {f64({1, 0, 3, 0, 5}), f64({1, 2, 3, 4, 0})},
             .seed = f64({2, 2, 6, 4, 5})},
            {.in = {f64({nan, 1, nan}), f64({1, nan, nan})}, .out = f64({nan, nan, nan})}});
  extremum("minimum", minimum, false,
           {{.in = {f64({1, 2, -inf, -inf, -1000}), f64({1, 3, -inf, 0, inf})},
             .out = f64({1, 2, -inf, -inf, -1000}),
             .gradients = {f64({1, 2, 3, 4, 5}), f64({1, 0, 3, 0, 0})},
             .seed = f64({2, 2, 6, 4, 5})},
            {.in = {f64({nan, 1, nan}), f64({1, nan, nan})}, .out = f64({nan, nan, nan})}});

  // Both bounds are inside.
  table.push_back(
      {.op = "clamp",
       .f = [](In x) { return clamp(x[0], -0.9, 1.2); },
       .inputs = {apart({3, 13})},
       .expect = each([](const double* v) { return v[0] < -0.9  ? -0.9
                                                   : v[0] > 1.2 ? 1.2
                                                                : v[0]; }),
       .empty = {{{0, 3}}, {{3, 0}}},
       .bad = {
           not_floating,
           {.shapes = {{2}}, .says = {"2", "1"}, .f = [](In x) { return clamp(x[0], 2, 1); }, .names_shapes = false},
           {.shapes = {{2}}, .says = {"nan"}, .f = [](In x) { return clamp(x[0], nan, 1); }, .names_shapes = false}}});
  table.push_back({.op = "clamp",
                   .variant = "at the bounds",
                   .f = [](In x) { return clamp(x[0], -0.5, 2); },
                   .inputs = {apart({5})},
                   .expect = each([](const double* v) { return std::min(std::max(v[0], -0.5), 2.); }),
                   .specials = {{.in = {f64({-0.5, 2, 0, 1000, -1000, inf, -inf})},
                                 .out = f64({-0.5, 2, 0, 2, -0.5, 2, -0.5}),
                                 .gradients = {f64({1, 1, 1, 0, 0, 0, 0})}},
                                {.in = {f64({nan, 1})}, .out = f64({nan, 1})}}});
  table.push_back(
      {.op = "clamp",
       .variant = "one bound",
       .f = [](In x) { return clamp(x[0], 0, inf); },
       .inputs = {apart({5})},
       .expect = each([](const double* v) { return std::max(v[0], 0.); }),
       .specials = {{.in = {f64({0, inf, -inf})}, .out = f64({0, inf, 0}), .gradients = {f64({1, 1, 0})}}}});
}

void add_logic(std::vector<Sample>& table) {
  const Bad not_boolean{.shapes = {{2, 3}, {2, 3}},
                        .dtypes = {boolean, f32},
                        .says = {"boolean", "f32", "(2, 3)"},
                        .names_shapes = false};
  auto row = [&](const char* op, Var (*f)(Operand, Operand), bool (*expect)(bool, bool)) {
    Reference reference = each([expect](const double* v) { return expect(v[0] != 0, v[1] != 0) ? 1.0 : 0.0; });
    table.push_back({.op = op,
                     .f = [f](In x) { return f(x[0], x[1]); },
                     .inputs = {mask({3, 13}), mask({3, 13})},
                     .expect = reference,
                     .order = 0,
                     .empty = {{{0, 3}, {3}}, {{2, 0}, {}}},
                     .bad = {{.shapes = {{2, 3}, {4}}}, not_boolean}});
    table.push_back({.op = op,
                     .variant = "broadcasting",
                     .f = [f](In x) { return f(x[0], x[1]); },
                     .inputs = {mask({4, 1}), mask({5})},
                     .expect = reference,
                     .order = 0});
  };
  row(
      "logical_and", [](Operand a, Operand b) { return a & b; }, [](bool a, bool b) { return a && b; });
  row(
      "logical_or", [](Operand a, Operand b) { return a | b; }, [](bool a, bool b) { return a || b; });
  row(
      "logical_xor", [](Operand a, Operand b) { return a ^ b; }, [](bool a, bool b) { return a != b; });
  table.push_back({.op = "logical_not",
                   .f = [](In x) { return ~x[0]; },
                   .inputs = {mask({3, 13})},
                   .expect = each([](const double* v) { return v[0] != 0 ? 0.0 : 1.0; }),
                   .order = 0,
                   .empty = {{{0, 3}}, {{3, 0}}},
                   .bad = {{.shapes = {{2, 3}}, .dtypes = {f32}, .says = {"boolean", "f32"}}}});
}

}  // namespace

void add_elementwise(std::vector<Sample>& table) {
  add_arithmetic(table);
  add_unary(table);
  add_choices(table);
  add_smooth(table);
  add_bends(table);
  add_logic(table);
}

}  // namespace tapedeck::samples
