#include "op_samples.h"

#include <tapedeck/ops/ops.h>

#include <cmath>
#include <limits>

namespace tapedeck::samples {

// ---- Drawing ------------------------------------------------------------------------------------------------------

Tensor Draw::make(const Shape& extents, Rng& rng) const {
  Tensor x = Tensor::empty(extents, dtype);
  const int64_t n = x.numel();
  const std::vector<int64_t> place = rng.permutation(n);  // so that `element` may depend on i without an order to see
  dispatch(dtype, [&]<class T> {
    T* p = x.mutable_data<T>();
    for (int64_t i = 0; i < n; ++i) p[place[static_cast<size_t>(i)]] = static_cast<T>(element(i, n, rng));
  });
  return x;
}

Draw real(const Shape& shape, double low, double high) {
  return {shape, DType::f64, [low, high](int64_t, int64_t, Rng& rng) { return rng.uniform(low, high); }};
}

Draw positive(const Shape& shape) { return real(shape, 0.5, 2.5); }

Draw apart(const Shape& shape) {
  return {shape, DType::f64, [](int64_t i, int64_t n, Rng& rng) {
            // steps of 0.15 on both sides of 0, each shifted by less than a third of that
            return 0.15 * (static_cast<double>(i - n / 2) + 0.5) + rng.uniform(-0.02, 0.02);
          }};
}

Draw whole(const Shape& shape) {
  return {shape, DType::f64, [](int64_t, int64_t, Rng& rng) { return static_cast<double>(rng.below(5) - 2); }};
}

Draw integers(const Shape& shape) {
  return {shape, DType::i64, [](int64_t, int64_t, Rng& rng) { return static_cast<double>(rng.below(11) - 5); }};
}

Draw ids(const Shape& shape, int64_t bound) {
  return {shape, DType::i64, [bound](int64_t, int64_t, Rng& rng) { return static_cast<double>(rng.below(bound)); }};
}

Draw mask(const Shape& shape) {
  return {shape, DType::boolean, [](int64_t, int64_t, Rng& rng) { return rng.below(3) > 0 ? 1.0 : 0.0; }};
}

Tensor f64(const NestedList& values) { return tensor(values, DType::f64); }

std::vector<Tensor> draw(const std::vector<Draw>& inputs, std::string_view name) {
  std::vector<Tensor> drawn;
  for (const Draw& input : inputs) {
    Rng rng = Rng(1).split(name).split(drawn.size());
    drawn.push_back(input.make(input.shape, rng));
  }
  return drawn;
}

GradcheckReport check(const Function& f, const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  std::vector<NamedTensor> varied;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_floating(inputs[i].dtype())) varied.push_back({fmt::format("x{}", i), inputs[i]});
  }
  auto g = [&](In x) {
    std::vector<Var> all(inputs.begin(), inputs.end());
    size_t next = 0;
    for (Var& v : all) {
      if (is_floating(v.dtype())) v = x[next++];
    }
    return f(all);
  };
  return gradcheck(g, varied, {}, options);
}

// ---- The table ----------------------------------------------------------------------------------------------------

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr DType f32 = DType::f32, i64 = DType::i64, boolean = DType::boolean;

Tensor counting(const Shape& shape) { return Tensor::arange(shape.numel(), DType::f64).reshape(shape); }
Tensor zeros(const Shape& shape) { return Tensor::zeros(shape, DType::f64); }
Tensor ones(const Shape& shape) { return Tensor::ones(shape, DType::f64); }

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
  const Bad not_floating{.shapes = {{2, 3}}, .dtypes = {i64}, .says = {"i64"}, .names_shapes = false};

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

