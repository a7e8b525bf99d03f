#include "op_samples_families.h"

#include <algorithm>
#include <cmath>

namespace tapedeck::samples {
using namespace values;

namespace {

double norm_of(const std::vector<double>& x) {
  double total = 0;
  for (double v : x) total += v * v;
  return std::sqrt(total);
}

double min_of(const std::vector<double>& x) {
  double best = x[0];
  for (double v : x) best = v < best || std::isnan(v) ? v : best;
  return best;
}

std::function<double(const std::vector<double>&)> var_of(int correction) {
  return [correction](const std::vector<double>& x) {
    const double n = static_cast<double>(x.size());
    double squares = 0;  // of all differences: sum_ij (x_i - x_j)^2 = 2 n sum_i (x_i - mean)^2
    for (double u : x) {
      for (double v : x) squares += (u - v) * (u - v);
    }
    return squares / (2 * n) / (n - correction);
  };
}

void add_spreads(std::vector<Sample>& table) {
  // ---- min ----
  table.push_back(
      {.op = "min",
       .f = [](In x) { return min(x[0]); },
       .inputs = {apart({3, 7})},
       .expect = over({}, false, min_of),
       .specials = {{.in = {f64({2, 1, 1, 1})}, .out = f64(1), .gradients = {f64({0, 1. / 3, 1. / 3, 1. / 3})}},
                    {.in = {f64({inf, 1000, inf})}, .out = f64(1000), .gradients = {f64({0, 1, 0})}},
                    {.in = {f64({0, -inf, -1000})}, .out = f64(-inf), .gradients = {f64({0, 1, 0})}},
                    {.in = {f64({1, nan, 2})}, .out = f64(nan)}},
       .bad = {{.shapes = {{0, 3}}, .says = {"no elements"}},
               {.shapes = {{3}}, .dtypes = {boolean}, .says = {"boolean"}}},
       .composed = true});
  table.push_back({.op = "min",
                   .variant = "two axes kept",
                   .f =
                       [](In x) {
                         return min(x[0], {0, 2}, true);
                       },
                   .inputs = {apart({2, 3, 4})},
                   .expect = over({0, 2}, true, min_of),
                   .composed = true});
  table.push_back({.op = "min",
                   .variant = "first axis",
                   .f = [](In x) { return min(x[0], 0); },
                   .inputs = {apart({4, 3})},
                   .expect = over({0}, false, min_of),
                   .empty = {{{3, 0}}},
                   .bad = {{.shapes = {{}}, .says = {"axis 0"}, .names_shapes = false}},
                   .composed = true});
  table.push_back({.op = "min",
                   .variant = "i64",
                   .f = [](In x) { return min(x[0], -1); },
                   .inputs = {integers({2, 5})},
                   .expect = over({-1}, false, min_of),
                   .order = 0,
                   .composed = true});

  // ---- var ----
  table.push_back(
      {.op = "var",
       .f = [](In x) { return var(x[0]); },
       .inputs = {real({3, 5})},
       .expect = over({}, false, var_of(1)),
       .specials = {{.in = {f64({1, 2, 3, 4})}, .out = f64(5. / 3), .gradients = {f64({-1, -1. / 3, 1. / 3, 1})}},
                    {.in = {f64({1000, 1000})}, .out = f64(0), .gradients = {f64({0, 0})}},
                    {.in = {f64({1, nan})}, .out = f64(nan)},
                    {.in = {f64({1, inf})}, .out = f64(nan)}},
       .bad = {{.shapes = {{1, 1}}, .says = {"more than 1", "got 1"}},
               {.shapes = {{0, 3}}, .says = {"got 0"}},
               {.shapes = {{3}}, .says = {"correction"}, .f = [](In x) { return var(x[0], 0, -1); }},
               {.shapes = {{3}}, .dtypes = {i64}, .says = {"i64"}, .names_shapes = false}},
       .composed = true});
  table.push_back({.op = "var",
                   .variant = "biased; first axis",
                   .f = [](In x) { return var(x[0], 0, 0); },
                   .inputs = {real({4, 3})},
                   .expect = over({0}, false, var_of(0)),
                   .empty = {{{3, 0}}},
                   .specials = {{.in = {f64({{7, -7}})}, .out = f64({0, 0}), .gradients = {f64({{0, 0}})}}},
                   .composed = true});
  table.push_back({.op = "var",
                   .variant = "two axes kept",
                   .f =
                       [](In x) {
                         return var(x[0], {-1, 0}, 1, true);
                       },
                   .inputs = {real({2, 3, 4})},
                   .expect = over({0, 2}, true, var_of(1)),
                   .composed = true});

  // ---- norm ----
  table.push_back({.op = "norm",
                   .f = [](In x) { return norm(x[0]); },
                   .inputs = {apart({3, 5})},
                   .expect = over({}, false, norm_of),
                   .empty = {{{0}}, {{2, 0}}},
                   // The gradient at 0 is 0, and 0 incoming gives 0 also where the slope is not a number.
                   .specials = {{.in = {f64({0, 0})}, .out = f64(0), .gradients = {f64({0, 0})}},
                                {.in = {f64({3e30, -4e30})}, .out = f64(5e30), .gradients = {f64({0.6, -0.8})}},
                                {.in = {f64({1000, 0})}, .out = f64(1000), .gradients = {f64({1, 0})}},
                                {.in = {f64({inf, 1})}, .out = f64(inf), .gradients = {f64({0, 0})}, .seed = f64(0)},
                                {.in = {f64({nan, 1})}, .out = f64(nan), .gradients = {f64({0, 0})}, .seed = f64(0)},
                                {.in = {f64({nan, 1})}, .out = f64(nan), .gradients = {f64({nan, nan})}}},
                   .bad = {{.shapes = {{3}}, .dtypes = {i64}, .says = {"i64"}, .names_shapes = false}}});
  table.push_back({.op = "norm",
                   .variant = "rank 0",
                   .f = [](In x) { return norm(x[0]); },
                   .inputs = {apart({})},
                   .expect = over({}, false, norm_of)});
  table.push_back({.op = "norm",
                   .variant = "last axis",
                   .f = [](In x) { return norm(x[0], -1); },
                   .inputs = {apart({2, 3, 4})},
                   .expect = over({-1}, false, norm_of),
                   .empty = {{{2, 0}}, {{0, 2}}},
                   .specials = {{.in = {f64({{0, 0, 0}, {1, 2, 2}})},
                                 .out = f64({0, 3}),
                                 .gradients = {f64({{0, 0, 0}, {1. / 3, 2. / 3, 2. / 3}})}}},
                   .bad = {{.shapes = {{}}, .says = {"axis -1"}, .names_shapes = false}}});
  table.push_back({.op = "norm",
                   .variant = "outer axes kept",
                   .f =
                       [](In x) {
                         return norm(x[0], {0, 2}, true);
                       },
                   .inputs = {apart({2, 3, 4})},
                   .expect = over({0, 2}, true, norm_of)});
  table.push_back({.op = "norm",
                   .variant = "squared",
                   .f = [](In x) { return square(norm(x[0], 1)); },
                   .inputs = {apart({2, 3})},
                   .expect =
                       [](const std::vector<Array>& in) {
                         return each([](const double* v) { return v[0] * v[0]; })({over({1}, false, norm_of)(in)});
                       },
                   .specials = {{.in = {zeros({2, 3})}, .out = f64({0, 0}), .gradients = {zeros({2, 3})}}}});

  // ---- any, all ----
  auto truth = [&](const char* op, Var (*f)(Operand, const Dims&, bool), bool start) {
    auto expect = [start](const std::vector<double>& x) {
      bool result = start;
      for (double v : x) result = start ? result && v != 0 : result || v != 0;
      return result ? 1.0 : 0.0;
    };
    table.push_back({.op = op,
                     .f = [f](In x) { return f(x[0], all_dims, false); },
                     .inputs = {mask({3, 5})},
                     .expect = over({}, false, expect),
                     .order = 0,
                     .empty = {{{0}}, {{2, 0}}},
                     .specials = {{.in = {tensor({false, false})}, .out = tensor(false)},
                                  {.in = {tensor({true, true})}, .out = tensor(true)},
                                  {.in = {tensor({false, true})}, .out = tensor(!start)}},
                     .bad = {{.shapes = {{3}}, .dtypes = {f32}, .says = {"boolean", "f32"}}}});
    table.push_back({.op = op,
                     .variant = "last axis",
                     .f = [f](In x) { return f(x[0], -1, false); },
                     .inputs = {mask({5, 2})},
                     .expect = over({-1}, false, expect),
                     .order = 0,
                     .empty = {{{2, 0}}, {{0, 2}}},
                     .bad = {{.shapes = {{}}, .says = {"axis -1"}, .names_shapes = false}}});
    table.push_back({.op = op,
                     .variant = "outer axes kept",
                     .f =
                         [f](In x) {
                           return f(x[0], {0, 2}, true);
                         },
                     .inputs = {mask({2, 5, 2})},
                     .expect = over({0, 2}, true, expect),
                     .order = 0});
  };
  truth("any", any, false);
  truth("all", all, true);
}

// Values, or their places, in order; equal ones as they stood.
std::function<std::vector<double>(const std::vector<double>&, const std::vector<double>&)> ordered(bool descending,
                                                                                                   bool places) {
  return [=](const std::vector<double>& x, const std::vector<double>&) {
    std::vector<double> result(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      size_t before = 0;
      for (size_t j = 0; j < x.size(); ++j) {
        const bool first = descending ? x[j] > x[i] : x[j] < x[i];
        if (first || (x[j] == x[i] && j < i)) ++before;
      }
      result[before] = places ? static_cast<double>(i) : x[i];
    }
    return result;
  };
}

// The first k along an axis of what `all` gives.
Reference first_of(Reference all, int64_t k, int dim) {
  return [=](const std::vector<Array>& in) {
    const Array y = all(in);
    Shape shape = y.shape;
    shape[dim] = k;
    return moved(shape, [](const Index& i) { return i; })({y});
  };
}

void add_orders(std::vector<Sample>& table) {
  const Bad no_axis{.shapes = {{3}}, .says = {"axis 1", "rank 1"}, .names_shapes = false};
  auto not_a_number = [](Var (*f)(const Tensor&)) {
    return Bad{.shapes = {}, .says = {"NaN", "position 1"}, .f = [f](In) { return f(f64({1, nan, 2})); }};
  };

  // ---- cumsum ----
  auto running = [](const std::vector<double>& x, const std::vector<double>&) {
    std::vector<double> y;
    for (size_t i = 0; i < x.size(); ++i)
      y.push_back(sum_of({x.begin(), x.begin() + static_cast<std::ptrdiff_t>(i) + 1}));
    return y;
  };
  table.push_back(
      {.op = "cumsum",
       .f = [](In x) { return cumsum(x[0], 1); },
       .inputs = {real({3, 7})},
       .expect = along(1, running),
       .empty = {{{0, 3}}, {{3, 0}}},
       .specials = {{.in = {f64({{1, 2, 3}})},
                     .out = f64({{1, 3, 6}}),
                     .gradients = {f64({{111, 110, 100}})},
                     .seed = f64({{1, 10, 100}})},
                    {.in = {f64({{1, inf, 2, -inf}})}, .out = f64({{1, inf, inf, nan}})}},
       .bad = {no_axis, {.shapes = {{2, 3}}, .dtypes = {boolean}, .says = {"boolean"}, .names_shapes = false}}});
  table.push_back({.op = "cumsum",
                   .variant = "first axis",
                   .f = [](In x) { return cumsum(x[0], 0); },
                   .inputs = {real({4, 3, 2})},
                   .expect = along(0, running)});
  table.push_back({.op = "cumsum",
                   .variant = "i64",
                   .f = [](In x) { return cumsum(x[0], -1); },
                   .inputs = {integers({2, 5})},
                   .expect = along(-1, running),
                   .order = 0});

  // ---- sort ----
  table.push_back({.op = "sort",
                   .f = [](In x) { return sort(x[0]).values; },
                   .inputs = {apart({3, 7})},
                   .expect = along(-1, ordered(false, false)),
                   .empty = {{{0, 3}}, {{3, 0}}},
                   .specials = {{.in = {f64({2, inf, -1000, 2, -inf})},
                                 .out = f64({-inf, -1000, 2, 2, inf}),
                                 .gradients = {f64({3, 5, 2, 4, 1})},
                                 .seed = f64({1, 2, 3, 4, 5})}},
                   .bad = {{.shapes = {{}}, .says = {"axis -1"}, .names_shapes = false},
                           {.shapes = {{2}}, .dtypes = {boolean}, .says = {"boolean"}, .names_shapes = false},
                           not_a_number([](const Tensor& x) { return sort(x).values; })}});
  table.push_back({.op = "sort",
                   .variant = "descending; first axis",
                   .f = [](In x) { return sort(x[0], 0, true).values; },
                   .inputs = {apart({4, 3})},
                   .expect = along(0, ordered(true, false))});
  table.push_back({.op = "sort",
                   .variant = "indices",
                   .f = [](In x) { return sort(x[0].detach(), 1).indices; },
                   .inputs = {whole({2, 40, 2})},
                   .expect = along(1, ordered(false, true)),
                   .order = 0,
                   .specials = {{.in = {f64({{2, 1, 2, 1}})}, .out = tensor({{1, 3, 0, 2}})}}});
  table.push_back({.op = "sort",
                   .variant = "descending indices; i64",
                   .f = [](In x) { return sort(x[0].detach(), -1, true).indices; },
                   .inputs = {integers({2, 15})},
                   .expect = along(-1, ordered(true, true)),
                   .order = 0});
  table.push_back({.op = "sort",
                   .variant = "i64",
                   .f = [](In x) { return sort(x[0], 0).values; },
                   .inputs = {integers({9, 2})},
                   .expect = along(0, ordered(false, false)),
                   .order = 0});

  // ---- topk ----
  table.push_back({.op = "topk",
                   .f = [](In x) { return topk(x[0], 3).values; },
                   .inputs = {apart({3, 7})},
                   .expect = first_of(along(-1, ordered(true, false)), 3, 1),
                   .empty = {{{0, 3}}},
                   .specials = {{.in = {f64({1, inf, 1, -inf, 1})},
                                 .out = f64({inf, 1, 1}),
                                 .gradients = {f64({2, 1, 3, 0, 0})},
                                 .seed = f64({1, 2, 3})}},
                   .bad = {{.shapes = {{2, 2}}, .says = {"0 <= k <= 2", "got 3"}},
                           {.shapes = {{2, 2}}, .says = {"-1"}, .f = [](In x) { return topk(x[0], -1).values; }},
                           {.shapes = {{}}, .says = {"axis -1"}, .names_shapes = false},
                           not_a_number([](const Tensor& x) { return topk(x, 1).values; })}});
  table.push_back({.op = "topk",
                   .variant = "indices; first axis",
                   .f = [](In x) { return topk(x[0].detach(), 4, 0).indices; },
                   .inputs = {whole({40, 2})},
                   .expect = first_of(along(0, ordered(true, true)), 4, 0),
                   .order = 0,
                   .specials = {{.in = {f64({3, 5, 5, 3, 3})}, .out = tensor({1, 2, 0, 3})}}});
  table.push_back({.op = "topk",
                   .variant = "all",
                   .f = [](In x) { return topk(x[0], 5, -1).values; },
                   .inputs = {apart({5})},
                   .expect = along(0, ordered(true, false))});
  table.push_back({.op = "topk",
                   .variant = "none",
                   .f = [](In x) { return topk(x[0], 0).values; },
                   .inputs = {apart({2, 5})},
                   .expect = first_of(along(-1, ordered(true, false)), 0, 1),
                   .empty = {{{2, 0}}}});
}

}  // namespace

void add_reductions(std::vector<Sample>& table) {
  add_spreads(table);
  add_orders(table);

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

}  // namespace tapedeck::samples
