// B batch, T queries a row, S source positions, E size, H heads.
#include <tapedeck/core/storage.h>
#include <tapedeck/nn/multi_head_attention.h>
#include <tapedeck/ops/ops.h>

#include <cmath>

#include "module_audit.h"
#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr int64_t B = 3, T = 4, S = 5, E = 6, H = 3;

MultiHeadAttention make_layer(DType dtype = DType::f64, int64_t heads = H, double p = 0) {
  Rng rng(1);
  MultiHeadAttention layer(E, heads, rng, {.dropout = p, .dtype = dtype});
  if (layer.in_proj_bias.defined()) layer.in_proj_bias.mutable_value().copy_(normal({3 * E}, dtype, 2));
  return layer;
}

const Tensor mask =
    tensor({{true, true, true, false, false}, {true, true, true, true, true}, {true, false, false, false, false}});

}  // namespace

TEST_SUITE_BEGIN("multi-head attention");

TEST_CASE("multi-head attention: fields") {
  CHECK(audit_module([] { return make_layer(); }) == "");
  CHECK(audit_module([] {
          Rng rng(1);
          return MultiHeadAttention(E, H, rng, {.bias = false});
        }) == "");
}

TEST_CASE("each head is scaled dot-product attention on its own slice") {
  const MultiHeadAttention layer = make_layer();
  const Tensor x = normal({B, T, E}, DType::f64, 3), memory = normal({B, S, E}, DType::f64, 4);
  const MultiHeadResult r = layer(x, layer.project(memory, mask));
  CHECK(r.weights.shape() == Shape{B, H, T, S});
  const int64_t d = E / H;
  std::vector<Var> heads;
  for (int64_t h = 0; h < H; ++h) {
    auto part = [&](const Tensor& in, int64_t which) {
      const int64_t from = which * E + h * d;
      return linear(in, layer.in_proj_weight.value().slice(0, from, from + d),
                    layer.in_proj_bias.value().slice(0, from, from + d));
    };
    Var scores = bmm(part(x, 0), transpose(part(memory, 1))) / std::sqrt(static_cast<double>(d));
    Var weights = masked_softmax(scores, mask.unsqueeze(1));
    CHECK(close(r.weights.value().select(1, h), weights.value(), 1e-14));
    heads.push_back(bmm(weights, part(memory, 2)));
  }
  CHECK(close(r.output.value(), layer.out_proj(cat(heads, 2)).value(), 1e-14));
  Tensor average = Tensor::zeros({B, T, S}, DType::f64);
  for (int64_t h = 0; h < H; ++h) average.add_(r.weights.value().select(1, h), 1.0 / H);
  CHECK(close(r.averaged().value(), average, 1e-15));
}

TEST_CASE("a causal query sees itself and the past") {
  const MultiHeadAttention layer = make_layer();
  const Tensor x = normal({2, T, E}, DType::f64, 5);
  const MultiHeadResult r = layer.attend_self(x, {}, true);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t s = 0; s < T; ++s) CHECK((r.weights.value().at({1, 2, t, s}) > 0) == (s <= t));
  }
  Tensor changed = x.clone();
  changed.slice(1, 2, T).fill_(not_a_number);
  const Tensor before = layer.attend_self(changed.slice(1, 0, 2), {}, true).output.value();
  CHECK(close(before, r.output.value().slice(1, 0, 2), 1e-14));
  Tape tape;
  Var leaf = tape.leaf(x);
  Gradients g = tape.backward(sum(select(layer.attend_self(leaf, {}, true).output, 1, 1)));
  CHECK(all_zero(g[leaf].slice(1, 2, T)));
  CHECK_FALSE(all_zero(g[leaf].slice(1, 1, 2)));
}

TEST_CASE("masked keys change nothing and get no gradient") {
  const MultiHeadAttention layer = make_layer();
  const Tensor x = normal({B, T, E}, DType::f64, 6), memory = normal({B, S, E}, DType::f64, 7);
  Tensor other = memory.clone();
  other.select(0, 0).slice(0, 3, 5).fill_(not_a_number);
  other.select(0, 2).slice(0, 1, 5).fill_(inf);
  std::vector<std::vector<Tensor>> seen;
  for (const Tensor& values : {memory, other}) {
    Tape tape;
    Var q = tape.leaf(x), m = tape.leaf(values);
    const MultiHeadResult r = layer(q, layer.project(m, mask));
    Gradients g = tape.backward(sum(r.output * normal({B, T, E}, DType::f64, 8)));
    seen.push_back({r.output.value(), r.weights.value(), g[q], g[m]});
    for (const NamedParameter& p : named_parameters(layer)) seen.back().push_back(g[p.parameter]);
  }
  for (size_t i = 0; i < seen[0].size(); ++i) CHECK(same_bits(seen[0][i], seen[1][i]));
  CHECK(all_zero(seen[0][3].select(0, 0).slice(0, 3, 5)));
  CHECK(all_zero(seen[0][1].select(0, 2).slice(2, 1, 5)));
}

TEST_CASE("multi-head attention: a row alone equals the row in a padded batch") {
  const MultiHeadAttention layer = make_layer();
  const Tensor x = normal({B, S, E}, DType::f64, 9);
  const int64_t lengths[] = {3, 5, 1};
  for (bool causal : {false, true}) {
    const MultiHeadResult all = layer.attend_self(x, mask, causal);
    for (int64_t b = 0; b < B; ++b) {
      const int64_t n = lengths[b];
      const MultiHeadResult alone = layer.attend_self(x.slice(0, b, b + 1).slice(1, 0, n), {}, causal);
      CHECK(distance(all.output.value().slice(0, b, b + 1).slice(1, 0, n), alone.output.value()) <= 1e-13);
      CHECK(distance(all.weights.value().slice(0, b, b + 1).slice(2, 0, n).slice(3, 0, n), alone.weights.value()) <=
            1e-13);
    }
  }
}