void add_reductions(std::vector<Sample>& table) {
  const Bad no_axis{.shapes = {{3}}, .says = {"axis 1", "rank 1"}, .names_shapes = false};
  const Bad twice{.shapes = {{2, 3}},
                  .says = {"twice"},
                  .f =
                      [](In x) {
                        return sum(x[0], {0, -2});
                      },
                  .names_shapes = false};

  // ---- sum ----
  table.push_back({.op = "sum",
                   .f = [](In x) { return sum(x[0]); },
                   .inputs = {real({3, 13})},
                   .expect = over({}, false, sum_of),
                   .empty = {{{0}}, {{2, 0}}},
                   .specials = {{.in = {f64({1, inf, 2})}, .out = f64(inf), .gradients = {f64({1, 1, 1})}}},
                   .bad = {{.shapes = {{3}}, .dtypes = {boolean}, .says = {"boolean"}, .names_shapes = false}, twice}});
  table.push_back({.op = "sum",
                   .variant = "rank 0",
                   .f = [](In x) { return sum(x[0]); },
                   .inputs = {real({})},
                   .expect = over({}, false, sum_of)});
  table.push_back({.op = "sum",
                   .variant = "last axis",
                   .f = [](In x) { return sum(x[0], -1); },
                   .inputs = {real({2, 3, 4})},
                   .expect = over({-1}, false, sum_of),
                   .empty = {{{2, 0}}, {{0, 2}}}});
  table.push_back({.op = "sum",
                   .variant = "middle axis",
                   .f = [](In x) { return sum(x[0], 1); },
                   .inputs = {real({2, 3, 4})},
                   .expect = over({1}, false, sum_of),
                   .empty = {{{2, 0, 3}}, {{2, 3, 0}}},
                   .bad = {no_axis}});
  table.push_back({.op = "sum",
                   .variant = "outer axes kept",
                   .f =
                       [](In x) {
                         return sum(x[0], {0, 2}, true);
                       },
                   .inputs = {real({2, 3, 4})},
                   .expect = over({0, 2}, true, sum_of),
                   .empty = {{{0, 3, 2}}, {{2, 0, 2}}}});
  table.push_back({.op = "sum",
                   .variant = "no axes",
                   .f = [](In x) { return sum(x[0], {}); },
                   .inputs = {real({2, 3})},
                   .expect = each([](const double* v) { return v[0]; })});
  table.push_back({.op = "sum",
                   .variant = "i64",
                   .f = [](In x) { return sum(x[0], 0); },
                   .inputs = {integers({4, 3})},
                   .expect = over({0}, false, sum_of),
                   .order = 0});

  // ---- mean ----
  table.push_back({.op = "mean",
                   .f = [](In x) { return mean(x[0]); },
                   .inputs = {real({3, 13})},
                   .expect = over({}, false, mean_of),
                   .specials = {{.in = {f64({1, 2, 6})}, .out = f64(3), .gradients = {f64({1. / 3, 1. / 3, 1. / 3})}}},
                   .bad = {{.shapes = {{0, 3}}, .says = {"no elements"}},
                           {.shapes = {{3}}, .dtypes = {i64}, .says = {"i64"}, .names_shapes = false}}});
  table.push_back({.op = "mean",
                   .variant = "first axis",
                   .f = [](In x) { return mean(x[0], 0); },
                   .inputs = {real({4, 3})},
                   .expect = over({0}, false, mean_of),
                   .empty = {{{3, 0}}},
                   .bad = {{.shapes = {{}}, .says = {"axis 0"}, .names_shapes = false}}});
  table.push_back({.op = "mean",
                   .variant = "two axes kept",
                   .f =
                       [](In x) {
                         return mean(x[0], {-1, 0}, true);
                       },
                   .inputs = {real({2, 3, 4})},
                   .expect = over({0, 2}, true, mean_of)});

  // ---- max ----
  table.push_back(
      {.op = "max",
       .f = [](In x) { return max(x[0]); },
       .inputs = {apart({3, 7})},
       .expect = over({}, false, max_of),
       // Ties share evenly.
       .specials = {{.in = {f64({1, 2, 2, 2})}, .out = f64(2), .gradients = {f64({0, 1. / 3, 1. / 3, 1. / 3})}},
                    {.in = {f64({-inf, -1000, -inf})}, .out = f64(-1000), .gradients = {f64({0, 1, 0})}},
                    {.in = {f64({-inf, -inf})}, .out = f64(-inf), .gradients = {f64({0.5, 0.5})}},
                    {.in = {f64({1, nan, 2})}, .out = f64(nan)}},
       .bad = {{.shapes = {{0, 3}}, .says = {"no elements"}},
               {.shapes = {{3}}, .dtypes = {boolean}, .says = {"boolean"}, .names_shapes = false}}});
  table.push_back({.op = "max",
                   .variant = "first axis",
                   .f = [](In x) { return max(x[0], 0); },
                   .inputs = {apart({4, 3})},
                   .expect = over({0}, false, max_of),
                   .empty = {{{3, 0}}},
                   .specials = {{.in = {f64({{1, 5}, {1, 2}})},
                                 .out = f64({1, 5}),
                                 .gradients = {f64({{1, 6}, {1, 0}})},
                                 .seed = f64({2, 6})}},
                   .bad = {{.shapes = {{0, 3}}, .says = {"no elements"}}}});
  table.push_back({.op = "max",
                   .variant = "two axes kept",
                   .f =
                       [](In x) {
                         return max(x[0], {0, 2}, true);
                       },
                   .inputs = {apart({2, 3, 4})},
                   .expect = over({0, 2}, true, max_of)});
  table.push_back({.op = "max",
                   .variant = "i64",
                   .f = [](In x) { return max(x[0], -1); },
                   .inputs = {integers({2, 5})},
                   .expect = over({-1}, false, max_of),
                   .order = 0});

  // ---- argmax ----
  table.push_back(
      {.op = "argmax",
       .f = [](In x) { return argmax(x[0]); },
       .inputs = {whole({3, 7})},
       .expect = over({-1}, false, argmax_of),
       .order = 0,
       .empty = {{{0, 3}}},
       .specials = {{.in = {f64({1, 2, 2})}, .out = tensor(1)}, {.in = {f64({-inf, -1000, inf})}, .out = tensor(2)}},
       .bad = {{.shapes = {{3, 0}}, .says = {"no elements"}},
               {.shapes = {{3}},
                .says = {"NaN", "1"},
                .f =
                    [](In) {
                      return argmax(f64({1, nan, 2}));
                    },
                .names_shapes = false}}});
  table.push_back({.op = "argmax",
                   .variant = "first axis kept",
                   .f = [](In x) { return argmax(x[0], 0, true); },
                   .inputs = {whole({4, 3})},
                   .expect = over({0}, true, argmax_of),
                   .order = 0,
                   .bad = {{.shapes = {{}}, .says = {"axis 0"}, .names_shapes = false}}});
  table.push_back({.op = "argmax",
                   .variant = "i64",
                   .f = [](In x) { return argmax(x[0], 0); },
                   .inputs = {integers({4, 3})},
                   .expect = over({0}, false, argmax_of),
                   .order = 0});

  // ---- logsumexp ----
  table.push_back(
      {.op = "logsumexp",
       .f = [](In x) { return logsumexp(x[0]); },
       .inputs = {real({3, 5})},
       .expect = over({}, false, logsumexp_of),
       .empty = {{{0}}},
       .specials = {{.in = {f64({1000, 1000})}, .out = f64(1000 + std::log(2)), .gradients = {f64({0.5, 0.5})}},
                    {.in = {f64({-1000, 0, -inf})}, .out = f64(0), .gradients = {f64({0, 1, 0})}},
                    {.in = {f64({-inf, -inf})}, .out = f64(-inf), .gradients = {f64({0, 0})}},
                    {.in = {f64({inf, 0})}, .out = f64(inf)},
                    {.in = {f64({nan, 0})}, .out = f64(nan)}},
       .bad = {{.shapes = {{3}}, .dtypes = {i64}, .says = {"i64"}, .names_shapes = false}}});
  table.push_back({.op = "logsumexp",
                   .variant = "first axis",
                   .f = [](In x) { return logsumexp(x[0], 0); },
                   .inputs = {real({4, 3})},
                   .expect = over({0}, false, logsumexp_of),
                   .empty = {{{0, 3}}, {{3, 0}}},
                   .bad = {{.shapes = {{}}, .says = {"axis 0"}, .names_shapes = false}}});
  table.push_back({.op = "logsumexp",
                   .variant = "two axes kept",
                   .f =
                       [](In x) {
                         return logsumexp(x[0], {0, 2}, true);
                       },
                   .inputs = {real({2, 3, 4})},
                   .expect = over({0, 2}, true, logsumexp_of)});
}

