// Tensors: making, viewing, writing in place, converting, printing, and sums that keep their digits.
#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/reduce.h>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

using Ints = std::vector<int64_t>;

Ints ints(const Tensor& x) { return x.to_vector<int64_t>(); }

// Python's range(start, stop, step) after slicing 0 ... n - 1.
Ints python_slice(int64_t n, int64_t start, int64_t stop, int64_t step) {
  Ints result;
  for (int64_t i = 0; i < n; ++i) {
    int64_t first = start < 0 ? std::max<int64_t>(start + n, 0) : start;
    int64_t last = stop < 0 ? stop + n : stop;
    if (i >= first && i < last && (i - first) % step == 0) result.push_back(i);
  }
  return result;
}

}  // namespace

TEST_SUITE("tensor") {
TEST_CASE("factories fill every element of every dtype") {
  for (DType dtype : {DType::f32, DType::f64, DType::i64, DType::boolean}) {
    CHECK(values(Tensor::zeros({2, 3}, dtype)) == std::vector<double>(6, 0));
    CHECK(values(Tensor::ones({2, 3}, dtype)) == std::vector<double>(6, 1));
    CHECK(Tensor::empty({2, 3}, dtype).dtype() == dtype);
    CHECK(Tensor::empty({2, 3}, dtype).strides() == Shape{3, 1});
  }
  CHECK(values(Tensor::full({2}, -1.5)) == std::vector<double>{-1.5, -1.5});
  CHECK(Tensor::full({2}, 3).dtype() == DType::f32);
  CHECK(values(Tensor::full({2}, 3, DType::boolean)) == std::vector<double>{1, 1});
  CHECK(ints(Tensor::arange(4)) == Ints{0, 1, 2, 3});
  CHECK(Tensor::arange(3, DType::f32).to_vector<float>() == std::vector<float>{0, 1, 2});
  CHECK(Tensor::arange(0).shape() == Shape{0});
  CHECK(says(error_of([] { Tensor::arange(-1); }), {"arange", "-1"}));
  CHECK(says(error_of([] { Tensor::zeros({2, -3}); }), {"negative extent", "(2, -3)"}));
  CHECK(says(error_of([] { Tensor::zeros({int64_t{1} << 40, int64_t{1} << 40}); }), {"too many elements"}));
  CHECK(says(error_of([] { Tensor::empty({int64_t{1} << 48}, DType::f64); }), {"allocate", "bytes"}));
  CHECK(says(error_of([] { Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}; }), {"at most 8 axes"}));
}

TEST_CASE("from copies row by row and counts") {
  std::vector<double> numbers{1, 2, 3, 4, 5, 6};
  Tensor x = Tensor::from(numbers, {2, 3});
  numbers[0] = 9;
  CHECK(x.at({0, 0}) == 1);
  CHECK(x.at({1, 0}) == 4);
  CHECK(says(error_of([&] { Tensor::from(numbers, {2, 2}); }), {"from", "(2, 2)", "4 elements", "6 values"}));
  CHECK(Tensor::from(std::vector<float>{}, {0, 3}).numel() == 0);
  bool flags[] = {true, false};
  CHECK(Tensor::from(std::span<const bool>(flags), {2}).to_vector<bool>() == std::vector<bool>{true, false});
}

TEST_CASE("literals infer their dtype and shape") {
  CHECK(tensor({1, 2, 3}).dtype() == DType::i64);
  CHECK(tensor({true, false}).dtype() == DType::boolean);
  CHECK(tensor({1.0, 2.0}).dtype() == DType::f32);
  CHECK(tensor({1, 2.5}).dtype() == DType::f32);  // one floating number is enough
  CHECK(tensor({true, 2}).dtype() == DType::i64);
  CHECK(tensor({1, 2}, DType::f64).dtype() == DType::f64);
  CHECK(tensor(5).shape() == Shape{});
  CHECK(tensor(5).dtype() == DType::i64);
  CHECK(tensor({7}).shape() == Shape{1});
  CHECK(tensor({{7}}).shape() == Shape{1, 1});
  CHECK(tensor({{{1, 2}, {3, 4}, {5, 6}}}).shape() == Shape{1, 3, 2});
  CHECK(ints(tensor({{{1, 2}, {3, 4}, {5, 6}}})) == Ints{1, 2, 3, 4, 5, 6});
  CHECK(tensor({}).shape() == Shape{0});
  CHECK(tensor({}).dtype() == DType::f32);
  CHECK(tensor({9007199254740993, 1}).to_vector<int64_t>()[0] == 9007199254740993);  // no detour over double
}

TEST_CASE("ragged literals are an error with both shapes") {
  CHECK(says(error_of([] { tensor({{1, 2}, {3}}); }), {"equal shapes", "(2,)", "(1,)"}));
  CHECK(says(error_of([] { tensor({{1, 2}, 3}); }), {"equal shapes", "(2,)", "()"}));
  CHECK(says(error_of([] { tensor({{{1}, {2}}, {{3, 4}, {5, 6}}}); }), {"(2, 1)", "(2, 2)"}));
}

