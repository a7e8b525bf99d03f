// E experts, d size.
#include <tapedeck/nn/mixture_of_experts.h>
#include <tapedeck/ops/ops.h>

#include <numeric>
#include <set>

#include "module_audit.h"
#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr int64_t E = 4, d = 3;

MixtureOfExperts make_layer(const FeedForwardOptions& options = {.dtype = DType::f64}) {
  Rng rng(1);
  return MixtureOfExperts(d, 5, E, rng, options);
}

const Tensor valid = tensor({{true, true, true, false, false}, {true, true, true, true, true}});

}  // namespace

TEST_SUITE_BEGIN("mixture of experts");

TEST_CASE("mixture of experts: fields") {
  CHECK(audit_module([] { return make_layer(); }) == "");
  CHECK(audit_module([] {
          Rng rng(1);
          return FeedForward(3, 4, rng);
        }) == "");
}

TEST_CASE("the output is the two likeliest experts weighed by their renormalised gates") {
  const MixtureOfExperts layer = make_layer();
  const Tensor x = normal({2, 5, d}, DType::f64, 2);
  const MixtureResult r = layer(x);
  CHECK(r.output.shape() == x.shape());
  std::set<int64_t> used;
  std::vector<double> load(E, 0), first(E, 0), share(E, 0);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < 5; ++t) {
      const Tensor token = x.select(0, b).slice(0, t, t + 1);
      const std::vector<double> p = values(softmax(layer.gate(token)).value());
      size_t best = 0, second = E;
      for (size_t e = 1; e < E; ++e) best = p[e] > p[best] ? e : best;
      for (size_t e = 0; e < E; ++e) {
        if (e != best && (second == E || p[e] > p[second])) second = e;
      }
      CHECK(r.choice.at({b, t, 0}) == static_cast<double>(best));
      CHECK(r.choice.at({b, t, 1}) == static_cast<double>(second));
      const double total = p[best] + p[second];
      const Var mixed =
          layer.experts[best](token) * (p[best] / total) + layer.experts[second](token) * (p[second] / total);
      CHECK(distance(r.output.value().select(0, b).slice(0, t, t + 1), mixed.value()) <= 1e-13);
      for (size_t e = 0; e < E; ++e) share[e] += p[e] / 10;
      load[best] += 1, load[second] += 1, first[best] += .1;
    }
  }
  double balance = 0;
  for (size_t e = 0; e < E; ++e) {
    CHECK(static_cast<double>(r.load[e]) == load[e]);
    balance += E * first[e] * share[e];
  }
  CHECK(r.balance.item() == doctest::Approx(balance).epsilon(1e-13));
}

TEST_CASE("pads are routed nowhere and count in nothing") {
  const MixtureOfExperts layer = make_layer();
  const Tensor x = normal({2, 5, d}, DType::f64, 3);
  Tensor other = x.clone();
  other.select(0, 0).slice(0, 3, 5).fill_(not_a_number);
  std::vector<std::vector<Tensor>> seen;
  for (const Tensor& in : {x, other}) {
    Tape tape;
    Var leaf = tape.leaf(in);
    const MixtureResult r = layer(leaf, valid);
    CHECK(all_zero(r.output.value().select(0, 0).slice(0, 3, 5)));
    CHECK(r.choice.at({0, 3, 0}) == -1);
    CHECK(std::accumulate(r.load.begin(), r.load.end(), int64_t{0}) == 16);
    Gradients g = tape.backward(sum(square(r.output)) + r.balance);
    seen.push_back({r.output.value(), r.balance.value(), g[leaf]});
    for (const NamedParameter& p : named_parameters(layer)) seen.back().push_back(g[p.parameter]);
  }
  for (size_t i = 0; i < seen[0].size(); ++i) CHECK(same_bits(seen[0][i], seen[1][i]));
  CHECK(all_zero(seen[0][2].select(0, 0).slice(0, 3, 5)));
  // The same tokens without the pads: the balance too.
  const Tensor tokens = cat({x.select(0, 0).slice(0, 0, 3), x.select(0, 1)}, 0).value();
  const MixtureResult dense = layer(tokens);
  CHECK(distance(dense.balance.value(), seen[0][1]) <= 1e-14);
  CHECK(distance(dense.output.value().slice(0, 0, 3), seen[0][0].select(0, 0).slice(0, 0, 3)) <= 1e-13);
  const MixtureResult none = layer(x, Tensor::full({2, 5}, false, DType::boolean));
  CHECK(all_zero(none.output.value()));
  CHECK(none.balance.item() == 0);
}

TEST_CASE("where a token goes depends on that token alone") {
  const MixtureOfExperts layer = make_layer();
  const Tensor x = normal({40, d}, DType::f64, 4);
  const MixtureResult all = layer(x);
  for (int64_t i = 0; i < 40; ++i) {
    const MixtureResult alone = layer(x.slice(0, i, i + 1));
    CHECK(same_bits(alone.choice, all.choice.slice(0, i, i + 1).clone()));
    CHECK(distance(alone.output.value(), all.output.value().slice(0, i, i + 1)) <= 1e-13);
    CHECK(std::accumulate(alone.load.begin(), alone.load.end(), int64_t{0}) == 2);  // two experts were computed
  }
}

TEST_CASE("experts that nothing has chosen get no gradient") {
  const MixtureOfExperts layer = make_layer();
  Tape tape;
  const MixtureResult r = layer(normal({1, d}, DType::f64, 5));
  Gradients g = tape.backward(sum(r.output));
  for (size_t e = 0; e < E; ++e) {
    CHECK((g.find(layer.experts[e].linear1.weight) != nullptr) == (r.load[e] == 1));
  }
  CHECK_FALSE(all_zero(g[layer.gate.weight]));
}

TEST_CASE("the balancing loss is smallest where the load is even and its gradient evens it") {
  MixtureOfExperts layer = make_layer();
  layer.gate.weight.mutable_value().fill_(0);
  layer.gate.weight.mutable_value().set({0, 0}, 5);  // everything goes to expert 0 first
  const Tensor x = add(abs(normal({64, d}, DType::f64, 6)), .5).value();
  auto balance = [&] { return layer(x).balance.item(); };
  const double before = balance();
  CHECK(before > 3);  // E at the worst
  for (int step = 0; step < 300; ++step) {
    Tape tape;
    Gradients g = tape.backward(layer(x).balance);
    layer.gate.weight.mutable_value().add_(g[layer.gate.weight], -.5);
  }
  CHECK(balance() < 1.3);
}

TEST_CASE("mixture of experts: dropout and errors") {
  const MixtureOfExperts layer = make_layer({.dropout = .5, .dtype = DType::f64});
  const Tensor x = normal({2, 5, d}, DType::f64, 7);
  Rng one(8), two(8);
  CHECK(same_bits(layer(x, {}, &one).output.value(), layer(x, {}, &two).output.value()));
  CHECK_FALSE(same_bits(layer(x, {}, &one).output.value(), layer(x).output.value()));
  Rng rng(1);
  CHECK(says(error_of([&] { MixtureOfExperts(3, 4, 1, rng); }), {"mixture of experts", "got 1"}));
  CHECK(says(error_of([&] { layer(normal({2, 4}, DType::f64, 9)); }), {"(2, 4)", "3"}));
  CHECK(says(error_of([&] { layer(x, tensor({{true, false}})); }), {"(1, 2)", "(2, 5)"}));
}

TEST_SUITE_END();
