#include "op_samples_families.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tapedeck::samples {
using namespace values;

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

  // ---- einsum: every letter a loop ----
  auto row = [&](const char* equation, const Shape& a, const Shape& b, const char* result = nullptr) {
    const std::string text = equation;
    const size_t comma = text.find(','), arrow = text.find("->");
    const std::string letters_a = text.substr(0, comma), letters_b = text.substr(comma + 1, arrow - comma - 1);
    const std::string out = result ? result : text.substr(arrow + 2);
    std::string all = letters_a;
    for (char c : letters_b) {
      if (all.find(c) == std::string::npos) all += c;
    }
    Reference loops = [=](const std::vector<Array>& in) {
      auto extent = [&](char c) {
        const size_t i = letters_a.find(c);
        return i != std::string::npos ? in[0].shape[static_cast<int>(i)]
                                      : in[1].shape[static_cast<int>(letters_b.find(c))];
      };
      Shape shape, every;
      for (char c : out) shape.push_back(extent(c));
      for (char c : all) every.push_back(extent(c));
      Array y(shape);
      for_each_index(every, [&](const Index& at) {
        auto place = [&](const std::string& letters) {
          Index index;
          for (char c : letters) index.push_back(at[all.find(c)]);
          return index;
        };
        y(place(out)) += in[0](place(letters_a)) * in[1](place(letters_b));
      });
      return y;
    };
    return Sample{.op = "einsum",
                  .variant = text,
                  .f = [text](In x) { return einsum(text, x[0], x[1]); },
                  .inputs = {real(a), real(b)},
                  .expect = loops,
                  .composed = true};
  };
  Sample batched = row("bij,bjk->bik", {2, 3, 4}, {2, 4, 2});
  batched.empty = {{{0, 3, 4}, {0, 4, 2}}, {{2, 3, 0}, {2, 0, 2}}, {{2, 0, 4}, {2, 4, 2}}};
  batched.specials = {{.in = {f64({{{nan, 0}, {1, 2}}}), f64({{{0}, {3}}})},
                       .out = f64({{{nan}, {6}}}),
                       .gradients = {f64({{{0, 3}, {0, 6}}}), f64({{{nan}, {4}}})},
                       .seed = f64({{{1}, {2}}})}};
  auto refuses = [](const char* equation, std::vector<Shape> shapes, std::vector<std::string> says,
                    bool names_shapes = false) {
    return Bad{.shapes = std::move(shapes),
               .says = std::move(says),
               .f = [equation](In x) { return einsum(equation, x[0], x[1]); },
               .names_shapes = names_shapes};
  };
  batched.bad = {{.shapes = {{2, 3, 4}, {2, 3, 2}}, .says = {"axis j", "4", "3"}},
                 {.shapes = {{2, 3}, {2, 3, 2}}, .says = {"does not name"}},
                 {.shapes = {{2, 3, 4}, {2, 4, 2}}, .dtypes = {f32, DType::f64}, .says = {"f32", "f64"}},
                 {.shapes = {{2, 3, 4}, {2, 4, 2}}, .dtypes = {i64, i64}, .says = {"i64"}},
                 refuses("ii,ij->j", {{2, 2}, {2, 2}}, {"letter i", "twice"}),
                 refuses("ij,jk->ii", {{2, 2}, {2, 2}}, {"letter i", "twice"}),
                 refuses("ij,jk->il", {{2, 2}, {2, 2}}, {"letter l"}),
                 refuses("ij", {{2, 2}, {2, 2}}, {"two operands"}),
                 refuses("ij,jk,kl->il", {{2, 2}, {2, 2}}, {"unexpected ','"}),
                 refuses("i1,jk->ik", {{2, 2}, {2, 2}}, {"unexpected '1'"})};
  table.push_back(batched);
  table.push_back(row("ij,jk", {2, 3}, {3, 4}, "ik"));  // no result: the letters that occur once, sorted
  table.push_back(row("ba,bc", {3, 2}, {3, 2}, "ac"));
  table.push_back(row("i,j->ij", {3}, {3}));          // outer product
  table.push_back(row("ij,ij->", {3, 2}, {3, 2}));    // inner product
  table.push_back(row("ij,ij->ij", {3, 2}, {3, 2}));  // elementwise
  table.push_back(row("ik,jk->ji", {2, 3}, {4, 3}));  // the result transposed
  table.push_back(row("ijk,lj->kil", {2, 3, 2}, {2, 3}));
  table.push_back(row("ij,kl->jl", {2, 3}, {3, 2}));  // letters summed within one operand
  table.push_back(row(",ij->ji", {}, {2, 3}));
  table.push_back(row("bhqd,bhkd->bhqk", {1, 2, 3, 2}, {1, 2, 2, 2}));
}

}  // namespace tapedeck::samples