TEST_CASE("a fractional number does not enter an i64 tensor") {
  CHECK(says(error_of([] { tensor({1, 2.5}, DType::i64); }), {"2.5", "i64", ".to(DType::f64)"}));
  CHECK(says(error_of([] { Tensor::full({2}, 0.5, DType::i64); }), {"0.5", "i64"}));
  Tensor x = tensor({1, 2});
  CHECK(says(error_of([&] { x.set({0}, 1.5); }), {"set", "1.5"}));
  CHECK(says(error_of([&] { x.add_(0.25); }), {"add_", "0.25"}));
  CHECK(says(error_of([&] { x.add_(x, 0.5); }), {"add_", "0.5"}));
  CHECK(says(error_of([&] { x.mul_(not_a_number); }), {"nan"}));
  CHECK(says(error_of([&] { x.fill_(1e300); }), {"i64"}));
  CHECK(ints(x) == Ints{1, 2});
  x.fill_(4.0);  // a whole number may be written as 4.0
  CHECK(ints(x) == Ints{4, 4});
}

TEST_CASE("elements are read and set by index") {
  Tensor x = range({2, 3}, DType::i64);
  CHECK(x.at({1, 2}) == 5);
  CHECK(x.at({-1, -3}) == 3);
  x.set({0, -1}, 20);
  CHECK(ints(x) == Ints{0, 1, 20, 3, 4, 5});
  CHECK(x.transpose().at({2, 0}) == 20);
  CHECK(says(error_of([&] { x.at({2, 0}); }), {"at", "index 2", "axis 0", "(2, 3)"}));
  CHECK(says(error_of([&] { x.at({0, -4}); }), {"at", "index -4", "axis 1"}));
  CHECK(says(error_of([&] { x.at({0}); }), {"at", "1 indices", "(2, 3)"}));
  CHECK(says(error_of([&] { x.set({0, 3}, 1); }), {"set", "index 3"}));
  CHECK(tensor(2.5).at({}) == 2.5);
  CHECK(tensor({{2.5}}).item() == 2.5);
  CHECK(tensor(true).item() == 1);
  CHECK(says(error_of([&] { x.item(); }), {"item", "(2, 3)"}));
  CHECK(says(error_of([&] { Tensor::zeros({0}).item(); }), {"item", "(0,)"}));
  CHECK(says(error_of([&] { x.data<float>(); }), {"f32", "i64"}));
  CHECK(says(error_of([&] { x.mutable_data<double>(); }), {"f64", "i64"}));
  CHECK(says(error_of([&] { x.to_vector<float>(); }), {"f32", "i64"}));
}

TEST_CASE("an undefined tensor says so") {
  Tensor x;
  CHECK_FALSE(x.defined());
  CHECK(to_string(x) == "undefined");
  CHECK_THROWS_AS(x.shape(), Error);
  CHECK_THROWS_AS(x.item(), Error);
  CHECK_THROWS_AS(x.clone(), Error);
  CHECK_THROWS_AS(x.fill_(1), Error);
  CHECK_THROWS_AS(x.data<float>(), Error);
}

TEST_CASE("transpose and permute are views") {
  Tensor x = range({2, 3, 4}, DType::i64);
  Tensor t = x.transpose();
  CHECK(t.shape() == Shape{2, 4, 3});
  CHECK(t.strides() == Shape{12, 1, 4});
  CHECK(t.shares_storage(x));
  CHECK_FALSE(t.is_contiguous());
  CHECK(t.at({1, 3, 2}) == x.at({1, 2, 3}));
  CHECK(x.transpose(0, -1).at({3, 1, 0}) == x.at({0, 1, 3}));
  CHECK(x.transpose(1, 1).strides() == x.strides());
  Tensor p = x.permute({2, 0, 1});
  CHECK(p.shape() == Shape{4, 2, 3});
  CHECK(p.at({3, 1, 2}) == x.at({1, 2, 3}));
  CHECK(p.shares_storage(x));
  CHECK(x.permute({-1, -3, -2}).strides() == p.strides());
  CHECK(tensor(1.0).permute({}).shape() == Shape{});
  CHECK(says(error_of([&] { x.transpose(0, 3); }), {"transpose", "axis 3", "rank 3"}));
  CHECK(says(error_of([&] { tensor(1.0).transpose(); }), {"transpose", "rank 0"}));
  CHECK(says(error_of([&] { tensor({1.0}).transpose(); }), {"transpose", "rank 1"}));
  CHECK(says(error_of([&] { x.permute({0, 1}); }), {"permute", "2 axes", "(2, 3, 4)"}));
  CHECK(says(error_of([&] { x.permute({0, 1, -2}); }), {"permute", "twice"}));
}

TEST_CASE("expand repeats without copying") {
  Tensor x = tensor({{1}, {2}});
  Tensor e = x.expand({3, 2, 2});
  CHECK(e.shape() == Shape{3, 2, 2});
  CHECK(e.strides() == Shape{0, 1, 0});
  CHECK(ints(e) == Ints{1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2});
  CHECK(e.shares_storage(x));
  CHECK(e.overlaps_itself());
  CHECK(x.expand({2, 0}).numel() == 0);
  CHECK(ints(tensor(4).expand({2, 2})) == Ints{4, 4, 4, 4});
  CHECK(x.expand({2, 1}).is_contiguous());
  CHECK(says(error_of([&] { x.expand({3, 2}); }), {"expand", "(2, 1)", "(3, 2)"}));
  CHECK(says(error_of([&] { x.expand({2}); }), {"expand", "(2, 1)", "(2,)"}));
  CHECK(says(error_of([&] { x.expand({2, -1}); }), {"expand", "(2, -1)"}));
  CHECK_THROWS_AS(x.expand({0, 1}), Error);  // only extent 1 is repeated
}

