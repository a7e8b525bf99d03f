#include <tapedeck/nn/init.h>
#include <tapedeck/nn/module.h>

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "module_audit.h"

using namespace tapedeck;

namespace {

struct Layer {
  Parameter weight, bias;
  explicit Layer(int64_t n, bool with_bias = true, DType dtype = DType::f32)
      : weight(Tensor::full({n, n}, 0.5, dtype)) {
    if (with_bias) bias = Parameter(Tensor::full({n}, 0.25, dtype));
  }
  static void fields(auto& self, auto&& f) { f("weight", self.weight), f("bias", self.bias); }
};

struct Named {
  Parameter a, b;
  Named() : a(Tensor::zeros({2})), b(Tensor::zeros({3})) {}
  static void fields(auto& self, auto&& f) {
    for (auto* p : {&self.a, &self.b}) f(std::string("weight_l") + (p == &self.a ? '0' : '1'), *p);
  }
};

struct Net {
  Layer first{2};
  std::vector<Layer> layers;
  std::optional<Layer> extra;
  std::vector<Parameter> scales;
  std::variant<std::monostate, Layer, Named> choice;
  Named flat;
  int64_t width = 7;  // what is no parameter is not named
  static void fields(auto& self, auto&& f) {
    f("first", self.first), f("layers", self.layers), f("extra", self.extra), f("scales", self.scales);
    f("choice", self.choice), f("", self.flat);
  }
};

struct Tied {
  Layer embed{3, false}, hidden{3}, out{3};
  Tied() { out.weight = embed.weight; }
  static void fields(auto& self, auto&& f) { f("embed", self.embed), f("hidden", self.hidden), f("out", self.out); }
};

struct Forgetful {  // names one field twice and forgets the other: the count is right
  Parameter a{Tensor::zeros({1})}, b{Tensor::zeros({1})};
  static void fields(auto& self, auto&& f) { f("a", self.a), f("b", self.a); }
};

struct Clashing {
  Parameter a{Tensor::zeros({1})}, b{Tensor::zeros({2})};
  static void fields(auto& self, auto&& f) { f("a", self.a), f("a", self.b); }
};

struct Shared {
  Layer layer;
  static void fields(auto& self, auto&& f) { f("layer", self.layer); }
};

std::vector<std::string> names(const std::vector<NamedParameter>& parameters) {
  std::vector<std::string> result;
  for (const auto& p : parameters) result.push_back(p.name);
  return result;
}

using Names = std::vector<std::string>;

}  // namespace

static_assert(Module<Layer> && Module<const Net> && !Module<Tensor> && !Module<int> && !Module<std::vector<Layer>>);

TEST_SUITE("module") {
TEST_CASE("module: paths through submodules and vectors and optionals") {
  Net net;
  CHECK(names(named_parameters(net)) == Names{"first.weight", "first.bias", "weight_l0", "weight_l1"});
  net.layers = {Layer(1), Layer(1, false)};
  net.extra = Layer(1, false);
  net.scales = {Parameter(Tensor::ones({1})), Parameter(), Parameter(Tensor::ones({1}))};
  net.choice = Named();
  CHECK(names(named_parameters(net)) == Names{"first.weight", "first.bias", "layers.0.weight", "layers.0.bias",
                                              "layers.1.weight", "extra.weight", "scales.0", "scales.2",
                                              "choice.weight_l0", "choice.weight_l1", "weight_l0", "weight_l1"});
  net.choice = Layer(1, false);
  CHECK(names(named_parameters(net))[8] == "choice.weight");
  CHECK(named_parameters(net)[0].parameter.id() == net.first.weight.id());
}

TEST_CASE("module: for_each_parameter gives access to what it visits") {
  Net net;
  for_each_parameter(net, [](std::string_view path, Parameter& p) {
    if (path == "first.bias") p = Parameter(Tensor::full({2}, 9));
  });
  CHECK(net.first.bias.value().at({1}) == 9);
  const Net& same = net;
  int visits = 0;
  for_each_parameter(same, [&](std::string_view, const Parameter&) { ++visits; });
  CHECK(visits == 4);
}

TEST_CASE("module: tied parameters are listed once at their first path and counted once") {
  Tied tied;
  CHECK(names(named_parameters(tied)) == Names{"embed.weight", "hidden.weight", "hidden.bias", "out.bias"});
  CHECK(names(all_paths(tied)) == Names{"embed.weight", "hidden.weight", "hidden.bias", "out.weight", "out.bias"});
  CHECK(parameter_count(tied) == 9 + 9 + 3 + 3);
}

TEST_CASE("module: a copy shares its parameters and a clone does not") {
  Tied tied;
  Tied copy = tied, cloned = clone(tied);
  CHECK(copy.embed.weight.id() == tied.embed.weight.id());
  std::set<uint64_t> ids;
  for (const auto& p : all_paths(tied)) ids.insert(p.parameter.id());
  for (const auto& p : all_paths(cloned)) CHECK_FALSE(ids.contains(p.parameter.id()));
  CHECK(cloned.embed.weight.id() == cloned.out.weight.id());
  tied.embed.weight.mutable_value().fill_(7);
  CHECK(copy.out.weight.value().at({0, 0}) == 7);
  CHECK(cloned.out.weight.value().at({0, 0}) == 0.5);
  CHECK(names(all_paths(cloned)) == names(all_paths(tied)));
}

TEST_CASE("module: conversion makes new parameters and keeps ties") {
  Tied tied;
  tied.embed.weight.mutable_value().set({1, 2}, 0.1f);
  Tied wide = to(tied, DType::f64);
  for (const auto& p : named_parameters(wide)) CHECK(p.parameter.dtype() == DType::f64);
  CHECK(wide.embed.weight.id() == wide.out.weight.id());
  CHECK(wide.out.weight.value().at({1, 2}) == static_cast<double>(0.1f));
  CHECK(tied.embed.weight.dtype() == DType::f32);
  Tied same = to(tied, DType::f32);
  same.hidden.bias.mutable_value().fill_(3);
  CHECK(tied.hidden.bias.value().at({0}) == 0.25);
  CHECK_THROWS_WITH_AS(to(tied, DType::i64), doctest::Contains("i64"), Error);
}

TEST_CASE("module: one path for two parameters is an error that names it") {
  CHECK_THROWS_WITH_AS(named_parameters(Clashing()), doctest::Contains("\"a\": (1,) and (2,)"), Error);
}

TEST_CASE("module: the audit passes right lists and catches wrong ones") {
  CHECK(audit_module([] { return Net(); }) == "");
  CHECK(audit_module([] { return Tied(); }) == "");
  CHECK(audit_module([] { return Forgetful(); }).find("made but is not listed") != std::string::npos);
  CHECK(audit_module([] { return Clashing(); }) == "two parameters at a; ");
  Layer old(1);
  CHECK(audit_module([&] { return Shared{old}; }).find("layer.weight is older") != std::string::npos);
}
}

