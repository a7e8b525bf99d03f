#include "op_samples_families.h"

#include <algorithm>
#include <cmath>

namespace tapedeck::samples {
using namespace values;

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

  // ---- scatter_add ----
  auto added = [](size_t dim) {
    return [dim](const std::vector<Array>& in) {
      Array y = in[0];
      for_each_index(in[1].shape, [&](const Index& i) {
        Index to = i;
        to[dim] = static_cast<int64_t>(in[1](i));
        y(to) += in[2](i);
      });
      return y;
    };
  };
  table.push_back({.op = "scatter_add",
                   .f = [](In x) { return scatter_add(x[0], 1, x[1], x[2]); },
                   .inputs = {real({3, 4}), ids({3, 4}, 4), real({3, 4})},
                   .expect = added(1),
                   .empty = {{{3, 4}, {3, 0}, {3, 0}}, {{0, 4}, {0, 2}, {0, 2}}, {{3, 0}, {3, 0}, {3, 0}}},
                   .specials = {{.in = {f64({{1, 2, inf}}), tensor({{1, 1, 0}}), f64({{10, 20, 30}})},
                                 .out = f64({{31, 32, inf}}),
                                 .gradients = {f64({{5, 6, 7}}), f64({{6, 6, 5}})},
                                 .seed = f64({{5, 6, 7}})}},
                   .bad = {{.shapes = {{3, 4}, {4, 2}, {4, 2}}, .says = {"(3, 4)", "(4, 2)"}, .names_shapes = false},
                           {.shapes = {{3, 4}, {3}, {3}}, .says = {"(3, 4)", "(3,)"}, .names_shapes = false},
                           {.shapes = {{3, 4}, {3, 2}, {3, 1}}},
                           {.shapes = {{3, 4}, {3, 2}, {3, 2}},
                            .dtypes = {f32, i64, DType::f64},
                            .says = {"f32", "f64"},
                            .names_shapes = false},
                           {.shapes = {{3, 4}, {3, 2}, {3, 2}},
                            .dtypes = {i64, i64, i64},
                            .says = {"floating"},
                            .names_shapes = false},
                           {.shapes = {{3, 4}, {3, 2}, {3, 2}},
                            .dtypes = {f32, f32, f32},
                            .says = {"i64", "f32", "(3, 2)"},
                            .names_shapes = false},
                           {.shapes = {{3}, {2}, {2}}, .says = {"axis 1", "rank 1"}, .names_shapes = false},
                           refuses("scatter_add", 5,
                                   [=](In) {
                                     return scatter_add(table5, 0, tensor({{0}, {5}}), ones({2, 1}));
                                   }),
                           refuses("scatter_add", -1,
                                   [=](In) {
                                     return scatter_add(table5, 0, tensor({{0}, {-1}}), ones({2, 1}));
                                   })},
                   .composed = true});
  table.push_back({.op = "scatter_add",
                   .variant = "first axis; smaller index",
                   .f = [](In x) { return scatter_add(x[0], -3, x[1], x[2]); },
                   .inputs = {real({3, 4, 2}), ids({5, 2, 1}, 3), real({5, 2, 1})},
                   .expect = added(0),
                   .composed = true});

  // ---- one_hot ----
  Reference hot = [](const std::vector<Array>& in) {
    Shape shape = in[0].shape;
    shape.push_back(4);
    Array y(shape);
    for_each_index(in[0].shape, [&](Index i) {
      const double id = in[0](i);
      i.push_back(static_cast<int64_t>(id));
      y(i) = 1;
    });
    return y;
  };
  table.push_back(
      {.op = "one_hot",
       .f = [](In x) { return one_hot(x[0], 4); },
       .inputs = {ids({2, 3}, 4)},
       .expect = hot,
       .order = 0,
       .empty = {{{0}}, {{2, 0}}},
       .bad = {
           {.shapes = {{2}}, .dtypes = {f32}, .says = {"i64", "f32"}},
           {.shapes = {{2}}, .says = {"class", "0"}, .f = [](In x) { return one_hot(x[0], 0); }, .names_shapes = false},
           refuses("one_hot", 5, [=](In) { return one_hot(beyond, 5); }),
           refuses("one_hot", -1, [=](In) { return one_hot(negative, 5); })}});
  table.push_back({.op = "one_hot",
                   .variant = "one id; boolean",
                   .f = [](In x) { return one_hot(x[0], 4, boolean); },
                   .inputs = {ids({}, 4)},
                   .expect = hot,
                   .order = 0});

  // ---- index_put_, on a copy ----
  auto put = [](int64_t dim, bool accumulate) {
    return [=](In x) {
      Tensor target = x[0].value().clone();
      index_put_(target, dim, x[1].value(), x[2].value(), accumulate);
      return Var(target);
    };
  };
  auto replaced = [](size_t dim, bool accumulate) {
    return [=](const std::vector<Array>& in) {
      Array y = in[0];
      for_each_index(in[2].shape, [&](Index i) {
        const double v = in[2](i);
        i[dim] = static_cast<int64_t>(in[1]({i[dim]}));
        y(i) = accumulate ? y(i) + v : v;
      });
      return y;
    };
  };
  table.push_back({.op = "index_put_",
                   .f = put(0, false),
                   .inputs = {real({4, 3}), ids({5}, 4), real({5, 3})},
                   .expect = replaced(0, false),
                   .order = 0,
                   .empty = {{{4, 3}, {0}, {0, 3}}, {{4, 0}, {2}, {2, 0}}, {{0, 3}, {0}, {0, 3}}},
                   .specials = {{.in = {f64({1, 2, 3}), tensor({2, 0, 2}), f64({nan, 5, 6})}, .out = f64({5, 2, 6})}},
                   .bad = {{.shapes = {{4, 3}, {2}, {3}}, .says = {"(2, 3)", "(3,)"}, .names_shapes = false},
                           {.shapes = {{4, 3}, {2, 1}, {2, 3}}, .says = {"(2, 1)", "(2, 3)"}, .names_shapes = false},
                           {.shapes = {{4, 3}, {2}, {2, 3}},
                            .dtypes = {f32, i64, DType::f64},
                            .says = {"f32", "f64"},
                            .names_shapes = false},
                           {.shapes = {{4, 3}, {2}, {2, 3}},
                            .dtypes = {f32, f32, f32},
                            .says = {"i64", "f32", "(2,)"},
                            .names_shapes = false},
                           refuses("index_put_", 5,
                                   [=](In) {
                                     return put(0, false)(std::vector<Var>{table5, beyond, ones({2, 3})});
                                   }),
                           refuses("index_put_", -1,
                                   [=](In) {
                                     return put(0, true)(std::vector<Var>{table5, negative, ones({2, 3})});
                                   })},
                   .composed = true});
  table.push_back({.op = "index_put_",
                   .variant = "accumulate; last axis",
                   .f = put(-1, true),
                   .inputs = {real({3, 4}), ids({6}, 4), real({3, 6})},
                   .expect = replaced(1, true),
                   .order = 0,
                   .composed = true});
  table.push_back({.op = "index_put_",
                   .variant = "into a transposed view; from itself",
                   .f =
                       [](In x) {
                         Tensor target = x[0].value().transpose().clone().transpose();
                         index_put_(target, 0, tensor({1, 2, 0}), target);
                         return Var(target);
                       },
                   .inputs = {real({3, 2})},
                   .expect = moved({3, 2},
                                   [](const Index& i) {
                                     return Index{(i[0] + 2) % 3, i[1]};
                                   }),
                   .order = 0,
                   .composed = true});
}

}  // namespace tapedeck::samples