TEST_CASE("unsqueeze and squeeze add and drop axes of extent 1") {
  Tensor x = range({2, 3}, DType::i64);
  CHECK(x.unsqueeze(0).shape() == Shape{1, 2, 3});
  CHECK(x.unsqueeze(2).shape() == Shape{2, 3, 1});
  CHECK(x.unsqueeze(-1).shape() == Shape{2, 3, 1});
  CHECK(x.unsqueeze(-3).shape() == Shape{1, 2, 3});
  CHECK(x.transpose().unsqueeze(1).squeeze(1).strides() == x.transpose().strides());
  CHECK(x.unsqueeze(1).shares_storage(x));
  CHECK(tensor(1).unsqueeze(0).shape() == Shape{1});
  CHECK(tensor({1}).squeeze(0).shape() == Shape{});
  CHECK(says(error_of([&] { x.unsqueeze(3); }), {"unsqueeze", "axis 3"}));
  CHECK(says(error_of([&] { x.squeeze(0); }), {"squeeze", "(2, 3)", "extent 2"}));
  CHECK(says(error_of([&] { tensor(1).squeeze(0); }), {"squeeze", "rank 0"}));
  CHECK_THROWS_AS(Tensor::zeros({1, 1, 1, 1, 1, 1, 1, 1}).unsqueeze(0), Error);
}

TEST_CASE("slice follows Python's rules") {
  constexpr int64_t n = 5;
  Tensor x = Tensor::arange(n);
  for (int64_t start = -7; start <= 7; ++start) {
    for (int64_t stop = -7; stop <= 7; ++stop) {
      for (int64_t step : {1, 2, 3, 9}) {
        CAPTURE(start);
        CAPTURE(stop);
        CAPTURE(step);
        CHECK(ints(x.slice(0, start, stop, step)) == python_slice(n, start, stop, step));
      }
    }
  }
  constexpr int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  CHECK(ints(x.slice(0, least, most, most)) == Ints{0});
  CHECK(ints(x.slice(0, 1, most)) == Ints{1, 2, 3, 4});
  Tensor m = range({3, 4}, DType::i64);
  Tensor s = m.slice(1, 1, 4, 2);
  CHECK(s.strides() == Shape{4, 2});
  CHECK(ints(s) == Ints{1, 3, 5, 7, 9, 11});
  CHECK(s.shares_storage(m));
  CHECK(ints(m.slice(-2, -1, 9)) == Ints{8, 9, 10, 11});
  CHECK(ints(m.transpose().slice(0, 2, 4).slice(1, 0, 3, 2)) == Ints{2, 10, 3, 11});
  CHECK(m.slice(0, 3, 3).shape() == Shape{0, 4});
  CHECK(Tensor::zeros({0, 2}).slice(0, 0, 5, 2).shape() == Shape{0, 2});
  CHECK(says(error_of([&] { m.slice(0, 0, 2, 0); }), {"slice", "step >= 1", "0"}));
  CHECK(says(error_of([&] { m.slice(0, 2, 0, -1); }), {"slice", "step >= 1", "-1"}));
  CHECK(says(error_of([&] { m.slice(2, 0, 1); }), {"slice", "axis 2"}));
  CHECK(says(error_of([&] { tensor(1).slice(0, 0, 1); }), {"slice", "rank 0"}));
}

TEST_CASE("select drops its axis") {
  Tensor x = range({2, 3}, DType::i64);
  CHECK(ints(x.select(0, 1)) == Ints{3, 4, 5});
  CHECK(ints(x.select(1, -1)) == Ints{2, 5});
  CHECK(x.select(1, 0).select(0, 1).shape() == Shape{});
  CHECK(x.select(1, 0).select(0, 1).item() == 3);
  CHECK(x.select(0, 0).shares_storage(x));
  CHECK(says(error_of([&] { x.select(0, 2); }), {"select", "index 2", "axis 0", "(2, 3)"}));
  CHECK(says(error_of([&] { x.select(1, -4); }), {"select", "index -4"}));
  CHECK(says(error_of([&] { Tensor::zeros({0, 2}).select(0, 0); }), {"select", "index 0", "(0, 2)"}));
}