TEST_SUITE("init") {
TEST_CASE("init: the uniform default has PyTorch's bounds and moments") {
  Rng rng(1);
  Parameter w = linear_init({300, 100}, 100, DType::f64, rng);
  double low = 1, high = -1, square = 0;
  for (double v : w.value().to_vector<double>()) {
    low = std::min(low, v), high = std::max(high, v), square += v * v;
  }
  CHECK(low >= -0.1);
  CHECK(low < -0.0999);
  CHECK(high < 0.1);
  CHECK(high > 0.0999);
  CHECK(square / 30000 == doctest::Approx(0.01 / 3).epsilon(0.02));
  CHECK(std::abs(rnn_init({12, 4}, 4, DType::f32, rng).value().at({3, 1})) <= 0.5);
  CHECK(linear_init({3}, 0, DType::f32, rng).value().to_vector<float>() == std::vector<float>(3, 0.f));
}

TEST_CASE("init: f32 values are the rounded f64 ones in every layout") {
  Rng a(7), b(7), c(7);
  Tensor wide = Tensor::empty({5, 3}, DType::f64), narrow = Tensor::empty({5, 3}, DType::f32);
  Tensor turned = Tensor::empty({3, 5}, DType::f32).transpose();
  normal_(wide, a), normal_(narrow, b), normal_(turned, c);
  CHECK(wide.to(DType::f32).to_vector<float>() == narrow.to_vector<float>());
  CHECK(turned.to_vector<float>() == narrow.to_vector<float>());
  CHECK(a.state() == b.state());
}

TEST_CASE("init: embeddings are normal with a zero pad row") {
  Rng rng(3);
  Parameter w = embedding_init(100, 50, 4, DType::f64, rng);
  double square = 0;
  for (double v : w.value().to_vector<double>()) square += v * v;
  CHECK(square / (99 * 50) == doctest::Approx(1).epsilon(0.06));
  CHECK(w.value().select(0, 4).to_vector<double>() == std::vector<double>(50, 0.));
  CHECK(embedding_init(2, 2, std::nullopt, DType::f32, rng).value().at({0, 0}) != 0);
  CHECK_THROWS_WITH_AS(embedding_init(3, 2, 3, DType::f32, rng), doctest::Contains("padding_idx 3 is outside 0..2"),
                       Error);
}

TEST_CASE("init: wrong bounds and dtypes are errors") {
  Rng rng(1);
  Tensor x = Tensor::zeros({2}), i = Tensor::zeros({2}, DType::i64);
  CHECK_THROWS_WITH_AS(uniform_(x, -1, rng), doctest::Contains("-1"), Error);
  CHECK_THROWS_WITH_AS(uniform_(x, std::nan(""), rng), doctest::Contains("nan"), Error);
  CHECK_THROWS_WITH_AS(normal_(i, rng), doctest::Contains("i64"), Error);
}
}
