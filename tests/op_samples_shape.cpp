#include "op_samples_families.h"

#include <algorithm>
#include <cmath>

namespace tapedeck::samples {
using namespace values;

namespace {

// chunk, flip, roll, pad: made of slices, index_select and cat.
void add_rearrangements(std::vector<Sample>& table) {
  const Bad no_axis{.shapes = {{3}}, .says = {"axis 1", "rank 1"}, .names_shapes = false};
  // y[.., i, ..] = x[.., from(i, extent), ..] along an axis
  auto reordered = [](size_t dim, int64_t (*from)(int64_t, int64_t)) {
    return [=](const std::vector<Array>& in) {
      const int64_t extent = in[0].shape[static_cast<int>(dim)];
      return moved(in[0].shape, [=](Index i) {
        i[dim] = from(i[dim], extent);
        return i;
      })(in);
    };
  };

  // ---- chunk ----
  table.push_back({.op = "chunk",
                   .f = [](In x) { return chunk(x[0], 3, 1).at(1); },
                   .inputs = {real({2, 8})},
                   .expect = moved({2, 3},
                                   [](const Index& i) {
                                     return Index{i[0], i[1] + 3};
                                   }),  // 3, 3 and 2
                   .bad = {{.shapes = {{4, 2}}, .says = {"1 to 2 parts", "got 3"}},
                           {.shapes = {{4, 2}}, .says = {"got 0"}, .f = [](In x) { return chunk(x[0], 0).at(0); }},
                           no_axis},
                   .composed = true});
  table.push_back({.op = "chunk",
                   .variant = "last of uneven parts",
                   .f =
                       [](In x) {
                         return cat({chunk(x[0], 4, -2).at(3), chunk(x[0], 4, -2).at(1)});
                       },
                   .inputs = {real({6, 2})},
                   .expect = moved({3, 2},
                                   [](const Index& i) {
                                     return Index{i[0] == 0 ? 5 : i[0] + 1, i[1]};
                                   }),
                   .composed = true});
  table.push_back({.op = "chunk",
                   .variant = "one part; empty",
                   .f = [](In x) { return chunk(x[0], 1, 0).at(0); },
                   .inputs = {real({3, 2})},
                   .expect = reordered(0, [](int64_t i, int64_t) { return i; }),
                   .empty = {{{0, 2}}, {{3, 0}}},
                   .composed = true});

  // ---- flip ----
  auto last_first = [](int64_t i, int64_t n) { return n - 1 - i; };
  table.push_back({.op = "flip",
                   .f = [](In x) { return flip(x[0], 1); },
                   .inputs = {real({2, 5, 3})},
                   .expect = reordered(1, last_first),
                   .empty = {{{0, 3}}, {{3, 0}}},
                   .bad = {no_axis},
                   .composed = true});
  table.push_back({.op = "flip",
                   .variant = "last axis",
                   .f = [](In x) { return flip(x[0], -1); },
                   .inputs = {real({2, 4})},
                   .expect = reordered(1, last_first),
                   .composed = true});
  table.push_back({.op = "flip",
                   .variant = "boolean",
                   .f = [](In x) { return flip(x[0], 0); },
                   .inputs = {mask({7})},
                   .expect = reordered(0, last_first),
                   .order = 0,
                   .composed = true});

  // ---- roll ----
  table.push_back({.op = "roll",
                   .f = [](In x) { return roll(x[0], 2, 1); },
                   .inputs = {real({2, 5, 3})},
                   .expect = reordered(1, [](int64_t i, int64_t n) { return (i + n - 2) % n; }),
                   .empty = {{{0, 3}}, {{3, 0}}},
                   .bad = {no_axis},
                   .composed = true});
  table.push_back({.op = "roll",
                   .variant = "back; beyond the extent",
                   .f = [](In x) { return roll(x[0], -8, -1); },
                   .inputs = {real({2, 5})},
                   .expect = reordered(1, [](int64_t i, int64_t n) { return (i + 8) % n; }),
                   .composed = true});
  table.push_back({.op = "roll",
                   .variant = "all the way round",
                   .f = [](In x) { return roll(x[0], 8, 0); },
                   .inputs = {real({4, 2})},
                   .expect = reordered(0, [](int64_t i, int64_t) { return i; }),
                   .composed = true});

  // ---- pad ----
  auto padded = [](size_t dim, int64_t before, int64_t after, double value) {
    return [=](const std::vector<Array>& in) {
      Shape shape = in[0].shape;
      shape[static_cast<int>(dim)] += before + after;
      Array y(shape, value);
      for_each_index(in[0].shape, [&](Index i) {
        const double v = in[0](i);
        i[dim] += before;
        y(i) = v;
      });
      return y;
    };
  };
  table.push_back(
      {.op = "pad",
       .f = [](In x) { return pad(x[0], 1, 2, 1, -7.5); },
       .inputs = {real({2, 3, 2})},
       .expect = padded(1, 2, 1, -7.5),
       .empty = {{{0, 3}}, {{3, 0}}},
       .specials = {{.in = {f64({{inf, nan}})},
                     .out = f64({{-7.5, -7.5, inf, nan, -7.5}}),
                     .gradients = {f64({{3, 4}})},
                     .seed = f64({{1, 2, 3, 4, 5}})}},
       .bad = {no_axis,
               {.shapes = {{3}}, .says = {"-1"}, .f = [](In x) { return pad(x[0], 0, 1, -1); }, .names_shapes = false}},
       .composed = true});
  table.push_back({.op = "pad",
                   .variant = "after; last axis",
                   .f = [](In x) { return pad(x[0], -1, 0, 2); },
                   .inputs = {real({2, 3})},
                   .expect = padded(1, 0, 2, 0),
                   .composed = true});
  table.push_back({.op = "pad",
                   .variant = "i64",
                   .f = [](In x) { return pad(x[0], 0, 1, 0, 9); },
                   .inputs = {integers({3})},
                   .expect = padded(0, 1, 0, 9),
                   .order = 0,
                   .composed = true});
}

}  // namespace

void add_shapes(std::vector<Sample>& table) {
  add_rearrangements(table);

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

}  // namespace tapedeck::samples