TEST_CASE("reshape is a view where strides allow and else a copy") {
  Tensor x = range({2, 3, 4}, DType::i64);
  struct Case {
    Tensor from;
    Shape to;
    bool view;
  };
  const Case cases[] = {
      {x, {24}, true},
      {x, {4, 3, 2}, true},
      {x, {2, -1}, true},
      {x, {-1}, true},
      {x, {1, 2, 1, 12, 1}, true},
      {x.transpose(), {24}, false},
      {x.transpose(), {2, 12}, false},
      {x.transpose(), {2, 4, 3, 1}, true},
      {x.transpose(), {2, 2, 2, 3}, true},
      {x.transpose(0, 1), {3, 2, 2, 2}, true},
      {x.transpose(0, 1), {6, 4}, false},
      {x.slice(2, 0, 4, 2), {2, 6}, true},
      {x.slice(2, 0, 4, 2), {12}, true},
      {x.slice(2, 0, 3), {2, 9}, false},
      {x.slice(2, 0, 3), {6, 3}, true},
      {x.slice(1, 0, 2), {4, 4}, false},
      {x.slice(1, 0, 2), {2, 8}, true},
      {x.slice(1, 0, 3, 2), {2, 2, 2, 2}, true},
      {x.select(2, 1), {6}, true},
      {x.select(1, 1), {8}, false},
      {x.select(0, 1).transpose(), {12}, false},
      {x.slice(0, 0, 1).expand({5, 3, 4}), {5, 12}, true},
      {x.slice(0, 0, 1).expand({5, 3, 4}), {15, 4}, false},
      {tensor({7}).expand({6}), {2, 3}, true},
      {tensor({7}).expand({2, 3}), {6}, true},
      {tensor(7), {1, 1}, true},
      {tensor({{7}}), {}, true},
      {tensor({{7}}), {-1}, true},
  };
  for (const Case& c : cases) {
    Tensor y = c.from.reshape(c.to);
    INFO(to_string(c.from.shape()) << to_string(c.from.strides()) << " as " << to_string(c.to));
    CHECK(ints(y) == ints(c.from));
    CHECK(y.shares_storage(c.from) == c.view);
  }
  CHECK(x.reshape({2, -1}).shape() == Shape{2, 12});
  CHECK(Tensor::zeros({2, 0}).reshape({0, 5}).shape() == Shape{0, 5});
  CHECK(Tensor::zeros({0, 3}).reshape({-1, 3}).shape() == Shape{0, 3});
  CHECK(Tensor::zeros({3, 0}).transpose().slice(1, 0, 3, 2).reshape({4, 0}).shape() == Shape{4, 0});
  CHECK(says(error_of([&] { x.reshape({5, 5}); }), {"reshape", "(2, 3, 4)", "24", "(5, 5)", "25"}));
  CHECK(says(error_of([&] { x.reshape({-1, 5}); }), {"reshape", "(2, 3, 4)", "(-1, 5)"}));
  CHECK(says(error_of([&] { x.reshape({-1, -1}); }), {"reshape", "(-1, -1)"}));
  CHECK(says(error_of([&] { x.reshape({-2, 12}); }), {"reshape", "(-2, 12)"}));
  CHECK(says(error_of([&] { Tensor::zeros({0}).reshape({-1, 0}); }), {"reshape", "(-1, 0)"}));
  // A product that overflows to 0 is not the number of elements of an empty tensor.
  CHECK(says(error_of([&] { Tensor::zeros({0}).reshape({int64_t{1} << 32, int64_t{1} << 32}); }), {"reshape"}));
  CHECK(says(error_of([&] { x.reshape({int64_t{1} << 62, -1, 8}); }), {"reshape"}));
}

TEST_CASE("rank 0 has one element and goes everywhere") {
  Tensor x = f64(2);
  CHECK(x.rank() == 0);
  CHECK(x.numel() == 1);
  CHECK(x.is_contiguous());
  CHECK_FALSE(x.overlaps_itself());
  CHECK(x.clone().item() == 2);
  CHECK(x.to(DType::i64).item() == 2);
  CHECK(x.reshape({1, 1}).shape() == Shape{1, 1});
  CHECK(x.expand({}).item() == 2);
  Tensor y = x.clone();
  CHECK(y.add_(x).mul_(3).add_(1).item() == 13);
  CHECK(y.copy_(x).item() == 2);
  CHECK(sum(x).item() == 2);
  CHECK(mean(x).item() == 2);
  CHECK(max(x).item() == 2);
  CHECK(says(error_of([&] { sum(x, 0); }), {"sum", "axis 0", "rank 0"}));
  CHECK(says(error_of([&] { x.size(0); }), {"size", "rank 0"}));
}

TEST_CASE("size 0 is legal") {
  Tensor x = Tensor::empty({2, 0, 3}, DType::f32);
  CHECK(x.numel() == 0);
  CHECK(x.is_contiguous());
  CHECK(x.to_vector<float>().empty());
  CHECK(x.clone().shape() == x.shape());
  CHECK(x.transpose().contiguous().shape() == Shape{2, 3, 0});
  CHECK(x.transpose(0, 1).to(DType::i64).shape() == Shape{0, 2, 3});
  CHECK(x.expand({4, 2, 0, 3}).numel() == 0);
  CHECK_FALSE(x.expand({4, 2, 0, 3}).overlaps_itself());
  x.fill_(1).add_(2).mul_(x).copy_(Tensor::zeros({1, 3}));
  x.expand({4, 2, 0, 3}).fill_(1);  // nothing is written, so nothing is shared
  CHECK(values(sum(x, 1).value()) == std::vector<double>(6, 0));
  CHECK(sum(x).item() == 0);
  CHECK(says(error_of([&] { mean(x); }), {"mean", "(2, 0, 3)"}));
  CHECK(says(error_of([&] { max(x, 1); }), {"max", "(2, 0, 3)"}));
  CHECK(max(x, 0).shape() == Shape{0, 3});
}

TEST_CASE("handles share and clones do not") {
  Tensor x = f64({1, 2, 3});
  Tensor y = x, z = x.clone(), w = x.slice(0, 1, 3);
  CHECK_FALSE(x.unique());
  x.set({1}, 20);
  CHECK(y.at({1}) == 20);
  CHECK(w.at({0}) == 20);
  CHECK(z.at({1}) == 2);
  CHECK(x.shares_storage(w));
  CHECK_FALSE(x.shares_storage(z));
  CHECK(z.unique());
  CHECK(x.contiguous().shares_storage(x));
  CHECK(x.to(DType::f64).shares_storage(x));
  CHECK_FALSE(x.to(DType::f32).shares_storage(x));
  Tensor moved = std::move(z);
  CHECK(moved.unique());
  CHECK_FALSE(z.defined());
  moved = *&moved;
  CHECK(moved.at({0}) == 1);
  Tensor only = f64({1, 2}).slice(0, 0, 1);  // the whole that it was cut from is gone
  CHECK(only.unique());
}