void add_shapes(std::vector<Sample>& table) {
  auto same_order = [](const Shape& shape) {
    return [shape](const std::vector<Array>& in) {
      Array y = in[0];
      y.shape = shape;
      return y;
    };
  };

  // ---- reshape ----
  table.push_back({.op = "reshape",
                   .f =
                       [](In x) {
                         return reshape(x[0], {3, 4});
                       },
                   .inputs = {real({2, 6})},
                   .expect = same_order({3, 4}),
                   .bad = {{.shapes = {{2, 3}}, .says = {"(3, 4)"}},
                           {.shapes = {{2, 6}},
                            .says = {"(-1, -1)"},
                            .f =
                                [](In x) {
                                  return reshape(x[0], {-1, -1});
                                },
                            .names_shapes = false},
                           {.shapes = {{2, 6}}, .says = {"(5, -1)"}, .f = [](In x) {
                              return reshape(x[0], {5, -1});
                            }}}});
  table.push_back({.op = "reshape",
                   .variant = "unknown extent",
                   .f =
                       [](In x) {
                         return reshape(x[0], {2, -1, 3});
                       },
                   .inputs = {real({3, 4, 2})},
                   .expect = same_order({2, 4, 3})});
  table.push_back({.op = "reshape",
                   .variant = "to rank 0",
                   .f = [](In x) { return reshape(x[0], {}); },
                   .inputs = {real({1, 1})},
                   .expect = same_order({})});
  table.push_back({.op = "reshape",
                   .variant = "empty",
                   .f =
                       [](In x) {
                         return reshape(x[0], {3, 0, 2});
                       },
                   .inputs = {real({0, 4})},
                   .expect = same_order({3, 0, 2})});

  // ---- transpose, permute ----
  Reference last_two = [](const std::vector<Array>& in) {
    const Shape& s = in[0].shape;
    Shape shape = s;
    shape[s.rank() - 1] = s[s.rank() - 2];
    shape[s.rank() - 2] = s[s.rank() - 1];
    return moved(shape, [](Index i) {
      std::swap(i[i.size() - 1], i[i.size() - 2]);
      return i;
    })(in);
  };
  table.push_back({.op = "transpose",
                   .f = [](In x) { return transpose(x[0]); },
                   .inputs = {real({2, 3, 4})},
                   .expect = last_two,
                   .empty = {{{0, 3}}, {{2, 0, 3}}},
                   .bad = {{.shapes = {{3}}, .says = {"axis -2", "rank 1"}, .names_shapes = false}}});
  table.push_back({.op = "transpose",
                   .variant = "outer axes",
                   .f = [](In x) { return transpose(x[0], 0, -1); },
                   .inputs = {real({2, 3, 4})},
                   .expect = moved({4, 3, 2}, [](const Index& i) {
                     return Index{i[2], i[1], i[0]};
                   })});
  table.push_back({.op = "permute",
                   .f =
                       [](In x) {
                         return permute(x[0], {2, 0, -2});
                       },
                   .inputs = {real({2, 3, 4})},
                   // the axes of y, from left, are axes 2, 0 and 1 of x
                   .expect =
                       [](const std::vector<Array>& in) {
                         const Shape& s = in[0].shape;
                         return moved({s[2], s[0], s[1]}, [](const Index& i) { return Index{i[1], i[2], i[0]}; })(in);
                       },
                   .empty = {{{0, 3, 2}}},
                   .bad = {{.shapes = {{2, 3}}},
                           {.shapes = {{2, 3}},
                            .says = {"twice"},
                            .f =
                                [](In x) {
                                  return permute(x[0], {0, 0});
                                },
                            .names_shapes = false}}});

  // ---- expand, broadcast_to, sum_to ----
  table.push_back(
      {.op = "expand",
       .f =
           [](In x) {
             return expand(x[0], {2, 3, 4});
           },
       .inputs = {real({3, 1})},
       .expect = moved({2, 3, 4},
                       [](const Index& i) {
                         return Index{i[1], 0};
                       }),
       .bad = {{.shapes = {{2, 1}}, .says = {"(2, 3, 4)"}}, {.shapes = {{2, 2, 3, 4}}, .says = {"(2, 3, 4)"}}}});
  table.push_back({.op = "expand",
                   .variant = "rank 0",
                   .f = [](In x) { return expand(x[0], {5}); },
                   .inputs = {real({})},
                   .expect = moved({5}, [](const Index&) { return Index{}; })});
  table.push_back({.op = "expand",
                   .variant = "empty",
                   .f =
                       [](In x) {
                         return expand(x[0], {3, 0});
                       },
                   .inputs = {real({3, 1})},
                   .expect = moved({3, 0},
                                   [](const Index& i) {
                                     return Index{i[0], 0};
                                   }),
                   .empty = {{{0}}}});
  table.push_back({.op = "broadcast_to",
                   .f =
                       [](In x) {
                         return broadcast_to(x[0], {2, 3, 4});
                       },
                   .inputs = {real({3, 1})},
                   .expect = moved({2, 3, 4},
                                   [](const Index& i) {
                                     return Index{i[1], 0};
                                   }),
                   .bad = {{.shapes = {{2, 1}}, .says = {"(2, 3, 4)"}}}});
  table.push_back({.op = "broadcast_to",
                   .variant = "empty",
                   .f =
                       [](In x) {
                         return broadcast_to(x[0], {3, 0});
                       },
                   .inputs = {real({3, 1})},
                   .expect = moved({3, 0},
                                   [](const Index& i) {
                                     return Index{i[0], 0};
                                   }),
                   .empty = {{{0}}}});
  table.push_back({.op = "sum_to",
                   .f =
                       [](In x) {
                         return sum_to(x[0], {3, 1});
                       },
                   .inputs = {real({2, 3, 4})},
                   .expect =
                       [](const std::vector<Array>& in) {
                         Array y({3, 1});
                         for_each_index(in[0].shape, [&](const Index& i) { y({i[1], 0}) += in[0](i); });
                         return y;
                       },
                   .empty = {{{0, 3, 4}}, {{3, 0}}},
                   .bad = {{.shapes = {{2, 4}}, .says = {"(3, 1)"}}, {.shapes = {{3}}, .says = {"(3, 1)"}}}});
  table.push_back({.op = "sum_to",
                   .variant = "rank 0",
                   .f = [](In x) { return sum_to(x[0], {}); },
                   .inputs = {real({2, 3})},
                   .expect = over({}, false, sum_of),
                   .empty = {{{0, 3}}}});

  // ---- unsqueeze, squeeze ----
  auto with_axis = [](int at) {
    return [at](const std::vector<Array>& in) {
      Array y = in[0];
      y.shape.insert(at < 0 ? y.shape.rank() : at, 1);
      return y;
    };
  };
  table.push_back({.op = "unsqueeze",
                   .f = [](In x) { return unsqueeze(x[0], 1); },
                   .inputs = {real({2, 3})},
                   .expect = with_axis(1),
                   .empty = {{{0, 3}}},
                   .bad = {{.shapes = {{}}, .says = {"axis 1"}, .names_shapes = false}}});
  table.push_back({.op = "unsqueeze",
                   .variant = "at the end",
                   .f = [](In x) { return unsqueeze(x[0], -1); },
                   .inputs = {real({2, 3})},
                   .expect = with_axis(-1)});
  table.push_back({.op = "unsqueeze",
                   .variant = "rank 0",
                   .f = [](In x) { return unsqueeze(x[0], 0); },
                   .inputs = {real({})},
                   .expect = with_axis(0)});
  table.push_back({.op = "squeeze",
                   .f = [](In x) { return squeeze(x[0], -2); },
                   .inputs = {real({2, 1, 3})},
                   .expect =
                       [](const std::vector<Array>& in) {
                         Array y = in[0];
                         y.shape.erase(y.shape.rank() - 2);
                         return y;
                       },
                   .empty = {{{0, 1, 3}}},
                   .bad = {{.shapes = {{2, 3}}, .says = {"axis -2"}},
                           {.shapes = {{3}}, .says = {"axis -2"}, .names_shapes = false}}});

  // ---- slice, select ----
  table.push_back({.op = "slice",
                   .f = [](In x) { return slice(x[0], 1, 1, 6, 2); },
                   .inputs = {real({2, 7})},
                   .expect = moved({2, 3},
                                   [](const Index& i) {
                                     return Index{i[0], 1 + 2 * i[1]};
                                   }),
                   .bad = {{.shapes = {{3}}, .says = {"axis 1"}, .names_shapes = false},
                           {.shapes = {{2, 7}},
                            .says = {"step", "0"},
                            .f = [](In x) { return slice(x[0], 1, 0, 2, 0); },
                            .names_shapes = false}}});
  table.push_back({.op = "slice",
                   .variant = "from the end",
                   .f = [](In x) { return slice(x[0], 0, -3, -1); },
                   .inputs = {real({5, 2})},
                   .expect = moved({2, 2}, [](const Index& i) {
                     return Index{i[0] + 2, i[1]};
                   })});
  table.push_back({.op = "slice",
                   .variant = "clipped",
                   .f = [](In x) { return slice(x[0], -1, -100, 100, 3); },
                   .inputs = {real({2, 5})},
                   .expect =
                       [](const std::vector<Array>& in) {
                         const Shape& s = in[0].shape;
                         return moved({s[0], (s[1] + 2) / 3}, [](const Index& i) { return Index{i[0], 3 * i[1]}; })(in);
                       },
                   .empty = {{{0, 5}}, {{2, 0}}}});
  table.push_back({.op = "slice",
                   .variant = "empty result",
                   .f = [](In x) { return slice(x[0], 0, 4, 2); },
                   .inputs = {real({5, 2})},
                   .expect = moved({0, 2}, [](const Index& i) { return i; })});
  table.push_back({.op = "select",
                   .f = [](In x) { return select(x[0], 1, 2); },
                   .inputs = {real({2, 4, 3})},
                   .expect =
                       [](const std::vector<Array>& in) {
                         const Shape& s = in[0].shape;
                         return moved({s[0], s[2]}, [](const Index& i) { return Index{i[0], 2, i[1]}; })(in);
                       },
                   .empty = {{{0, 4, 3}}},
                   .bad = {{.shapes = {{2, 2, 3}}, .says = {"index 2", "axis 1"}},
                           {.shapes = {{2, 0, 3}}, .says = {"index 2"}},
                           {.shapes = {{3}}, .says = {"axis 1"}, .names_shapes = false}}});
  table.push_back({.op = "select",
                   .variant = "from the end",
                   .f = [](In x) { return select(x[0], -1, -3); },
                   .inputs = {real({4})},
                   .expect = moved({}, [](const Index&) { return Index{1}; })});
  table.push_back({.op = "slice_scatter",
                   .f =
                       [](In x) {
                         return slice_scatter(x[0], {2, 7}, 1, 1, 2);
                       },
                   .inputs = {real({2, 3})},
                   .expect =
                       [](const std::vector<Array>& in) {
                         Array y({2, 7});
                         for_each_index(in[0].shape, [&](const Index& i) { y({i[0], 1 + 2 * i[1]}) = in[0](i); });
                         return y;
                       },
                   .empty = {{{2, 0}}},
                   .bad = {{.shapes = {{2, 4}}, .says = {"(2, 7)"}},
                           {.shapes = {{3, 3}}, .says = {"(2, 7)"}},
                           {.shapes = {{3}}, .says = {"(2, 7)"}}}});

  // ---- cat, stack, split ----
  auto joined = [](int dim) {  // parts one after the other
    return [dim](const std::vector<Array>& in) {
      Shape shape = in[0].shape;
      shape[dim] = 0;
      for (const Array& x : in) shape[dim] += x.shape[dim];
      Array y(shape);
      int64_t start = 0;
      for (const Array& x : in) {
        for_each_index(x.shape, [&](Index i) {
          double v = x(i);
          i[static_cast<size_t>(dim)] += start;
          y(i) = v;
        });
        start += x.shape[dim];
      }
      return y;
    };
  };
  table.push_back(
      {.op = "cat",
       .f =
           [](In x) {
             return cat({x[0], x[1], x[2]}, 1);
           },
       .inputs = {real({2, 3}), real({2, 1}), real({2, 3})},
       .expect = joined(1),
       .empty = {{{2, 3}, {2, 0}, {2, 2}}, {{0, 3}, {0, 2}, {0, 1}}, {{2, 0}, {2, 0}, {2, 0}}},
       .bad = {{.shapes = {{2, 3}, {2, 2}, {3, 2}}, .says = {"(2, 3)", "(3, 2)"}, .names_shapes = false},
               {.shapes = {{2, 3}, {3, 1}, {2, 3}}, .says = {"(2, 3)", "(3, 1)"}, .names_shapes = false},
               {.shapes = {{2, 3}, {6}, {2, 3}}, .says = {"(2, 3)", "(6,)"}, .names_shapes = false},
               {.shapes = {{2, 3}, {2, 3}, {2, 3}}, .dtypes = {f32, DType::f64, f32}, .says = {"f32", "f64"}},
               {.shapes = {}, .says = {"at least one"}, .f = [](In) { return cat({}); }}}});
  table.push_back({.op = "cat",
                   .variant = "span of Vars",
                   .f = [](In x) { return cat(x); },
                   .inputs = {real({1, 2}), real({3, 2})},
                   .expect = joined(0)});
  table.push_back({.op = "cat",
                   .variant = "one part",
                   .f = [](In x) { return cat({x[0]}, -1); },
                   .inputs = {real({2, 3})},
                   .expect = joined(1)});
  table.push_back(
      {.op = "stack",
       .f =
           [](In x) {
             return stack({x[0], x[1]}, 1);
           },
       .inputs = {real({2, 3}), real({2, 3})},
       .expect =
           [](const std::vector<Array>& in) {
             Array y({in[0].shape[0], 2, in[0].shape[1]});
             for_each_index(y.shape, [&](const Index& i) { y(i) = in[static_cast<size_t>(i[1])]({i[0], i[2]}); });
             return y;
           },
       .empty = {{{0, 3}, {0, 3}}, {{2, 0}, {2, 0}}},
       .bad = {{.shapes = {{3}, {3, 1}}},
               {.shapes = {{3}, {3}}, .dtypes = {f32, DType::f64}, .says = {"f32", "f64"}},
               {.shapes = {}, .says = {"at least one"}, .f = [](In) { return stack({}); }},
               {.shapes = {{}, {}}, .says = {"axis 1"}, .names_shapes = false}},
       .composed = true});
  table.push_back({.op = "stack",
                   .variant = "span of Vars",
                   .f = [](In x) { return stack(x, -1); },
                   .inputs = {real({3}), real({3}), real({3})},
                   .expect =
                       [](const std::vector<Array>& in) {
                         Array y({in[0].shape[0], 3});
                         for_each_index(y.shape, [&](const Index& i) { y(i) = in[static_cast<size_t>(i[1])]({i[0]}); });
                         return y;
                       },
                   .composed = true});
  table.push_back({.op = "split",
                   .f = [](In x) { return split(x[0], 2, 1).at(1); },
                   .inputs = {real({2, 5})},
                   .expect =
                       [](const std::vector<Array>& in) {
                         return moved({in[0].shape[0], 2}, [](const Index& i) { return Index{i[0], i[1] + 2}; })(in);
                       },
                   .empty = {{{0, 5}}},
                   .bad = {{.shapes = {{2, 5}},
                            .says = {"size", "0"},
                            .f = [](In x) { return split(x[0], 0).at(0); },
                            .names_shapes = false},
                           {.shapes = {{5}}, .says = {"axis 1"}, .names_shapes = false}},
                   .composed = true});
  table.push_back({.op = "split",
                   .variant = "smaller last part",
                   .f = [](In x) { return split(x[0], 2, -1).at(2); },
                   .inputs = {real({2, 5})},
                   .expect = moved({2, 1},
                                   [](const Index& i) {
                                     return Index{i[0], i[1] + 4};
                                   }),
                   .composed = true});
  table.push_back({.op = "split",
                   .variant = "sizes",
                   .f =
                       [](In x) {
                         std::vector<Var> parts = split(x[0], {1, 0, 3}, 0);
                         return cat({parts.at(2), parts.at(1), parts.at(0)});
                       },
                   .inputs = {real({4, 2})},
                   .expect = moved({4, 2},
                                   [](const Index& i) {
                                     return Index{(i[0] + 1) % 4, i[1]};
                                   }),
                   .bad = {{.shapes = {{5, 2}}, .says = {"(1, 0, 3)"}}},
                   .composed = true});

  table.push_back({.op = "contiguous",
                   .f = [](In x) { return contiguous(transpose(x[0])); },
                   .inputs = {real({2, 3, 4})},
                   .expect = last_two,
                   .empty = {{{0, 3}}}});
}