TEST_CASE("a cache gives what all positions at once give") {
  for (DType dtype : {DType::f64, DType::f32}) {
    const MultiHeadAttention layer = make_layer(dtype);
    constexpr int64_t n = 11;
    const Tensor x = normal({2, n, E}, dtype, 10);
    const MultiHeadResult whole = layer.attend_self(x, {}, true);
    const double tolerance = dtype == DType::f64 ? 1e-13 : 1e-5;
    AttentionCache cache;
    int64_t from = 0;
    for (int64_t size : {1, 1, 1, 3, 1, 4}) {  // pieces of several sizes
      const MultiHeadResult r = layer.attend_self(x.slice(1, from, from + size), cache);
      CHECK(distance(r.output.value(), whole.output.value().slice(1, from, from + size)) <= tolerance);
      CHECK(distance(r.weights.value(), whole.weights.value().slice(2, from, from + size).slice(3, 0, from + size)) <=
            tolerance);
      from += size;
    }
    CHECK(cache.size() == n);
    // Rows are reordered, doubled and dropped; each goes on with its own past.
    cache = {};
    layer.attend_self(x.slice(1, 0, 4), cache);
    cache.select(tensor({1, 0, 1}));
    Tensor next = cat({x.slice(0, 1, 2), x.slice(0, 0, 1), x.slice(0, 1, 2)}, 0).value();
    const Tensor went_on = layer.attend_self(next.slice(1, 4, n), cache).output.value();
    CHECK(distance(went_on, index_select(whole.output, 0, tensor({1, 0, 1})).value().slice(1, 4, n)) <= tolerance);
  }
}

TEST_CASE("appending to a cache copies what is new and seldom the rest") {
  AttentionCache cache;
  const Tensor one = normal({1, 1, E}, DType::f64, 11);
  Tensor before;
  int moved = 0;
  for (int i = 0; i < 64; ++i) {
    const Tensor keys = cache.append(one, one).keys.value();
    if (!before.defined() || !keys.shares_storage(before)) ++moved;
    before = keys;
  }
  CHECK(moved == 7);  // 1, 2, 4, ..., 64
}

TEST_CASE("dropout of the weights is drawn only with a stream") {
  const MultiHeadAttention layer = make_layer(DType::f64, H, .5);
  const Tensor x = normal({B, T, E}, DType::f64, 12);
  const Tensor plain = layer.attend_self(x).output.value();
  CHECK(same_bits(plain, layer.attend_self(x).output.value()));
  Rng one(13), two(13);
  const MultiHeadResult a = layer.attend_self(x, {}, false, &one), b = layer.attend_self(x, {}, false, &two);
  CHECK(same_bits(a.output.value(), b.output.value()));
  CHECK_FALSE(same_bits(a.output.value(), plain));
  for (double total : values(sum(a.weights, -1).value())) CHECK(total == doctest::Approx(1));
}

TEST_CASE("what multi-head attention keeps for the backward pass") {
  constexpr int64_t t = 32, s = 64, e = 64, h = 8;
  Rng rng(1);
  const MultiHeadAttention layer(e, h, rng);
  auto kept = [&](int64_t b) {
    const Tensor x = normal({b, t, e}, DType::f32, 16), memory = normal({b, s, e}, DType::f32, 17);
    Tape tape;
    const int64_t before = live_bytes();
    const Var y = layer(tape.leaf(x), layer.project(tape.leaf(memory))).output;
    return (live_bytes() - before) / 4;
  };
  // Eight rows against four: what the tape itself takes is not counted. Blocks are rounded up by a quarter at most.
  const int64_t promised = 4 * (2 * (t + s) * e + h * t * s), output = 4 * t * e, more = kept(8) - kept(4);
  CHECK(more >= promised);
  CHECK(more <= (promised + output) * 5 / 4);
}

TEST_CASE("multi-head attention: errors") {
  Rng rng(1);
  CHECK(says(error_of([&] { MultiHeadAttention(6, 4, rng); }), {"size 6", "4 heads"}));
  const MultiHeadAttention layer = make_layer();
  const Tensor x = normal({2, 2, E}, DType::f64, 14);
  CHECK(says(error_of([&] {
               layer.attend_self(x, tensor({{true, true}, {false, false}}));
             }),
             {"multi-head attention", "row 1"}));
  CHECK(says(error_of([&] {
               layer.attend_self(x, tensor({{true, true}, {false, true}}), true);
             }),
             {"query 0 of row 1", "position 0"}));
  CHECK(error_of([&] { layer.attend_self(x, tensor({{true, true}, {false, true}}), false); }) == "");
  CHECK(says(error_of([&] { layer.attend_self(normal({2, 2, 5}, DType::f64, 15)); }), {"(2, 2, 5)", "6"}));
  CHECK(says(error_of([&] { layer.attend_self(x, tensor({{1, 1}, {1, 1}})); }), {"boolean", "i64"}));
  CHECK(says(error_of([&] { layer(normal({3, 2, E}, DType::f64, 15), layer.project(x)); }), {"(3, 2, 6)"}));
  Tape tape;
  AttentionCache cache;
  CHECK(says(error_of([&] { layer.attend_self(x, cache); }), {"attention cache", "NoGrad"}));
  NoGrad pause;
  layer.attend_self(x, cache);
  CHECK(says(error_of([&] { layer.attend_self(normal({3, 1, E}, DType::f64, 15), cache); }), {"(3, 1, 6)"}));
  CHECK(says(error_of([&] { cache.select(tensor({0, 2})); }), {"row 2"}));
}

TEST_SUITE_END();