TEST_CASE("every in-place write counts in the version that views share") {
  Tensor x = f64({{1, 2}, {3, 4}}), view = x.transpose(), other = x.clone();
  uint32_t version = x.version();
  auto grown = [&] { return std::exchange(version, x.version()) < x.version() && view.version() == x.version(); };
  x.fill_(1);
  CHECK(grown());
  view.add_(1);
  CHECK(grown());
  x.add_(other);
  CHECK(grown());
  x.mul_(2);
  CHECK(grown());
  x.mul_(other);
  CHECK(grown());
  x.select(0, 0).copy_(f64({5, 6}));
  CHECK(grown());
  x.set({0, 0}, 1);
  CHECK(grown());
  x.mutable_data<double>();
  CHECK(grown());
  uint32_t clean = other.version();
  other.clone(), other.contiguous(), other.to(DType::f32), other.reshape({4}), other.at({0, 0}), other.data<double>();
  CHECK(other.version() == clean);
}

TEST_CASE("a write through an expanded tensor throws and changes nothing") {
  Tensor two = f64({2});
  Tensor three = two.expand({1, 3});
  CHECK(says(error_of([&] { three.mul_(2); }), {"share memory", "(1, 3)", "clone()"}));
  CHECK(two.item() == 2);
  Tensor x = f64({0});
  Tensor four = x.expand({4});
  CHECK(says(error_of([&] { four.add_(f64({1, 2, 3, 4})); }), {"share memory", "clone()"}));
  CHECK_THROWS_AS(four.fill_(1), Error);
  CHECK_THROWS_AS(four.copy_(f64({1, 2, 3, 4})), Error);
  CHECK_THROWS_AS(four.set({0}, 1), Error);
  CHECK_THROWS_AS(four.mutable_data<double>(), Error);
  CHECK_THROWS_AS(four.reshape({2, 2}).fill_(1), Error);
  CHECK_THROWS_AS(four.unsqueeze(0).transpose().fill_(1), Error);
  CHECK(x.item() == 0);
  CHECK(values(four.clone().add_(f64({1, 2, 3, 4}))) == std::vector<double>{1, 2, 3, 4});
  x.expand({1, 1, 1}).fill_(7);  // repeated once: no two elements share memory
  CHECK(x.item() == 7);
  four.select(0, 2).fill_(8);
  CHECK(x.item() == 8);
}

TEST_CASE("overlap is where an axis of stride 0 is longer than 1") {
  CHECK_FALSE(range({2, 3}).transpose().overlaps_itself());
  CHECK_FALSE(range({1, 3}).expand({1, 3}).overlaps_itself());
  CHECK(range({1, 3}).expand({2, 3}).overlaps_itself());
  CHECK(range({1, 3}).expand({2, 3}).transpose().slice(0, 0, 1).overlaps_itself());
  CHECK_FALSE(range({1, 3}).expand({2, 3}).slice(0, 0, 1).overlaps_itself());
  CHECK_FALSE(range({1, 3}).expand({2, 3}).slice(1, 0, 0).overlaps_itself());
}

TEST_CASE("in-place ops work on every layout") {
  Tensor x = range({2, 3});
  x.transpose().add_(f64({{10, 20}}));  // broadcasts
  CHECK(values(x) == std::vector<double>{10, 11, 12, 23, 24, 25});
  x.slice(1, 0, 3, 2).mul_(f64({{1}, {-1}}));
  CHECK(values(x) == std::vector<double>{10, 11, 12, -23, 24, -25});
  x.select(1, 1).fill_(0);
  CHECK(values(x) == std::vector<double>{10, 0, 12, -23, 0, -25});
  x.copy_(f64(1)).add_(f64({1, 2, 3}), 2);
  CHECK(values(x) == std::vector<double>{3, 5, 7, 3, 5, 7});
  Tensor n = tensor({1, 2, 3});
  n.add_(tensor(1), -3).mul_(2);
  CHECK(ints(n) == Ints{-4, -2, 0});
  Tensor b = tensor({true, false});
  b.copy_(tensor({false, true}));
  CHECK(b.to_vector<bool>() == std::vector<bool>{false, true});
  CHECK(says(error_of([&] { b.add_(b); }), {"add_", "boolean"}));
  CHECK(says(error_of([&] { x.add_(n); }), {"add_", "f64", "i64"}));
  CHECK(says(error_of([&] { x.copy_(f64({1, 2})); }), {"copy_", "(2,)", "(2, 3)"}));
  CHECK(says(error_of([&] { x.mul_(Tensor::zeros({1, 2, 3}, DType::f64)); }), {"mul_", "(1, 2, 3)", "(2, 3)"}));
}

