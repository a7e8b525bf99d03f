// Matrix products: leading dimensions of odd layouts, every small size, empty extents, NumPy's shape rules, threads.
#include <tapedeck/core/blas.h>
#include <tapedeck/core/small_product.h>
#include <tapedeck/ops/ops.h>

#include <thread>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr DType F32 = DType::f32, F64 = DType::f64;

// a (M, K) @ b (K, N) by three loops, in f64.
Tensor naive_product(const Tensor& a, const Tensor& b) {
  int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  Tensor u = a.to(F64).contiguous(), v = b.to(F64).contiguous(), y = Tensor::zeros({m, n}, F64);
  const double *p = u.data<double>(), *q = v.data<double>();
  double* out = y.mutable_data<double>();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) out[i * n + j] += p[i * k + l] * q[l * n + j];
    }
  }
  return y.to(a.dtype());
}

// Leaves NaN in the memory that the next tensor of this size gets.
void poison(const Shape& shape, DType dtype) { Tensor::full(shape, not_a_number, dtype); }

Tensor product(const Tensor& a, const Tensor& b) {
  poison({a.size(0), b.size(1)}, a.dtype());
  return matmul(a, b).value();
}

double tolerance(DType dtype) { return dtype == F64 ? 1e-13 : 1e-5; }

// Ways to store the same (rows, cols) matrix.
std::vector<Tensor> layouts(const Tensor& x) {
  int64_t m = x.size(0), n = x.size(1);
  std::vector<Tensor> all{x, x.transpose().clone().transpose()};
  Tensor wide = Tensor::full({m, n + 3}, not_a_number, x.dtype());  // rows further apart
  wide.slice(1, 2, n + 2).copy_(x);
  all.push_back(wide.slice(1, 2, n + 2));
  Tensor tall = Tensor::full({n + 3, m}, not_a_number, x.dtype());  // columns further apart
  tall.slice(0, 1, n + 1).copy_(x.transpose());
  all.push_back(tall.slice(0, 1, n + 1).transpose());
  Tensor stepped = Tensor::full({2 * m, 3 * n}, not_a_number, x.dtype());  // no axis is dense
  stepped.slice(0, 0, 2 * m, 2).slice(1, 1, 3 * n, 3).copy_(x);
  all.push_back(stepped.slice(0, 0, 2 * m, 2).slice(1, 1, 3 * n, 3));
  Tensor deep = Tensor::full({m, 2, n, 2}, not_a_number, x.dtype());  // one dense axis is missing
  deep.select(3, 1).select(1, 0).copy_(x);
  all.push_back(deep.select(3, 1).select(1, 0));
  return all;
}

struct Rule {
  Shape a, b, y;
};

}  // namespace

