#include "op_samples_families.h"

#include <algorithm>
#include <cmath>

namespace tapedeck::samples {
using namespace values;

namespace {

void add_softmaxes(std::vector<Sample>& table) {
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

void add_cross_entropy(std::vector<Sample>& table) {
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
                  .expect = cross_entropies(options)};
  };

  Sample plain = row("", {4, 5}, 5, {});
  plain.also = {"alias"};
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

Reference reduced(std::function<double(double, double)> f, Reduction reduction) {
  return [=](const std::vector<Array>& in) {
    const Array each_loss = each([f](const double* v) { return f(v[0], v[1]); })(in);
    if (reduction == Reduction::none) return each_loss;
    const double total = sum_of(each_loss.data), n = static_cast<double>(each_loss.data.size());
    return Array(Shape{}, reduction == Reduction::sum || n == 0 ? total : total / n);
  };
}

void add_elementwise_losses(std::vector<Sample>& table) {
  // ---- nll ----
  auto picked = [](std::optional<int64_t> ignored, Reduction reduction) {
    return [=](const std::vector<Array>& in) {
      Array losses(in[1].shape);
      double count = 0;
      for_each_index(in[1].shape, [&](const Index& at) {
        const int64_t target = static_cast<int64_t>(in[1](at));
        if (ignored && target == *ignored) return;
        Index i = at;
        i.push_back(target);
        losses(at) = -in[0](i);
        count += 1;
      });
      if (reduction == Reduction::none) return losses;
      const double total = sum_of(losses.data);
      return Array(Shape{}, reduction == Reduction::sum || count == 0 ? total : total / count);
    };
  };
  auto nll_row = [&](const char* variant, const Shape& log_p, int64_t classes, std::optional<int64_t> ignored,
                     Reduction reduction) {
    Shape targets = log_p;
    targets.erase(log_p.rank() - 1);
    return Sample{.op = "nll",
                  .variant = variant,
                  .f = [=](In x) { return nll(x[0], x[1], ignored, reduction); },
                  .inputs = {real(log_p), ids(targets, classes)},
                  .expect = picked(ignored, reduction),
                  .composed = true};
  };
  Sample plain = nll_row("", {4, 5}, 5, std::nullopt, Reduction::mean);
  plain.empty = {{{0, 5}, {0}}, {{2, 0, 5}, {2, 0}}};
  // Nothing comes from the classes that are not asked for, not even an infinity.
  plain.specials = {{.in = {f64({{-inf, -2, nan}, {-1000, 0, 0}}), tensor({1, 0})},
                     .out = f64(501),
                     .gradients = {f64({{0, -0.5, 0}, {-0.5, 0, 0}})}}};
  plain.bad = {{.shapes = {{3, 5}, {3, 1}}, .says = {"(3,)"}},
               {.shapes = {{3, 5}, {5}}},
               {.shapes = {{}, {}}, .says = {"()"}},
               {.shapes = {{3, 5}, {3}}, .dtypes = {f32, f32}, .says = {"i64", "f32"}},
               {.shapes = {{3, 5}, {3}}, .dtypes = {i64, i64}, .says = {"floating", "i64"}, .names_shapes = false},
               {.shapes = {},
                .says = {"5", "position 1", "0 to 4"},
                .f =
                    [](In) {
                      return nll(zeros({3, 5}), tensor({1, 5, 0}));
                    }},
               {.shapes = {}, .says = {"-4", "position 2", "0 to 4", "-1"}, .f = [](In) {
                  return nll(zeros({3, 5}), tensor({1, 3, -4}), -1);
                }}};
  table.push_back(plain);
  Sample ignoring = nll_row("ignore index", {6, 3}, 3, 0, Reduction::mean);
  ignoring.specials = {
      {.in = {f64({{nan, -1}, {-2, -3}}), tensor({0, 1})}, .out = f64(3), .gradients = {f64({{0, 0}, {0, -1}})}},
      {.in = {f64({{nan, -1}, {-2, -3}}), tensor({0, 0})}, .out = f64(0), .gradients = {zeros({2, 2})}}};
  table.push_back(ignoring);
  table.push_back(nll_row("sum; rank 3", {2, 3, 4}, 4, 3, Reduction::sum));
  table.push_back(nll_row("none; rank 3", {2, 3, 4}, 4, 3, Reduction::none));
  table.push_back(nll_row("one target", {5}, 5, std::nullopt, Reduction::mean));

  // ---- mse, l1, bce_with_logits, kl_div ----
  using Loss = Var (*)(Operand, Operand, Reduction);
  auto rows = [&](const char* op, Loss loss, const Draw& x, const Draw& target, std::function<double(double, double)> f,
                  std::vector<Special> specials) {
    auto in_shape = [](Draw draw, const Shape& shape) {
      draw.shape = shape;
      return draw;
    };
    table.push_back({.op = op,
                     .f = [loss](In v) { return loss(v[0], v[1], Reduction::mean); },
                     .inputs = {x, target},
                     .expect = reduced(f, Reduction::mean),
                     .empty = {{{0}, {0}}, {{2, 0}, {2, 0}}},
                     .specials = std::move(specials),
                     // Losses never broadcast.
                     .bad = {{.shapes = {{3, 1}, {3}}},
                             {.shapes = {{3}, {3, 1}}},
                             {.shapes = {{3}, {1}}},
                             {.shapes = {{2, 3}, {}}},
                             {.shapes = {{3}, {3}}, .dtypes = {f32, DType::f64}, .says = {"f32", "f64"}},
                             {.shapes = {{3}, {3}}, .dtypes = {i64, i64}, .says = {"i64"}}},
                     .composed = true});
    table.push_back({.op = op,
                     .variant = "sum",
                     .f = [loss](In v) { return loss(v[0], v[1], Reduction::sum); },
                     .inputs = {in_shape(x, {7}), in_shape(target, {7})},
                     .expect = reduced(f, Reduction::sum),
                     .composed = true});
    table.push_back({.op = op,
                     .variant = "none; rank 3",
                     .f = [loss](In v) { return loss(v[0], v[1], Reduction::none); },
                     .inputs = {in_shape(x, {2, 3, 2}), in_shape(target, {2, 3, 2})},
                     .expect = reduced(f, Reduction::none),
                     .empty = {{{0, 2}, {0, 2}}},
                     .composed = true});
    table.push_back({.op = op,
                     .variant = "rank 0",
                     .f = [loss](In v) { return loss(v[0], v[1], Reduction::mean); },
                     .inputs = {in_shape(x, {}), in_shape(target, {})},
                     .expect = reduced(f, Reduction::mean),
                     .composed = true});
  };
  rows("mse", mse, real({3, 5}), real({3, 5}), [](double x, double t) { return (x - t) * (x - t); },
       {{.in = {f64({1, 2, 3}), f64({1, 0, 6})},
         .out = f64(13. / 3),
         .gradients = {f64({0, 4. / 3, -2}), f64({0, -4. / 3, 2})}},
        {.in = {f64({1000, inf}), f64({0, 0})}, .out = f64(inf), .gradients = {f64({1000, inf}), f64({-1000, -inf})}},
        {.in = {f64({nan, 1}), f64({0, 0})}, .out = f64(nan), .gradients = {f64({nan, 1}), f64({nan, -1})}}});
  // Targets that are nowhere near: |x - t| has its kink at 0.
  Draw far = apart({3, 5});
  far.element = [inner = far.element](int64_t i, int64_t n, Rng& rng) { return inner(i, n, rng) + 0.075; };
  rows("l1", l1, apart({3, 5}), far, [](double x, double t) { return x > t ? x - t : t - x; },
       {{.in = {f64({1, 2, 3, 4}), f64({1, 0, 6, 4})},
         .out = f64(1.25),
         .gradients = {f64({0, 0.25, -0.25, 0}), f64({0, -0.25, 0.25, 0})}},
        {.in = {f64({1000, -inf}), f64({0, 0})}, .out = f64(inf), .gradients = {f64({0.5, -0.5}), f64({-0.5, 0.5})}}});
  rows("bce_with_logits", bce_with_logits, real({3, 5}), real({3, 5}, 0, 1),
       [](double x, double t) {
         const double p = 1 / (1 + std::exp(-x));
         return -t * std::log(p) - (1 - t) * std::log(1 - p);
       },
       {{.in = {f64({0, 1000, -1000, 1000}), f64({1, 1, 0, 0})},
         .out = f64((std::log(2) + 1000) / 4),
         .gradients = {f64({-0.125, 0, 0, 0.25}), f64({0, -250, 250, -250})}},
        {.in = {f64({nan}), f64({1})}, .out = f64(nan)}});
  rows("kl_div", kl_div, real({3, 5}), positive({3, 5}), [](double x, double t) { return t * std::log(t) - t * x; },
       // Where t = 0 nothing counts, whatever x is.
       {{.in = {f64({-inf, 0, 2, nan}), f64({0, 0.5, 0, 0})},
         .out = f64(0.5 * std::log(0.5) / 4),
         .gradients = {f64({0, -0.125, 0, 0}), f64({0, (std::log(0.5) + 1) / 4, 0, 0})}},
        {.in = {f64({-inf, 0}), f64({0.5, 1})}, .out = f64(inf), .gradients = {f64({-0.25, -0.5}), f64({inf, 0.5})}}});
}

void add_normalised(std::vector<Sample>& table) {
  // (x - mean) / sqrt(variance + eps) weight + bias, along the last axis
  auto normalised = [](double eps) {
    return [eps](const std::vector<Array>& in) {
      const Array rows = along(-1, [eps](const std::vector<double>& x, const std::vector<double>&) {
        const double m = mean_of(x);
        double squares = 0;
        for (double v : x) squares += (v - m) * (v - m);
        std::vector<double> y;
        for (double v : x) y.push_back((v - m) / std::sqrt(squares / static_cast<double>(x.size()) + eps));
        return y;
      })({in[0]});
      Array y = rows;
      for_each_index(y.shape, [&](const Index& i) {
        y(i) = rows(i) * in[1]({i.back()}) + (in.size() > 2 ? in[2]({i.back()}) : 0);
      });
      return y;
    };
  };
  table.push_back(
      {.op = "layer_norm",
       .f = [](In x) { return layer_norm(x[0], x[1], x[2], 0.1); },
       .inputs = {real({3, 5}), real({5}), real({5})},
       .expect = normalised(0.1),
       .empty = {{{0, 5}, {5}, {5}}, {{3, 0}, {0}, {0}}, {{2, 0, 5}, {5}, {5}}},
       // A constant row gives the bias.
       .specials = {{.in = {f64({{1, 3}, {1000, 1000}}), f64({2, -1}), f64({0.5, 7})},
                     .out = f64({{0.5 - 2 / std::sqrt(1.1), 7 - 1 / std::sqrt(1.1)}, {0.5, 7}})},
                    {.in = {f64({{1, nan}, {0, 0}}), f64({1, 1}), f64({0, 1})}, .out = f64({{nan, nan}, {0, 1}})},
                    {.in = {f64({{1, inf}}), f64({1, 1}), f64({0, 0})}, .out = f64({{nan, nan}})}},
       .bad = {{.shapes = {{2, 3}, {2}, {3}}, .says = {"weight", "(2, 3)", "(2,)"}, .names_shapes = false},
               {.shapes = {{2, 3}, {3}, {2}}, .says = {"bias", "(2, 3)", "(2,)"}, .names_shapes = false},
               {.shapes = {{2, 3}, {2, 3}, {3}}, .says = {"weight", "(2, 3)"}, .names_shapes = false},
               {.shapes = {{}, {3}, {3}}, .says = {"()", "(3,)"}, .names_shapes = false},
               {.shapes = {{2, 3}, {3}, {3}},
                .dtypes = {f32, DType::f64, f32},
                .says = {"f32", "f64"},
                .names_shapes = false},
               {.shapes = {{2, 3}, {3}, {3}}, .dtypes = {i64, i64, i64}, .says = {"i64"}, .names_shapes = false},
               {.shapes = {{2, 3}, {3}, {3}},
                .says = {"eps", "-1"},
                .f = [](In x) { return layer_norm(x[0], x[1], x[2], -1); },
                .names_shapes = false}},
       .composed = true});
  table.push_back({.op = "layer_norm",
                   .variant = "no bias; rank 3",
                   .f = [](In x) { return layer_norm(x[0], x[1], 0.05); },
                   .inputs = {real({2, 2, 4}), real({4})},
                   .expect = normalised(0.05),
                   .composed = true});
  table.push_back({.op = "layer_norm",
                   .variant = "one row",
                   .f = [](In x) { return layer_norm(x[0], x[1], x[2], 0.1); },
                   .inputs = {real({4}), real({4}), real({4})},
                   .expect = normalised(0.1),
                   .composed = true});
  table.push_back({.op = "layer_norm",
                   .variant = "one element",
                   .f = [](In x) { return layer_norm(x[0], x[1], x[2], 0.1); },
                   .inputs = {real({3, 1}), real({1}), real({1})},
                   .expect = normalised(0.1),
                   .composed = true});

  // ---- checkpoint: the engine's, with a function of ops ----
  table.push_back({.op = "checkpoint",
                   .f =
                       [](In x) {
                         return checkpoint([](In v) { return tanh(v[0]) * v[1]; }, {x[0], x[1]});
                       },
                   .inputs = {real({3, 5}), real({3, 5})},
                   .expect = each([](const double* v) { return std::tanh(v[0]) * v[1]; }),
                   .empty = {{{0, 3}, {0, 3}}, {{2, 0}, {1}}},
                   .specials = {{.in = {f64({0, 1000, nan}), f64({3, -1, 1})},
                                 .out = f64({0, -1, nan}),
                                 .gradients = {f64({3, 0, nan}), f64({0, 1, nan})}}},
                   .bad = {{.shapes = {}, .says = {"Parameter"}, .f = [](In) {
                              Tape tape;
                              const Parameter w(ones({2}));
                              Var y = checkpoint([w](In v) { return v[0] * w; }, {tape.leaf(ones({2}))});
                              tape.backward(sum(y));
                              return y;
                            }}}});
  table.push_back({.op = "checkpoint",
                   .variant = "indices",
                   .f =
                       [](In x) {
                         return checkpoint([](In v) { return index_select(v[0], 0, v[1]); }, {x[0], x[1]});
                       },
                   .inputs = {real({4, 2}), ids({3}, 4)},
                   .expect =
                       [](const std::vector<Array>& in) {
                         return moved({in[1].shape[0], in[0].shape[1]}, [&](const Index& i) {
                           return Index{static_cast<int64_t>(in[1]({i[0]})), i[1]};
                         })(in);
                       }});
}

}  // namespace

void add_losses(std::vector<Sample>& table) {
  add_softmaxes(table);
  add_cross_entropy(table);
  add_dropout(table);
  add_elementwise_losses(table);
  add_normalised(table);
}

}  // namespace tapedeck::samples