TEST_CASE("in-place ops read what was there before they wrote") {
  auto square = [] { return f64({{1, 2}, {3, 4}}); };
  Tensor x = square();
  CHECK(values(x.add_(x.transpose())) == std::vector<double>{2, 5, 5, 8});
  x = square();
  CHECK(values(x.mul_(x.transpose())) == std::vector<double>{1, 6, 6, 16});
  x = square();
  CHECK(values(x.copy_(x.transpose())) == std::vector<double>{1, 3, 2, 4});
  x = square();
  CHECK(values(x.add_(x.select(0, 0))) == std::vector<double>{2, 4, 4, 6});  // a row is added to itself first
  x = square();
  CHECK(values(x.mul_(x.select(1, 1).unsqueeze(1))) == std::vector<double>{2, 4, 12, 16});
  x = square();
  CHECK(values(x.add_(x.select(0, 0).select(0, 0))) == std::vector<double>{2, 3, 4, 5});
  x = square();
  CHECK(values(x.add_(x).mul_(x)) == std::vector<double>{4, 16, 36, 64});
  for (int64_t n : {4, 37}) {  // neighbours, in both directions
    Tensor ones = Tensor::ones({n}, DType::f64);
    ones.slice(0, 1, n).add_(ones.slice(0, 0, n - 1));
    CHECK(sum(ones).item() == 2 * static_cast<double>(n) - 1);
    Tensor r = range({n});
    r.slice(0, 1, n).copy_(r.slice(0, 0, n - 1));
    CHECK(r.at({n - 1}) == static_cast<double>(n) - 2);
    CHECK(r.at({1}) == 0);
    r = range({n});
    r.slice(0, 0, n - 1).mul_(r.slice(0, 1, n));
    CHECK(r.at({1}) == 2);
    CHECK(r.at({n - 2}) == static_cast<double>((n - 2) * (n - 1)));
  }
}

TEST_CASE("conversions between all dtypes on every layout") {
  Tensor x = f64({{0, 1.75}, {-2.5, 300}}).transpose();
  CHECK(x.to(DType::f32).to_vector<float>() == std::vector<float>{0, -2.5, 1.75, 300});
  CHECK(ints(x.to(DType::i64)) == Ints{0, -2, 1, 300});  // towards 0
  CHECK(x.to(DType::boolean).to_vector<bool>() == std::vector<bool>{false, true, true, true});
  CHECK(values(f64({not_a_number, 0.25}).to(DType::boolean)) == std::vector<double>{1, 1});
  CHECK(tensor({true, false}).to(DType::f32).to_vector<float>() == std::vector<float>{1, 0});
  CHECK(ints(tensor({true, false}).to(DType::i64)) == Ints{1, 0});
  CHECK(tensor({16777217}).to(DType::f32).item() == 16777216);
  CHECK(f64({1e300}).to(DType::f32).item() == inf);
  CHECK(std::isnan(f64({not_a_number}).to(DType::f32).item()));
  CHECK(ints(tensor({5}).expand({3}).to(DType::i64)) == Ints{5, 5, 5});
}