void add_indexing(std::vector<Sample>& table) {
  Reference rows = [](const std::vector<Array>& in) {
    Shape shape = in[1].shape;
    shape.push_back(in[0].shape[1]);
    Array y(shape);
    for_each_index(shape, [&](const Index& i) {
      y(i) = in[0]({static_cast<int64_t>(in[1](Index(i.begin(), i.end() - 1))), i.back()});
    });
    return y;
  };
  auto refuses = [](const char* op, int64_t id, Function f) {  // an index out of range: position, value and range
    return Bad{.shapes = {}, .says = {op, std::to_string(id), "position 1", "0 to 4"}, .f = std::move(f)};
  };
  const Tensor table5 = counting({5, 3}), beyond = tensor({0, 5}), negative = tensor({0, -1}),
               huge = tensor({0, int64_t{1} << 40});

  // ---- embedding ----
  table.push_back(
      {.op = "embedding",
       .f = [](In x) { return embedding(x[0], x[1]); },
       .inputs = {real({5, 3}), ids({2, 4}, 5)},
       .expect = rows,
       .empty = {{{5, 3}, {0}}, {{5, 3}, {2, 0}}, {{5, 0}, {2}}, {{0, 3}, {0}}},
       .specials = {{.in = {counting({5, 3}), tensor({{3, 1, 1}, {4, 3, 3}})},
                     .out = f64({{{9, 10, 11}, {3, 4, 5}, {3, 4, 5}}, {{12, 13, 14}, {9, 10, 11}, {9, 10, 11}}}),
                     .gradients = {f64({{0, 0, 0}, {5, 5, 5}, {0, 0, 0}, {12, 12, 12}, {4, 4, 4}})},
                     .seed = f64({{{1, 1, 1}, {2, 2, 2}, {3, 3, 3}}, {{4, 4, 4}, {5, 5, 5}, {6, 6, 6}}})}},
       .bad = {{.shapes = {{5}, {2}}, .says = {"(5,)"}, .names_shapes = false},
               {.shapes = {{5, 3}, {2}}, .dtypes = {f32, f32}, .says = {"i64", "f32", "(2,)"}, .names_shapes = false},
               refuses("embedding", 5, [=](In) { return embedding(table5, beyond); }),
               refuses("embedding", -1, [=](In) { return embedding(table5, negative); }),
               refuses("embedding", int64_t{1} << 40, [=](In) { return embedding(table5, huge); })},
       .also = {"embedding_adjoint"}});
  table.push_back({.op = "embedding",
                   .variant = "one id",
                   .f = [](In x) { return embedding(x[0], x[1]); },
                   .inputs = {real({5, 3}), ids({}, 5)},
                   .expect = rows});
  table.push_back({.op = "embedding",
                   .variant = "pad row",
                   .f = [](In x) { return embedding(x[0], x[1], 0); },
                   .inputs = {real({3, 2}), ids({3, 4}, 3)},
                   .expect = rows,
                   .specials = {{.in = {counting({5, 3}), tensor({{0, 1, 1, 2}})},
                                 .out = f64({{{0, 1, 2}, {3, 4, 5}, {3, 4, 5}, {6, 7, 8}}}),
                                 .gradients = {f64({{0, 0, 0}, {2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}})}}},
                   .bad = {{.shapes = {{3, 2}, {2}},
                            .says = {"3", "0 to 2"},
                            .f = [](In x) { return embedding(x[0], x[1], 3); },
                            .names_shapes = false}},
                   .excluded = {{"x0", 0, "padding rule"}},
                   .also = {"embedding_adjoint"}});

  // ---- gather and its adjoint ----
  auto gathered = [](size_t dim) {
    return [dim](const std::vector<Array>& in) {
      Array y(in[1].shape);
      for_each_index(y.shape, [&](const Index& i) {
        Index from = i;
        from[dim] = static_cast<int64_t>(in[1](i));
        y(i) = in[0](from);
      });
      return y;
    };
  };
  auto scattered = [](const Shape& shape, size_t dim) {
    return [shape, dim](const std::vector<Array>& in) {
      Array y(shape);
      for_each_index(in[1].shape, [&](const Index& i) {
        Index to = i;
        to[dim] = static_cast<int64_t>(in[1](i));
        y(to) += in[0](i);
      });
      return y;
    };
  };
  table.push_back(
      {.op = "gather",
       .f = [](In x) { return gather(x[0], 1, x[1]); },
       .inputs = {real({3, 5}), ids({3, 4}, 5)},
       .expect = gathered(1),
       .empty = {{{3, 5}, {3, 0}}, {{3, 5}, {0, 2}}, {{0, 5}, {0, 2}}, {{3, 0}, {3, 0}}},
       .bad = {{.shapes = {{3, 5}, {4, 2}}},
               {.shapes = {{3, 5}, {3}}},
               {.shapes = {{3, 5}, {3, 2}}, .dtypes = {f32, f32}, .says = {"i64", "f32"}, .names_shapes = false},
               refuses("gather", 5,
                       [=](In) {
                         return gather(table5, 0, tensor({{0}, {5}}));
                       }),
               refuses("gather", -1, [=](In) {
                 return gather(table5, 0, tensor({{0}, {-1}}));
               })}});
  table.push_back({.op = "gather",
                   .variant = "first axis; smaller index",
                   .f = [](In x) { return gather(x[0], 0, x[1]); },
                   .inputs = {real({3, 4, 2}), ids({5, 2, 1}, 3)},
                   .expect = gathered(0)});
  table.push_back({.op = "gather_adjoint",
                   .f =
                       [](In x) {
                         return gather_adjoint(x[0], {3, 5}, 1, x[1]);
                       },
                   .inputs = {real({3, 4}), ids({3, 4}, 5)},
                   .expect = scattered({3, 5}, 1),
                   .empty = {{{3, 0}, {3, 0}}, {{0, 2}, {0, 2}}},
                   .bad = {{.shapes = {{3, 4}, {3, 2}}},
                           {.shapes = {{4, 4}, {4, 4}}, .says = {"(3, 5)"}},
                           refuses("gather_adjoint", 5, [=](In) {
                             return gather_adjoint(counting({2, 1}), {5, 1}, 0, tensor({{0}, {5}}));
                           })}});

  // ---- index_select and its adjoint ----
  table.push_back({.op = "index_select",
                   .f = [](In x) { return index_select(x[0], 1, x[1]); },
                   .inputs = {real({2, 5, 3}), ids({4}, 5)},
                   .expect =
                       [](const std::vector<Array>& in) {
                         const Shape& s = in[0].shape;
                         Array y({s[0], in[1].shape[0], s[2]});
                         for_each_index(y.shape, [&](const Index& i) {
                           y(i) = in[0]({i[0], static_cast<int64_t>(in[1]({i[1]})), i[2]});
                         });
                         return y;
                       },
                   .empty = {{{2, 5, 3}, {0}}, {{0, 5, 3}, {4}}, {{2, 0, 3}, {0}}},
                   .bad = {{.shapes = {{2, 5, 3}, {2, 2}}, .says = {"(2, 2)"}, .names_shapes = false},
                           {.shapes = {{5}, {2}}, .says = {"axis 1"}, .names_shapes = false},
                           refuses("index_select", 5, [=](In) { return index_select(table5, 0, beyond); }),
                           refuses("index_select", -1, [=](In) { return index_select(table5, 0, negative); })}});
  table.push_back({.op = "index_select",
                   .variant = "first axis",
                   .f = [](In x) { return index_select(x[0], 0, x[1]); },
                   .inputs = {real({5}), ids({7}, 5)},
                   .expect =
                       [](const std::vector<Array>& in) {
                         return each([&in](const double* v) { return in[0]({static_cast<int64_t>(v[0])}); })({in[1]});
                       }});
  table.push_back({.op = "index_select",
                   .variant = "i64; last axis",
                   .f = [](In x) { return index_select(x[0], -1, x[1]); },
                   .inputs = {integers({2, 5}), ids({3}, 5)},
                   .expect =
                       [](const std::vector<Array>& in) {
                         Array y({2, 3});
                         for_each_index(y.shape, [&](const Index& i) {
                           y(i) = in[0]({i[0], static_cast<int64_t>(in[1]({i[1]}))});
                         });
                         return y;
                       },
                   .order = 0});
  table.push_back({.op = "index_add",
                   .f = [](In x) { return index_add(x[0], 5, 1, x[1]); },
                   .inputs = {real({2, 4, 3}), ids({4}, 5)},
                   .expect =
                       [](const std::vector<Array>& in) {
                         const Shape& s = in[0].shape;
                         Array y({s[0], 5, s[2]});
                         for_each_index(s, [&](const Index& i) {
                           y({i[0], static_cast<int64_t>(in[1]({i[1]})), i[2]}) += in[0](i);
                         });
                         return y;
                       },
                   .empty = {{{2, 0, 3}, {0}}, {{0, 4, 3}, {4}}},
                   .bad = {{.shapes = {{2, 4, 3}, {3}}}, refuses("index_add", 5, [=](In) {
                             return index_add(counting({2, 3}), 5, 0, beyond);
                           })}});
}