TEST_SUITE("blas") {
TEST_CASE("axes of extent 1 and inner extent 1") {
  for (DType dtype : {F32, F64}) {
    Tensor column = tensor({{1}, {2}, {3}}, dtype), row = tensor({{10, 20}}, dtype);
    CHECK(same_bits(product(column, row), tensor({{10, 20}, {20, 40}, {30, 60}}, dtype)));
    Tensor turned = Tensor::ones({3, 1}, dtype).transpose().slice(1, 0, 2);  // (1, 2)
    CHECK(same_bits(product(turned, tensor({{0, 1}, {2, 3}}, dtype)), tensor({{2, 4}}, dtype)));
    CHECK(same_bits(product(column.expand({3, 4}), Tensor::ones({4, 2}, dtype)),
                    tensor({{4, 4}, {8, 8}, {12, 12}}, dtype)));
    Tensor a = tensor({{1, 2, 3}, {4, 5, 6}}, dtype), x = tensor({1, 0, -1}, dtype);
    CHECK(same_bits(matmul(a, x).value(), tensor({-2, -2}, dtype)));
    CHECK(same_bits(matmul(a.transpose(), tensor({1, -1}, dtype)).value(), tensor({-3, -3, -3}, dtype)));
    CHECK(same_bits(matmul(x, a.transpose()).value(), tensor({-2, -2}, dtype)));
    CHECK(matmul(x, x).shape() == Shape{});
    CHECK(matmul(x, x).item() == 2);
    CHECK(same_bits(product(x.unsqueeze(0), x.unsqueeze(1)), tensor({{2}}, dtype)));
    CHECK(same_bits(product(x.unsqueeze(1), x.unsqueeze(0)), tensor({{1, 0, -1}, {0, 0, 0}, {-1, 0, 1}}, dtype)));
    Tensor grid = range({4, 6}, dtype);
    // Columns and rows cut from a bigger matrix: the stride of the axis of extent 1 is anything.
    CHECK(same_bits(product(grid.slice(1, 2, 3), grid.slice(0, 1, 2)),
                    naive_product(grid.slice(1, 2, 3).clone(), grid.slice(0, 1, 2).clone())));
    CHECK(same_bits(product(grid.slice(0, 3, 4), grid.slice(0, 0, 1).transpose()), tensor({{325}}, dtype)));
    CHECK(same_bits(product(grid.slice(0, 0, 4, 3).slice(1, 5, 6), grid.slice(1, 0, 6, 5).slice(0, 2, 3)),
                    tensor({{60, 85}, {276, 391}}, dtype)));
    CHECK(same_bits(product(tensor(2, dtype).expand({2, 3}), tensor(5, dtype).expand({3, 4})),
                    Tensor::full({2, 4}, 30, dtype)));
    CHECK(same_bits(product(row.expand({3, 2}), row.transpose().expand({2, 2})), Tensor::full({3, 2}, 500, dtype)));
  }
}

TEST_CASE("what CBLAS reads in place") {
  double x[100] = {};
  auto reads = [&](int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
    return blas::readable(blas::Matrix<double>{x, rows, cols, row_stride, col_stride});
  };
  CHECK(reads(3, 4, 4, 1));
  CHECK(reads(3, 4, 9, 1));
  CHECK(reads(3, 4, 1, 3));
  CHECK(reads(3, 4, 1, 9));
  CHECK(reads(1, 4, 0, 1));  // one row: its stride means nothing
  CHECK(reads(1, 4, 999, 1));
  CHECK(reads(1, 4, 0, 7));
  CHECK(reads(4, 1, 1, 0));
  CHECK(reads(4, 1, 7, 999));
  CHECK(reads(1, 1, 0, 0));
  CHECK_FALSE(reads(3, 4, 0, 1));
  CHECK_FALSE(reads(3, 4, 1, 0));
  CHECK_FALSE(reads(3, 4, 8, 2));
  CHECK_FALSE(reads(3, 4, 3, 1));  // rows overlap
  CHECK_FALSE(reads(3, 4, 1, 2));
  CHECK_FALSE(reads(1, 4, 1, 0));
  CHECK_FALSE(reads(4, 1, 0, 1));
  CHECK_FALSE(reads(2, 2, 1, int64_t{1} << 31));
}

TEST_CASE("every small size in every layout with NaN in the output's memory") {
  for (DType dtype : {F32, F64}) {
    for (int64_t m : {1, 2, 3, 5, 8, 17}) {
      for (int64_t k : {1, 2, 4, 7, 16}) {
        for (int64_t n : {1, 2, 3, 6, 9, 16}) {
          Tensor a = normal({m, k}, dtype, 1), b = normal({k, n}, dtype, 2), right = naive_product(a, b);
          for (const Tensor& u : layouts(a)) {
            for (const Tensor& v : layouts(b)) {
              if (!close(product(u, v), right, tolerance(dtype))) {
                FAIL(m << "x" << k << "x" << n << " strides " << to_string(u.strides()) << " and "
                       << to_string(v.strides()));
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("squares of all sizes around the kernels' tiles") {
  for (DType dtype : {F32, F64}) {
    for (int64_t n = 1; n <= 65; n = n == 17 ? 63 : n + 1) {
      CAPTURE(n);
      Tensor a = normal({n, n}, dtype, 1), b = normal({n, n}, dtype, 2);
      CHECK(close(product(a, b), naive_product(a, b), tolerance(dtype)));
      CHECK(close(product(a.transpose(), b), naive_product(a.transpose(), b), tolerance(dtype)));
      CHECK(close(product(a, b.transpose()), naive_product(a, b.transpose()), tolerance(dtype)));
    }
  }
}

TEST_CASE("a NaN fills its row even where the other matrix is zero") {
  for (DType dtype : {F32, F64}) {
    for (int64_t n : {1, 2, 5, 16, 64}) {
      Tensor a = Tensor::ones({n + 2, n + 1}, dtype), b = Tensor::zeros({n + 1, n}, dtype);
      a.set({1, n}, not_a_number);
      std::vector<double> y = values(product(a, b));
      CAPTURE(n);
      for (int64_t i = 0; i < n + 2; ++i) {
        for (int64_t j = 0; j < n; ++j) CHECK(std::isnan(y[static_cast<size_t>(i * n + j)]) == (i == 1));
      }
      Tensor stacked = bmm(a.unsqueeze(0), b.unsqueeze(0)).value();
      CHECK(std::isnan(stacked.at({0, 1, 0})));
      CHECK(std::isnan(linear(a, b.transpose()).value().at({1, n - 1})));
    }
  }
}

TEST_CASE("extents of 0 give empty products or zeros") {
  for (DType dtype : {F32, F64}) {
    auto zeros = [&](const Shape& shape) { return Tensor::zeros(shape, dtype); };
    CHECK(same_bits(product(zeros({3, 0}), zeros({0, 4})), zeros({3, 4})));
    CHECK(product(zeros({0, 3}), zeros({3, 4})).shape() == Shape{0, 4});
    CHECK(product(zeros({3, 2}), zeros({2, 0})).shape() == Shape{3, 0});
    CHECK(product(zeros({0, 0}), zeros({0, 0})).shape() == Shape{0, 0});
    CHECK(matmul(zeros({0}), zeros({0})).item() == 0);
    CHECK(same_bits(matmul(zeros({2, 0}), zeros({0})).value(), zeros({2})));
    CHECK(same_bits(matmul(zeros({0}), zeros({0, 2})).value(), zeros({2})));
    poison({2, 3, 4}, dtype);
    CHECK(same_bits(matmul(zeros({2, 3, 0}), zeros({0, 4})).value(), zeros({2, 3, 4})));
    poison({2, 3, 4}, dtype);
    CHECK(same_bits(bmm(zeros({2, 3, 0}), zeros({2, 0, 4})).value(), zeros({2, 3, 4})));
    CHECK(matmul(zeros({0, 3, 2}), zeros({2, 4})).shape() == Shape{0, 3, 4});
    CHECK(bmm(zeros({0, 3, 2}), zeros({0, 2, 4})).shape() == Shape{0, 3, 4});
    CHECK(matmul(zeros({0, 1, 3, 2}), zeros({5, 2, 4})).shape() == Shape{0, 5, 3, 4});
    CHECK(same_bits(linear(zeros({2, 3, 0}), zeros({4, 0}), tensor({1, 2, 3, 4}, dtype)).value(),
                    tensor({1, 2, 3, 4}, dtype).expand({2, 3, 4})));
    CHECK(same_bits(linear(zeros({2, 0}), zeros({4, 0})).value(), zeros({2, 4})));
    CHECK(linear(zeros({0, 3}), zeros({4, 3})).shape() == Shape{0, 4});
    CHECK(linear(zeros({2, 3}), zeros({0, 3})).shape() == Shape{2, 0});
    Tape tape;
    Var a = tape.leaf(zeros({2, 3, 0})), b = tape.leaf(zeros({0, 4})), c = tape.leaf(zeros({5, 2, 0}));
    Var d = tape.leaf(Tensor::ones({0, 3}, dtype)), e = tape.leaf(Tensor::ones({3, 2}, dtype));
    Gradients g = tape.backward(sum(matmul(a, b)) + sum(matmul(c, zeros({5, 0, 3}))) + sum(matmul(d, e)));
    CHECK(g[a].shape() == Shape{2, 3, 0});
    CHECK(g[b].shape() == Shape{0, 4});
    CHECK(g[c].shape() == Shape{5, 2, 0});
    CHECK(g[d].shape() == Shape{0, 3});
    CHECK(same_bits(g[e], zeros({3, 2})));
  }
}

TEST_CASE("matmul follows the shape rules of numpy") {
  const Rule rules[] = {
      {{3}, {3}, {}},
      {{2, 3}, {3}, {2}},
      {{3}, {3, 4}, {4}},
      {{2, 3}, {3, 4}, {2, 4}},
      {{5, 2, 3}, {3}, {5, 2}},
      {{3}, {5, 3, 4}, {5, 4}},
      {{5, 2, 3}, {3, 4}, {5, 2, 4}},
      {{2, 3}, {5, 3, 4}, {5, 2, 4}},
      {{5, 2, 3}, {5, 3, 4}, {5, 2, 4}},
      {{1, 2, 3}, {5, 3, 4}, {5, 2, 4}},
      {{5, 2, 3}, {1, 3, 4}, {5, 2, 4}},
      {{6, 1, 2, 3}, {5, 3, 4}, {6, 5, 2, 4}},
      {{5, 2, 3}, {6, 1, 3, 4}, {6, 5, 2, 4}},
      {{6, 1, 2, 3}, {1, 5, 3, 4}, {6, 5, 2, 4}},
      {{6, 5, 2, 3}, {3, 4}, {6, 5, 2, 4}},
      {{6, 5, 2, 3}, {3}, {6, 5, 2}},
      {{3}, {6, 5, 3, 4}, {6, 5, 4}},
      {{1, 1}, {1, 1}, {1, 1}},
      {{1}, {1}, {}},
  };
  for (const Rule& rule : rules) {
    CAPTURE(to_string(rule.a));
    CAPTURE(to_string(rule.b));
    Tensor a = normal(rule.a, F64, 1), b = normal(rule.b, F64, 2);
    Tensor y = matmul(a, b).value();
    REQUIRE(y.shape() == rule.y);
    // Element by element, from the rule: y[..., i, j] = sum_k a[..., i, k] b[..., k, j], vectors as a row and a column.
    Tensor u = a.rank() == 1 ? a.unsqueeze(0) : a, v = b.rank() == 1 ? b.unsqueeze(1) : b;
    Tensor full = y;
    if (b.rank() == 1) full = full.unsqueeze(-1);
    if (a.rank() == 1) full = full.unsqueeze(-2);
    Shape batch = full.shape();
    batch.erase(batch.rank() - 1), batch.erase(batch.rank() - 1);
    Shape to_a = batch, to_b = batch;
    to_a.push_back(u.size(-2)), to_a.push_back(u.size(-1));
    to_b.push_back(v.size(-2)), to_b.push_back(v.size(-1));
    u = u.expand(to_a).reshape({batch.numel(), u.size(-2), u.size(-1)});
    v = v.expand(to_b).reshape({batch.numel(), v.size(-2), v.size(-1)});
    full = full.reshape({batch.numel(), full.size(-2), full.size(-1)});
    for (int64_t i = 0; i < batch.numel(); ++i) {
      CHECK(close(full.select(0, i), naive_product(u.select(0, i), v.select(0, i)), 1e-14));
    }
    // The gradients by the same loops: with seed w, dL/da = w b^T, dL/db = a^T w, summed over what was broadcast.
    Tensor w = normal(rule.y, F64, 3);
    Tape tape;
    Var la = tape.leaf(a), lb = tape.leaf(b);
    Gradients g = tape.backward(matmul(la, lb), w);
    Tensor flat = w.reshape(full.shape());
    Tensor all_a = Tensor::zeros({batch.numel(), u.size(1), u.size(2)}, F64);
    Tensor all_b = Tensor::zeros({batch.numel(), v.size(1), v.size(2)}, F64);
    for (int64_t i = 0; i < batch.numel(); ++i) {
      all_a.select(0, i).copy_(naive_product(flat.select(0, i), v.select(0, i).transpose()));
      all_b.select(0, i).copy_(naive_product(u.select(0, i).transpose(), flat.select(0, i)));
    }
    Shape shape_a = a.rank() == 1 ? Shape{1, a.size(0)} : a.shape();
    Shape shape_b = b.rank() == 1 ? Shape{b.size(0), 1} : b.shape();
    Tensor ga = sum_to(all_a.reshape(to_a), shape_a).value().reshape(a.shape());
    Tensor gb = sum_to(all_b.reshape(to_b), shape_b).value().reshape(b.shape());
    CHECK(close(g[la], ga, 1e-13));
    CHECK(close(g[lb], gb, 1e-13));
  }
}

TEST_CASE("products that have no rule are refused with both shapes") {
  const std::pair<Shape, Shape> wrong[] = {{{2, 3}, {2, 3}},   {{3}, {4}},          {{2, 3}, {4}},
                                           {{3}, {4, 3}},      {{5, 2, 3}, {4, 4}}, {{5, 2, 3}, {6, 3, 4}},
                                           {{2, 3}, {5, 4, 3}}};
  for (const auto& shapes : wrong) {
    std::string text = error_of([&] { matmul(Tensor::zeros(shapes.first), Tensor::zeros(shapes.second)); });
    CHECK(says(text, {"matmul"}));
  }
  CHECK(says(error_of([] {
               matmul(Tensor::zeros({2, 3}), Tensor::zeros({2, 3}));
             }),
             {"matmul", "inner sizes differ", "a (2, 3)", "b (2, 3)", "did you mean", "transpose(b, 0, 1)"}));
  CHECK(says(error_of([] {
               bmm(Tensor::zeros({64, 1, 32}), Tensor::zeros({64, 10, 32}));
             }),
             {"bmm", "(64, 1, 32)", "(64, 10, 32)", "transpose(b, 1, 2)"}));
  std::string text = error_of([] { matmul(Tensor::zeros({2, 3}), Tensor::zeros({4, 2})); });
  CHECK(says(text, {"(2, 3)", "(4, 2)"}));
  CHECK(text.find("did you mean") == std::string::npos);  // a transpose would not help
  CHECK(says(error_of([] { matmul(Tensor::zeros({5, 2, 3}), Tensor::zeros({6, 3, 4})); }), {"(5,)", "(6,)"}));
  CHECK(says(error_of([] { matmul(f32(2), f32({1})); }), {"matmul", "rank >= 1", "()", "(1,)", "*"}));
  CHECK(says(error_of([] { matmul(f32({1}), f64({1})); }), {"matmul", "f32", "f64"}));
  CHECK(says(error_of([] { matmul(tensor({1}), tensor({1})); }), {"matmul", "floating", "i64"}));
  CHECK(says(error_of([] { bmm(Tensor::zeros({2, 3}), Tensor::zeros({3, 4})); }), {"bmm", "(2, 3)", "matmul"}));
  CHECK(says(error_of([] { bmm(Tensor::zeros({1, 2, 3}), Tensor::zeros({5, 3, 4})); }), {"bmm", "(5, 3, 4)"}));
  CHECK(says(error_of([] { linear(Tensor::zeros({2, 3}), Tensor::zeros({3, 4})); }), {"linear", "(2, 3)", "(3, 4)"}));
  CHECK(says(error_of([] {
               linear(Tensor::zeros({2, 3}), Tensor::zeros({4, 3}), Tensor::zeros({3}));
             }),
             {"linear", "bias", "(4,)", "(3,)"}));
}

TEST_CASE("batched products in odd layouts") {
  for (DType dtype : {F32, F64}) {
    Tensor a = normal({4, 3, 5}, dtype, 1), b = normal({4, 5, 2}, dtype, 2);
    Tensor right = bmm(a, b).value();
    for (int64_t i = 0; i < 4; ++i) {
      CHECK(close(right.select(0, i), naive_product(a.select(0, i), b.select(0, i)), tolerance(dtype)));
    }
    const Tensor as[] = {a, a.permute({1, 0, 2}).clone().permute({1, 0, 2}), a.transpose().clone().transpose(),
                         a.permute({2, 1, 0}).clone().permute({2, 1, 0}),
                         a.permute({2, 0, 1}).clone().permute({1, 2, 0})};
    const Tensor bs[] = {b, b.permute({1, 0, 2}).clone().permute({1, 0, 2}), b.transpose().clone().transpose(),
                         b.permute({2, 1, 0}).clone().permute({2, 1, 0}),
                         b.permute({2, 0, 1}).clone().permute({1, 2, 0})};
    for (const Tensor& u : as) {
      for (const Tensor& v : bs) {
        REQUIRE(same_bits(u, a));
        REQUIRE(same_bits(v, b));
        CHECK(close(bmm(u, v).value(), right, tolerance(dtype)));
      }
    }
    Tensor one = a.slice(0, 0, 1);
    CHECK(close(bmm(one.expand({4, 3, 5}), b).value(), matmul(one, b).value(), tolerance(dtype)));
    CHECK(close(matmul(a.select(0, 0), b).value(), matmul(one, b).value(), tolerance(dtype)));
    // Stepped, and the innermost axis repeated.
    CHECK(close(bmm(a.slice(0, 0, 4, 2), b.slice(0, 0, 4, 2)).value(), right.slice(0, 0, 4, 2), tolerance(dtype)));
    Tensor flat = a.slice(2, 0, 1).expand({4, 3, 5});
    CHECK(close(bmm(flat, b).value(), bmm(flat.clone(), b).value(), tolerance(dtype)));
    CHECK(close(linear(a.permute({1, 0, 2}), b.select(0, 1).transpose()).value(),
                matmul(a.permute({1, 0, 2}).clone(), b.select(0, 1)).value(), tolerance(dtype)));
  }
}

TEST_CASE("gemm adds to what is there or ignores it") {
  const double a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 0, 0, 1, 1, 1};
  double c[] = {10, 20, 30, 40};
  blas::gemm<double>({a, 2, 3, 3, 1}, {b, 3, 2, 2, 1}, 1.0, c);
  CHECK(std::vector<double>(c, c + 4) == std::vector<double>{14, 25, 40, 51});
  std::fill_n(c, 4, not_a_number);
  blas::gemm<double>({a, 2, 3, 3, 1}, {b, 3, 2, 2, 1}, 0.0, c);
  CHECK(std::vector<double>(c, c + 4) == std::vector<double>{4, 5, 10, 11});
  blas::gemm<double>({a, 2, 0, 0, 1}, {b, 0, 2, 2, 1}, 1.0, c);  // an empty sum is added
  CHECK(c[3] == 11);
  blas::gemm<double>({a, 2, 0, 0, 1}, {b, 0, 2, 2, 1}, 0.0, c);
  CHECK(std::vector<double>(c, c + 4) == std::vector<double>(4, 0));
}

TEST_CASE("the library runs on one thread and says so") {
  CHECK(says(blas::description(), {", 1 thread"}));
  CHECK(blas::description().find("1 threads") == std::string::npos);
}

TEST_CASE("the same step twenty times gives the same bits") {
  for (DType dtype : {F32, F64}) {
    Tensor x = normal({64, 48}, dtype, 1), target = normal({64, 40}, dtype, 2);
    Parameter w1(normal({96, 48}, dtype, 3)), b1(normal({96}, dtype, 4)), w2(normal({40, 96}, dtype, 5));
    auto step = [&] {
      Tape tape;
      Var error = linear(tanh(linear(x, w1, b1)), w2) - target;
      return tape.backward(mean(error * error));
    };
    Gradients first = step();
    for (int run = 1; run < 20; ++run) {
      Gradients again = step();
      CHECK(same_bits(again[w1], first[w1]));
      CHECK(same_bits(again[b1], first[b1]));
      CHECK(same_bits(again[w2], first[w2]));
    }
  }
}

TEST_CASE("products on two threads at once equal those of one") {
  for (DType dtype : {F32, F64}) {
    std::vector<std::pair<Tensor, Tensor>> inputs;
    std::vector<Tensor> serial;
    for (uint64_t i = 0; i < 12; ++i) {
      int64_t m = 1 + static_cast<int64_t>(i) * 17, k = 200 - static_cast<int64_t>(i) * 13;
      inputs.emplace_back(normal({m, k}, dtype, i), normal({k, 90}, dtype, 100 + i));
      serial.push_back(matmul(inputs.back().first, inputs.back().second).value());
    }
    for (int round = 0; round < 10; ++round) {
      std::vector<Tensor> results[2];
      auto work = [&](std::vector<Tensor>& out) {
        for (const auto& [a, b] : inputs) out.push_back(matmul(a, b).value());
      };
      std::thread other([&] { work(results[1]); });
      work(results[0]);
      other.join();
      for (const std::vector<Tensor>& result : results) {
        for (size_t i = 0; i < serial.size(); ++i) CHECK(same_bits(result[i], serial[i]));
      }
    }
  }
}

TEST_CASE("our own product at sizes around its blocks and any strides and added to what is there") {
  Rng rng(5);
  for (DType dtype : {F32, F64}) {
    for (int64_t inner : {1, 7, 16, 130, 256, 257, 515}) {
      for (int64_t m : {1, 2, 3, 5, 6, 8, 13, 21}) {
        for (int64_t n : {1, 4, 8, 31, 32, 33, 50}) {
          const Tensor a = random({m, inner}, dtype, rng), b = random({inner, n}, dtype, rng);
          const Tensor expected = naive_product(a, b);
          for (const Tensor& left : {a, a.transpose().clone().transpose()}) {
            for (const Tensor& right : {b, b.transpose().clone().transpose()}) {
              Tensor fresh = Tensor::full({m, n}, not_a_number, dtype), added = expected.clone();
              dispatch_floating("product", dtype, [&]<class T> {
                auto matrix = [](const Tensor& x) {
                  return blas::Matrix<T>{x.data<T>(), x.size(0), x.size(1), x.strides()[0], x.strides()[1]};
                };
                blas::small_product<T>(matrix(left), matrix(right), T{0}, fresh.mutable_data<T>(), n);
                blas::small_product<T>(matrix(left), matrix(right), T{-1}, added.mutable_data<T>(), n);
              });
              const bool right_values = close(fresh, expected, 10 * tolerance(dtype));
              const bool cancels = close(added, Tensor::zeros({m, n}, dtype), 100 * tolerance(dtype));
              CHECK_MESSAGE((right_values && cancels), m << " x " << inner << " x " << n);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("few rows against a weight: a row alone has the bits of the row among others") {
  Rng rng(6);
  for (DType dtype : {F32, F64}) {
    const Tensor x = random({20, 300}, dtype, rng), weight = random({45, 300}, dtype, rng);
    const Tensor all = matmul(x, weight.transpose()).value();
    for (int64_t rows : {1, 2, 3, 5, 8}) {
      for (int64_t first : {0, 7, 12}) {
        const Tensor some = matmul(x.slice(0, first, first + rows), weight.transpose()).value();
        CHECK(same_bits(some, all.slice(0, first, first + rows)));
      }
    }
  }
}
}