TEST_CASE("tensors print as NumPy prints them") {
  CHECK(to_string(f64(1.5)) == "1.5");
  CHECK(to_string(f32(0.1)) == "0.1");
  CHECK(to_string(f64(-2)) == "-2.0");
  CHECK(to_string(f64(1e16)) == "1e+16");
  CHECK(to_string(f32(0.00001)) == "1e-05");
  CHECK(to_string(f64(1.0 / 3)) == "0.3333333333333333");
  CHECK(to_string(f32(67108872)) == "67108870.0");
  CHECK(to_string(tensor(7)) == "7");
  CHECK(to_string(tensor(true)) == "True");
  CHECK(to_string(f64(not_a_number)) == "nan");
  CHECK(to_string(f32(-inf)) == "-inf");

  CHECK(to_string(f32({1, 2.5, -3})) == "[ 1.   2.5 -3. ]");
  CHECK(to_string(f64({0.1, 0.25, 100})) == "[  0.1    0.25 100.  ]");
  CHECK(to_string(f32({0.1, 0.2, 1.0 / 3})) == "[0.1        0.2        0.33333334]");
  CHECK(to_string(f64({0.1, 0.2, 1.0 / 3})) == "[0.1        0.2        0.33333333]");
  CHECK(to_string(f64({-0.0, 0})) == "[-0.  0.]");
  CHECK(to_string(f64({not_a_number, 1, inf, -inf})) == "[ nan   1.  inf -inf]");
  CHECK(to_string(f64({not_a_number, not_a_number})) == "[nan nan]");
  CHECK(to_string(f64({inf, -1.25})) == "[  inf -1.25]");
  CHECK(to_string(f64({0.00001, 1})) == "[1.e-05 1.e+00]");
  CHECK(to_string(f64({0.001, 1.5})) == "[1.0e-03 1.5e+00]");
  CHECK(to_string(f64({0.0011, 1})) == "[0.0011 1.    ]");
  CHECK(to_string(f64({1e8, 1})) == "[1.e+08 1.e+00]");
  CHECK(to_string(f64({12345678, 87654321})) == "[12345678. 87654321.]");
  CHECK(to_string(f64({1e100, 1, -1e-100})) == "[ 1.e+100  1.e+000 -1.e-100]");
  CHECK(to_string(f32({67108872, 500000})) == "[67108872.   500000.]");
  CHECK(to_string(f32({1.00000001e-10, -3.7760501e+02})) == "[ 1.00000e-10 -3.77605e+02]");
  CHECK(to_string(f64({1e-5, not_a_number, -inf})) == "[1.e-05    nan   -inf]");
  CHECK(to_string(f64({1.123456789012, 2})) == "[1.12345679 2.        ]");

  CHECK(to_string(tensor({1, -20, 300})) == "[  1 -20 300]");
  CHECK(to_string(tensor({4611686018427387905, -9223372036854775807})) ==
        "[ 4611686018427387905 -9223372036854775807]");
  CHECK(to_string(tensor({true, false})) == "[ True False]");
  CHECK(to_string(tensor({true, true})) == "[ True  True]");

  CHECK(to_string(f64({{1, 2}, {3, 4.5}})) == "[[1.  2. ]\n [3.  4.5]]");
  CHECK(to_string(tensor({{1, 2, 3}, {40, 50, 60}})) == "[[ 1  2  3]\n [40 50 60]]");
  CHECK(to_string(tensor({{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}})) == "[[[1 2]\n  [3 4]]\n\n [[5 6]\n  [7 8]]]");
  CHECK(to_string(f64({{{1}}, {{2}}})) == "[[[1.]]\n\n [[2.]]]");
  CHECK(to_string(Tensor::arange(8).reshape({1, 2, 2, 2})) == "[[[[0 1]\n   [2 3]]\n\n  [[4 5]\n   [6 7]]]]");
  CHECK(
      to_string(Tensor::arange(16).reshape({2, 2, 2, 2})) ==
      "[[[[ 0  1]\n   [ 2  3]]\n\n  [[ 4  5]\n   [ 6  7]]]\n\n\n [[[ 8  9]\n   [10 11]]\n\n  [[12 13]\n   [14 15]]]]");
  CHECK(to_string(tensor({{1, 2, 3}, {40, 50, 60}}).transpose()) == "[[ 1 40]\n [ 2 50]\n [ 3 60]]");

  CHECK(to_string(Tensor::arange(30)) ==
        "[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23\n 24 25 26 27 28 29]");
  CHECK(to_string(Tensor::arange(30).to(DType::f64)) ==
        "[ 0.  1.  2.  3.  4.  5.  6.  7.  8.  9. 10. 11. 12. 13. 14. 15. 16. 17.\n 18. 19. 20. 21. 22. 23. 24. 25. "
        "26. 27. 28. 29.]");
  CHECK(to_string(Tensor::arange(1001)) == "[   0    1    2 ...  998  999 1000]");
  CHECK(to_string(Tensor::arange(3000).reshape({3, 1000})) ==
        "[[   0    1    2 ...  997  998  999]\n [1000 1001 1002 ... 1997 1998 1999]\n [2000 2001 2002 ... 2997 2998 "
        "2999]]");
  CHECK(to_string(Tensor::arange(2000).reshape({1000, 2})) ==
        "[[   0    1]\n [   2    3]\n [   4    5]\n ...\n [1994 1995]\n [1996 1997]\n [1998 1999]]");
  CHECK(to_string(Tensor::arange(1331).reshape({11, 11, 11})) ==
        "[[[   0    1    2 ...    8    9   10]\n  [  11   12   13 ...   19   20   21]\n  [  22   23   24 ...   30   31 "
        "  32]\n  ...\n  [  88   89   90 ...   96   97   98]\n  [  99  100  101 ...  107  108  109]\n  [ 110  111  112 "
        "...  118  119  120]]\n\n [[ 121  122  123 ...  129  130  131]\n  [ 132  133  134 ...  140  141  142]\n  [ 143 "
        " 144  145 ...  151  152  153]\n  ...\n  [ 209  210  211 ...  217  218  219]\n  [ 220  221  222 ...  228  229  "
        "230]\n  [ 231  232  233 ...  239  240  241]]\n\n [[ 242  243  244 ...  250  251  252]\n  [ 253  254  255 ...  "
        "261  262  263]\n  [ 264  265  266 ...  272  273  274]\n  ...\n  [ 330  331  332 ...  338  339  340]\n  [ 341  "
        "342  343 ...  349  350  351]\n  [ 352  353  354 ...  360  361  362]]\n\n ...\n\n [[ 968  969  970 ...  976  "
        "977  978]\n  [ 979  980  981 ...  987  988  989]\n  [ 990  991  992 ...  998  999 1000]\n  ...\n  [1056 1057 "
        "1058 ... 1064 1065 1066]\n  [1067 1068 1069 ... 1075 1076 1077]\n  [1078 1079 1080 ... 1086 1087 1088]]\n\n "
        "[[1089 1090 1091 ... 1097 1098 1099]\n  [1100 1101 1102 ... 1108 1109 1110]\n  [1111 1112 1113 ... 1119 1120 "
        "1121]\n  ...\n  [1177 1178 1179 ... 1185 1186 1187]\n  [1188 1189 1190 ... 1196 1197 1198]\n  [1199 1200 1201 "
        "... 1207 1208 1209]]\n\n [[1210 1211 1212 ... 1218 1219 1220]\n  [1221 1222 1223 ... 1229 1230 1231]\n  [1232 "
        "1233 1234 ... 1240 1241 1242]\n  ...\n  [1298 1299 1300 ... 1306 1307 1308]\n  [1309 1310 1311 ... 1317 1318 "
        "1319]\n  [1320 1321 1322 ... 1328 1329 1330]]]");
  CHECK(to_string(f64({{1e-9, 1}, {123.456, 7}}).expand({7, 2, 2}).reshape({2, 14})) ==
        "[[1.00000e-09 1.00000e+00 1.23456e+02 7.00000e+00 1.00000e-09 1.00000e+00\n  1.23456e+02 7.00000e+00 "
        "1.00000e-09 1.00000e+00 1.23456e+02 7.00000e+00\n  1.00000e-09 1.00000e+00]\n [1.23456e+02 7.00000e+00 "
        "1.00000e-09 1.00000e+00 1.23456e+02 7.00000e+00\n  1.00000e-09 1.00000e+00 1.23456e+02 7.00000e+00 "
        "1.00000e-09 1.00000e+00\n  1.23456e+02 7.00000e+00]]");

  CHECK(to_string(Tensor::zeros({0})) == "[]");
  CHECK(to_string(Tensor::zeros({2, 0, 3})) == "[]");
}