void add_products(std::vector<Sample>& table) {
  Reference expected = [](const std::vector<Array>& in) { return product(in[0], in[1]); };
  auto matmul_row = [&](const char* variant, const Shape& a, const Shape& b) {
    table.push_back({.op = "matmul",
                     .variant = variant,
                     .f = [](In x) { return matmul(x[0], x[1]); },
                     .inputs = {real(a), real(b)},
                     .expect = expected});
  };
  table.push_back(
      {.op = "matmul",
       .f = [](In x) { return matmul(x[0], x[1]); },
       .inputs = {real({2, 3}), real({3, 4})},
       .expect = expected,
       .empty = {{{2, 0}, {0, 3}},
                 {{0, 3}, {3, 2}},
                 {{2, 3}, {3, 0}},
                 {{0}, {0}},
                 {{0}, {0, 3}},
                 {{2, 0}, {0}},
                 {{0, 2, 3}, {0, 3, 4}},
                 {{0, 2, 3}, {3, 4}},
                 {{2, 3, 0}, {0, 4}},
                 {{2, 3, 0}, {2, 0, 4}},
                 {{2, 3}, {0, 3, 4}},
                 {{1, 2, 3}, {0, 3, 4}}},
       .specials = {{.in = {f64({{1}, {2}, {3}}), f64({{10, 20}})}, .out = f64({{10, 20}, {20, 40}, {30, 60}})},
                    // 0 * NaN = NaN, in the row that holds it.
                    {.in = {f64({{1, nan}, {2, 3}}), zeros({2, 2})}, .out = f64({{nan, nan}, {0, 0}})},
                    {.in = {f64({{1, 0, -1}, {2, 1, 0}}), f64({{1}, {2}, {3}})},
                     .out = f64({{-2}, {4}}),
                     .gradients = {f64({{1, 2, 3}, {10, 20, 30}}), f64({{21}, {10}, {-1}})},
                     .seed = f64({{1}, {10}})}},
       .bad = {{.shapes = {{2, 3}, {4, 3}}, .says = {"inner", "transpose"}},
               {.shapes = {{2, 3}, {2, 4}}, .says = {"inner"}},
               {.shapes = {{3}, {4}}},
               {.shapes = {{}, {3}}},
               {.shapes = {{2, 2, 3}, {3, 3, 4}}, .names_shapes = false},
               {.shapes = {{2, 2}, {2, 2}}, .dtypes = {f32, DType::f64}, .says = {"f32", "f64"}},
               {.shapes = {{2, 2}, {2, 2}}, .dtypes = {i64, i64}, .says = {"i64"}}}});
  matmul_row("square", {3, 3}, {3, 3});
  matmul_row("inner extent 1", {3, 1}, {1, 2});
  matmul_row("row by column", {1, 3}, {3, 1});
  matmul_row("1 by 1", {1, 1}, {1, 1});
  matmul_row("vector by vector", {3}, {3});
  matmul_row("vector by matrix", {3}, {3, 4});
  matmul_row("matrix by vector", {2, 3}, {3});
  matmul_row("batches", {2, 2, 3}, {2, 3, 4});
  matmul_row("batch by matrix", {2, 3, 4}, {4, 2});
  matmul_row("matrix by batch", {2, 3}, {2, 3, 4});
  matmul_row("broadcasting batches", {2, 1, 2, 3}, {3, 3, 2});
  matmul_row("vector by batch", {3}, {2, 3, 2});
  matmul_row("batch by vector", {2, 2, 3}, {3});
  matmul_row("batches of size 1", {2, 1, 3}, {2, 3, 1});

  table.push_back({.op = "bmm",
                   .f = [](In x) { return bmm(x[0], x[1]); },
                   .inputs = {real({2, 3, 2}), real({2, 2, 4})},
                   .expect = expected,
                   .empty = {{{0, 3, 2}, {0, 2, 4}}, {{2, 0, 3}, {2, 3, 1}}, {{2, 3, 0}, {2, 0, 4}}},
                   .bad = {{.shapes = {{64, 1, 32}, {64, 10, 32}}, .says = {"bmm(a, transpose(b, 1, 2))"}},
                           {.shapes = {{2, 3, 4}, {3, 4, 5}}},
                           {.shapes = {{3, 4}, {4, 5}}},
                           {.shapes = {{1, 2, 2}, {1, 2, 2}}, .dtypes = {f32, DType::f64}, .says = {"f32", "f64"}}}});
  table.push_back({.op = "bmm",
                   .variant = "square",
                   .f = [](In x) { return bmm(x[0], x[1]); },
                   .inputs = {real({2, 2, 2}), real({2, 2, 2})},
                   .expect = expected});

  Reference affine = [](const std::vector<Array>& in) {  // x W^T + b
    Array weight({in[1].shape[1], in[1].shape[0]});
    for_each_index(weight.shape, [&](const Index& i) { weight(i) = in[1]({i[1], i[0]}); });
    Array y = product(in[0], weight);
    if (in.size() > 2) for_each_index(y.shape, [&](const Index& i) { y(i) += in[2]({i.back()}); });
    return y;
  };
  table.push_back(
      {.op = "linear",
       .f = [](In x) { return linear(x[0], x[1], x[2]); },
       .inputs = {real({2, 3}), real({4, 3}), real({4})},
       .expect = affine,
       .empty = {{{0, 3}, {4, 3}, {4}}, {{2, 0}, {4, 0}, {4}}, {{2, 3}, {0, 3}, {0}}, {{2, 0, 3}, {4, 3}, {4}}},
       .bad = {{.shapes = {{2, 3}, {3, 4}, {3}}, .says = {"(2, 3)", "(3, 4)"}, .names_shapes = false},
               {.shapes = {{2, 3}, {4, 3}, {3}}, .says = {"(4, 3)", "(3,)"}, .names_shapes = false},
               {.shapes = {{2, 3}, {4, 3}, {2, 4}}, .says = {"(4, 3)", "(2, 4)"}, .names_shapes = false},
               {.shapes = {{}, {4, 3}, {4}}, .says = {"()", "(4, 3)"}, .names_shapes = false},
               {.shapes = {{2, 3}, {4, 3}, {4}},
                .dtypes = {f32, DType::f64, f32},
                .says = {"f32", "f64"},
                .names_shapes = false}}});
  table.push_back({.op = "linear",
                   .variant = "square",
                   .f = [](In x) { return linear(x[0], x[1], x[2]); },
                   .inputs = {real({3, 3}), real({3, 3}), real({3})},
                   .expect = affine});
  table.push_back({.op = "linear",
                   .variant = "no bias; rank 3",
                   .f = [](In x) { return linear(x[0], x[1]); },
                   .inputs = {real({2, 2, 3}), real({4, 3})},
                   .expect = affine,
                   .empty = {{{0, 3}, {4, 3}}, {{2, 0}, {4, 0}}},
                   .bad = {{.shapes = {{2, 3}, {3, 4}}}}});
  table.push_back({.op = "linear",
                   .variant = "vector",
                   .f = [](In x) { return linear(x[0], x[1], x[2]); },
                   .inputs = {real({3}), real({1, 3}), real({1})},
                   .expect = affine});
}