TEST_CASE("sums of f32 keep their digits on every layout") {
  constexpr int64_t n = 62500;
  const double right = 77160.0008, value = static_cast<double>(1.23456f);
  Tensor x = Tensor::full({n}, 1.23456f);
  CHECK(std::abs(sum(x).item() - right) < 0.01);  // a plain f32 loop gives 77149.2
  CHECK(std::abs(mean(x).item() - value) < 1e-6);
  CHECK(std::abs(sum(Tensor::full({}, 1.23456f).expand({n})).item() - right) < 0.01);
  CHECK(std::abs(sum(Tensor::full({2 * n}, 1.23456f).slice(0, 0, 2 * n, 2)).item() - right) < 0.01);
  const Tensor layouts[] = {
      Tensor::full({n, 2}, 1.23456f),
      Tensor::full({2, n}, 1.23456f).transpose(),
      Tensor::full({n, 1}, 1.23456f).expand({n, 2}),
      Tensor::full({1, 2}, 1.23456f).expand({n, 2}),
      Tensor::full({n, 6}, 1.23456f).slice(1, 0, 6, 3),
      Tensor::full({n, 300}, 1.23456f),
  };
  for (const Tensor& layout : layouts) {
    INFO(to_string(layout.shape()) << " strides " << to_string(layout.strides()));
    for (double v : values(sum(layout, 0).value())) CHECK(std::abs(v - right) < 0.01);
    for (double v : values(mean(layout, 0).value())) CHECK(std::abs(v - value) < 1e-6);
  }
  CHECK(std::abs(sum(layouts[0]).item() - 2 * right) < 0.02);
}

TEST_CASE("twenty million ones add up to twenty million") {
  constexpr int64_t n = 20'000'000;
  CHECK(sum(Tensor::ones({n})).item() == n);  // a plain f32 loop stops at 16777216
  CHECK(mean(Tensor::ones({n})).item() == doctest::Approx(1).epsilon(1e-7));
  Tensor repeated = Tensor::ones({1}).expand({n});
  CHECK(sum(repeated).item() == n);
  CHECK(sum(repeated.unsqueeze(1).expand({n, 2}), 0).value().at({1}) == n);
  CHECK(sum(Tensor::ones({1, 2}).expand({n, 2}), 0).value().at({1}) == n);
}

TEST_CASE("sum and mean and max agree with plain loops over any axes and layouts") {
  Tensor base = normal({3, 4, 5}, DType::f64, 1);
  const Tensor layouts[] = {base,
                            base.transpose(0, 2),
                            base.permute({1, 2, 0}),
                            base.slice(2, 0, 5, 2),
                            base.slice(1, 1, 2).expand({3, 4, 5}),
                            base.select(1, 2).unsqueeze(1)};
  for (const Tensor& x : layouts) {
    for (uint32_t axes = 0; axes < 8; ++axes) {
      std::vector<int64_t> named;
      Shape kept;
      for (int i = 0; i < 3; ++i) axes >> i & 1 ? named.push_back(i - 3) : kept.push_back(x.shape()[i]);
      Tensor total = Tensor::zeros(kept, DType::f64), top = Tensor::full(kept, -inf, DType::f64);
      for (int64_t i = 0; i < x.shape()[0]; ++i) {
        for (int64_t j = 0; j < x.shape()[1]; ++j) {
          for (int64_t k = 0; k < x.shape()[2]; ++k) {
            Tensor t = total, m = top;
            const int64_t index[] = {i, j, k};
            for (int d = 0; d < 3; ++d) {
              if (!(axes >> d & 1)) t = t.select(0, index[d]), m = m.select(0, index[d]);
            }
            t.add_(x.at({i, j, k}));
            m.fill_(std::max(m.item(), x.at({i, j, k})));
          }
        }
      }
      CAPTURE(axes);
      const Dims dims{std::span<const int64_t>(named)};
      const double count = static_cast<double>(x.numel() / total.numel());
      CHECK(close(sum(x, dims).value(), total, 1e-14));
      CHECK(close(mean(x, dims).value(), total.clone().mul_(1 / count), 1e-14));
      CHECK(same_bits(max(x, dims).value(), top));
      CHECK(sum(x, dims, true).rank() == 3);
      CHECK(sum(x, dims, true).numel() == total.numel());
    }
  }
  CHECK(says(error_of([&] { sum(base, {0, -3}); }), {"sum", "twice"}));
  CHECK(says(error_of([&] { sum(base, 3); }), {"sum", "axis 3", "rank 3"}));
}
}
TEST_CASE("numbers that an integer tensor cannot hold are refused") {
  for (double v : {std::nan(""), inf, -inf, 9223372036854775808.0, -1e300}) {
    CHECK(says(error_of([&] { Tensor::full({2}, v, DType::f64).to(DType::i64); }), {"to", "i64"}));
  }
  CHECK(Tensor::full({}, -9223372036854775808.0, DType::f64).to(DType::i64).at({}) == -9223372036854775808.0);
  CHECK(Tensor::full({}, 2.9f).to(DType::i64).item() == 2);
  CHECK(says(error_of([] { Tensor::full({}, ~uint64_t{0}, DType::i64); }), {"18446744073709551615", "i64"}));
}