void add_softmaxes(std::vector<Sample>& table) {
  const Bad not_floating{.shapes = {{2, 3}}, .dtypes = {i64}, .says = {"i64"}, .names_shapes = false};
  const Bad rank_0{.shapes = {{}}, .says = {"axis", "rank 0"}, .names_shapes = false};

  table.push_back({.op = "softmax",
                   .f = [](In x) { return softmax(x[0]); },
                   .inputs = {real({3, 11})},
                   .expect = along(-1, softmax_of),
                   .empty = {{{0, 3}}, {{3, 0}}},
                   .specials = {{.in = {f64({1000, 0, -1000})},
                                 .out = f64({1, 0, 0}),
                                 .gradients = {f64({0, 0, 0})},
                                 .seed = f64({1, 2, 3})},
                                {.in = {f64({0, -inf, 0})},
                                 .out = f64({0.5, 0, 0.5}),
                                 .gradients = {f64({-0.5, 0, 0.5})},
                                 .seed = f64({1, 2, 3})},
                                {.in = {f64({0.1, 2.4, 0.3})},
                                 .out = f64({0.08199688514628224, 0.817851893175506, 0.10015122167821179})},
                                {.in = {f64({nan, 1})}, .out = f64({nan, nan})}},
                   .bad = {not_floating, rank_0}});
  table.push_back({.op = "softmax",
                   .variant = "first axis",
                   .f = [](In x) { return softmax(x[0], 0); },
                   .inputs = {real({4, 3})},
                   .expect = along(0, softmax_of),
                   .empty = {{{0, 3}}}});
  table.push_back({.op = "softmax",
                   .variant = "middle axis",
                   .f = [](In x) { return softmax(x[0], -2); },
                   .inputs = {real({2, 3, 4})},
                   .expect = along(1, softmax_of)});
  table.push_back({.op = "softmax",
                   .variant = "one element",
                   .f = [](In x) { return softmax(x[0]); },
                   .inputs = {real({3, 1})},
                   .expect = along(-1, softmax_of)});

  table.push_back({.op = "log_softmax",
                   .f = [](In x) { return log_softmax(x[0]); },
                   .inputs = {real({3, 11})},
                   .expect = along(-1, log_softmax_of),
                   .empty = {{{0, 3}}, {{3, 0}}},
                   .specials = {{.in = {f64({0, -800, 1})},
                                 .out = f64({-1.3132616875182228, -801.3132616875182, -0.3132616875182228}),
                                 .gradients = {f64({-0.6136485282199699, 2, -1.38635147178003})},
                                 .seed = f64({1, 2, 3})},
                                {.in = {f64({94.697, -40.114, 0})}, .out = f64({0, -134.811, -94.697})}},
                   .bad = {not_floating, rank_0}});
  table.push_back({.op = "log_softmax",
                   .variant = "first axis",
                   .f = [](In x) { return log_softmax(x[0], 0); },
                   .inputs = {real({4, 3})},
                   .expect = along(0, log_softmax_of)});
  table.push_back({.op = "log_softmax",
                   .variant = "middle axis",
                   .f = [](In x) { return log_softmax(x[0], 1); },
                   .inputs = {real({2, 3, 4})},
                   .expect = along(1, log_softmax_of)});

  table.push_back(
      {.op = "masked_softmax",
       .f = [](In x) { return masked_softmax(x[0], x[1]); },
       .inputs = {real({3, 11}), mask({3, 11})},
       .expect = along(-1, masked_softmax_of),
       .empty = {{{0, 3}, {3}}, {{3, 0}, {3, 1}}},
       .specials = {{.in = {f64({1, 2, 3, 4}), tensor({true, true, false, false})},
                     .out = f64({0.2689414213699951, 0.7310585786300049, 0, 0}),
                     .gradients = {f64({-0.19661193324148185, 0.19661193324148185, 0, 0})},
                     .seed = f64({1, 2, 3, 4})},
                    // A row without any position, and whatever stands at masked ones.
                    {.in = {f64({{1, 2}, {3, inf}, {nan, 4}}), tensor({{false, false}, {true, false}, {false, true}})},
                     .out = f64({{0, 0}, {1, 0}, {0, 1}}),
                     .gradients = {f64({{0, 0}, {0, 0}, {0, 0}})},
                     .seed = f64({{1, 2}, {3, 4}, {5, 6}})},
                    // A NaN that counts spoils its row, but not what is masked.
                    {.in = {f64({nan, 1, 2}), tensor({true, true, false})}, .out = f64({nan, nan, 0})}},
       .bad = {{.shapes = {{2, 3}, {4}}},
               {.shapes = {{3}, {2, 3}}},
               {.shapes = {{3}, {3}}, .dtypes = {f32, f32}, .says = {"boolean", "f32"}, .names_shapes = false}}});
  table.push_back({.op = "masked_softmax",
                   .variant = "first axis; broadcasting",
                   .f = [](In x) { return masked_softmax(x[0], x[1], 0); },
                   .inputs = {real({4, 3}), mask({4, 1})},
                   .expect = along(0, masked_softmax_of)});
  table.push_back({.op = "masked_softmax",
                   .variant = "middle axis",
                   .f = [](In x) { return masked_softmax(x[0], x[1], 1); },
                   .inputs = {real({2, 3, 4}), mask({3, 4})},
                   .expect = along(1, masked_softmax_of)});
}

void add_losses(std::vector<Sample>& table) {
  // l = -(1 - e) log p_target - e / C sum_c log p_c
  auto cross_entropies = [](const CrossEntropyOptions& options) {
    return [options](const std::vector<Array>& in) {
      const Array &logits = in[0], &targets = in[1];
      const int64_t classes = logits.shape[logits.shape.rank() - 1];
      const double e = options.label_smoothing;
      Array losses(targets.shape);
      double total = 0, count = 0;
      for_each_index(targets.shape, [&](const Index& at) {
        const int64_t target = static_cast<int64_t>(targets(at));
        if (options.ignore_index && target == *options.ignore_index) return;
        Index i = at;
        i.push_back(0);
        std::vector<double> row;
        for (i.back() = 0; i.back() < classes; ++i.back()) row.push_back(logits(i));
        std::vector<double> log_p = log_softmax_of(row);
        double l = -(1 - e) * log_p[static_cast<size_t>(target)] - e / static_cast<double>(classes) * sum_of(log_p);
        losses(at) = l;
        total += l;
        count += 1;
      });
      if (options.reduction == Reduction::none) return losses;
      return Array(Shape{}, options.reduction == Reduction::sum ? total : count > 0 ? total / count : 0);
    };
  };
  auto row = [&](const char* variant, const Shape& logits, int64_t classes, const CrossEntropyOptions& options) {
    Shape targets = logits;
    targets.erase(logits.rank() - 1);
    return Sample{.op = "cross_entropy",
                  .variant = variant,
                  .f = [options](In x) { return cross_entropy(x[0], x[1], options); },
                  .inputs = {real(logits), ids(targets, classes)},
                  .expect = cross_entropies(options),
                  .composed = true};
  };

  Sample plain = row("", {4, 5}, 5, {});
  plain.empty = {{{0, 5}, {0}}, {{2, 0, 5}, {2, 0}}};
  plain.specials = {{.in = {f64({{1000, 0, -1000}}), tensor({2})}, .out = f64(2000), .gradients = {f64({{1, 0, -1}})}}};
  plain.bad = {{.shapes = {{3, 5}, {3, 1}}, .says = {"(3,)"}},
               {.shapes = {{3, 5}, {5}}},
               {.shapes = {{}, {}}, .says = {"()"}},
               {.shapes = {{3, 5}, {3}}, .dtypes = {f32, f32}, .says = {"i64", "f32"}},
               {.shapes = {{3, 5}, {3}}, .dtypes = {i64, i64}, .says = {"floating", "i64"}, .names_shapes = false},
               {.shapes = {},
                .says = {"5", "position 1", "0 to 4"},
                .f =
                    [](In) {
                      return cross_entropy(zeros({3, 5}), tensor({1, 5, 0}));
                    }},
               {.shapes = {},
                .says = {"-4", "position 2", "0 to 4", "-1"},
                .f =
                    [](In) {
                      return cross_entropy(zeros({3, 5}), tensor({1, 3, -4}),
                                           {.ignore_index = -1, .reduction = Reduction::none});
                    }},
               {.shapes = {{3, 5}, {3}},
                .says = {"smoothing", "1.5"},
                .f = [](In x) { return cross_entropy(x[0], x[1], {.label_smoothing = 1.5}); },
                .names_shapes = false}};
  table.push_back(plain);

  // An ignored target leaves numerator and denominator; its class stays in the softmax. All ignored: 0, zero gradient.
  Sample ignoring = row("ignore index", {6, 3}, 3, {.ignore_index = 0});
  ignoring.specials = {
      {.in = {f64({{1, 2, 3}, {3, 2, 1}, {0, 0, 0}}), tensor({0, 0, 0})}, .out = f64(0), .gradients = {zeros({3, 3})}},
      {.in = {f64({{nan, inf, 1}, {0, 0, 0}}), tensor({0, 2})},
       .out = f64(std::log(3)),
       .gradients = {f64({{0, 0, 0}, {1. / 3, 1. / 3, -2. / 3}})}}};
  table.push_back(ignoring);

  Sample smooth = row("label smoothing; ignore index", {6, 3}, 3, {.ignore_index = 1, .label_smoothing = 0.1});
  smooth.specials = {
      {.in = {f64({{2, 1, 0}, {0, 0, 0}, {1, 3, 1}}), tensor({0, 2, 1})},
       .out = f64(0.8031091265562451),
       .gradients = {f64({{-0.1340461888, 0.1056975689, 0.0283486199}, {0.15, 0.15, -0.3}, {0, 0, 0}})}}};
  table.push_back(smooth);

  Sample total = row("sum; rank 3", {2, 3, 4}, 4, {.ignore_index = 3, .reduction = Reduction::sum});
  total.specials = {{.in = {ones({1, 2, 4}), tensor({{3, 3}})}, .out = f64(0), .gradients = {zeros({1, 2, 4})}}};
  table.push_back(total);

  Sample single =
      row("none; rank 3", {2, 3, 4}, 4, {.ignore_index = 3, .label_smoothing = 0.2, .reduction = Reduction::none});
  single.specials = {
      {.in = {ones({1, 2, 4}), tensor({{3, 3}})}, .out = zeros({1, 2}), .gradients = {zeros({1, 2, 4})}}};
  table.push_back(single);
  table.push_back(row("one target", {5}, 5, {.label_smoothing = 0.3}));
}

void add_dropout(std::vector<Sample>& table) {
  // The coins of Rng(7), drawn in row-major order.
  auto kept = [](double p) {
    return [p](const std::vector<Array>& in) {
      Rng rng(7);
      Array y = in[0];
      for (double& v : y.data) v = rng.bernoulli(p) ? 0 : v / (1 - p);
      return y;
    };
  };
  auto f = [](double p) {
    return [p](In x) {
      Rng rng(7);
      return dropout(x[0], p, &rng);
    };
  };
  const Bad no_probability{.shapes = {{3}}, .says = {"1.5"}, .f = f(1.5), .names_shapes = false};
  table.push_back({.op = "dropout",
                   .f = f(0.4),
                   .inputs = {real({3, 5})},
                   .expect = kept(0.4),
                   .empty = {{{0, 3}}, {{3, 0}}},
                   .bad = {no_probability,
                           {.shapes = {{3}}, .says = {"nan"}, .f = f(nan), .names_shapes = false},
                           {.shapes = {{3}}, .dtypes = {i64}, .says = {"i64"}, .names_shapes = false}}});
  table.push_back(
      {.op = "dropout", .variant = "p = 0", .f = f(0), .inputs = {real({3, 2})}, .expect = each([](const double* v) {
                                                                                   return v[0];
                                                                                 })});
  table.push_back({.op = "dropout",
                   .variant = "p = 1",
                   .f = f(1),
                   .inputs = {real({3, 2})},
                   .expect = each([](const double*) { return 0; }),
                   .specials = {{.in = {f64({1, inf, nan})}, .out = f64({0, 0, 0}), .gradients = {f64({0, 0, 0})}}}});
  table.push_back({.op = "dropout",
                   .variant = "evaluation",
                   .f = [](In x) { return dropout(x[0], 0.4, nullptr); },
                   .inputs = {real({3, 2})},
                   .expect = each([](const double* v) { return v[0]; })});
}

}  // namespace

const std::vector<Sample>& op_samples() {
  static const std::vector<Sample> samples = [] {
    std::vector<Sample> table;
    add_arithmetic(table);
    add_unary(table);
    add_choices(table);
    add_reductions(table);
    add_shapes(table);
    add_indexing(table);
    add_products(table);
    add_softmaxes(table);
    add_losses(table);
    add_dropout(table);
    return table;
  }();
  return samples;
}

}  // namespace tapedeck::samples
