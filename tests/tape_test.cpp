// The engine: recording, the reverse loop, what it refuses, what it frees, and derivatives of higher order.
#include <tapedeck/nn/module.h>
#include <tapedeck/ops/ops.h>

#include <pthread.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr DType F64 = DType::f64;

// y = x; steps times y = y + y * 1e-6
Var long_chain(const Var& x, int steps) {
  Var y = x;
  for (int i = 0; i < steps; ++i) y = y + y * 1e-6;
  return y;
}

// An op that is wrong on purpose, or counts, or throws: y = x with the rule given.
template <class Rule>
Var with_rule(Operand x, Rule rule) {
  return record("with_rule", x.value().clone(), Input{x, rule});
}

// An op without a derivative.
Var opaque(Operand x) { return record_constant("opaque", x.value().clone()); }

bool in_this_file(const Site& site) { return site.file && std::string_view(site.file).ends_with("tape_test.cpp"); }

struct Pair {
  Parameter a, b;
  static void fields(auto& self, auto&& f) { f("a", self.a), f("b", self.b); }
};

thread_local std::vector<std::string> seen_ops;

}  // namespace

TEST_SUITE("tape") {
// ---- Backward -------------------------------------------------------------------------------------------------

TEST_CASE("gradients are summed back over leading axes and axes of extent 1") {
  Tensor a = range({2, 1, 3}), b = range({4, 1}), w = range({2, 4, 3});
  Tape tape;
  Var va = tape.leaf(a), vb = tape.leaf(b);
  Gradients of_sum = tape.backward(sum(w * (va + vb)), Keep::tape);
  CHECK(same_bits(of_sum[va], f64({{{18, 22, 26}}, {{66, 70, 74}}})));
  CHECK(same_bits(of_sum[vb], f64({{42}, {60}, {78}, {96}})));
  Gradients of_product = tape.backward(sum(w * va * vb), Keep::tape);
  CHECK(same_bits(of_product[va], f64({{{42, 48, 54}}, {{114, 120, 126}}})));
  CHECK(same_bits(of_product[vb], f64({{163}, {208}, {253}, {298}})));
  Var x = tape.leaf(f64({{1, 2, 3}, {4, 5, 6}})), weight = tape.leaf(f64({{1}, {0}, {-1}}));
  Var bias = tape.leaf(f64({{1, 2, 3}})), label = tape.leaf(f64({{1}, {2}}));
  Var error = matmul(x, weight) + bias - label;
  Var loss = sum(error * error);
  CHECK(loss.item() == 19);
  Gradients g = tape.backward(loss);
  CHECK(same_bits(g[x], f64({{-6, 0, 6}, {-12, 0, 12}})));
  CHECK(same_bits(g[weight], f64({{-54}, {-72}, {-90}})));
  CHECK(same_bits(g[bias], f64({{-10, -6, -2}})));
  CHECK(same_bits(g[label], f64({{6}, {12}})));
}

TEST_CASE("a node runs once after all its consumers") {
  Tape tape;
  Var a = tape.leaf(f64(2)), b = tape.leaf(f64(3));
  Var c = a + b, d = a * b;
  Var e = c + d, f = c * d;
  Var y = e + f;
  CHECK(y.item() == 41);
  Gradients g = tape.backward(y, Keep::tape);
  CHECK(g[a].item() == 25);  // 29 and 22 where inner nodes run too early
  CHECK(g[b].item() == 19);
  Var x = tape.leaf(f64(1)), k = tape.leaf(f64(1));
  CHECK(tape.backward(x * (x * k) + (x * x) * k + x * (x * k))[x].item() == 6);
}

TEST_CASE("a second consumer adds to the gradient of every op and in both orders") {
  using Op = Var (*)(const Var&);
  const std::pair<const char*, Op> ops[] = {
      {"exp", [](const Var& x) { return exp(x); }},
      {"log", [](const Var& x) { return log(x); }},
      {"sqrt", [](const Var& x) { return sqrt(x); }},
      {"tanh", [](const Var& x) { return tanh(x); }},
      {"sigmoid", [](const Var& x) { return sigmoid(x); }},
      {"relu", [](const Var& x) { return relu(x); }},
      {"neg", [](const Var& x) { return -x; }},
      {"square", [](const Var& x) { return x * x; }},
      {"add", [](const Var& x) { return x + x; }},
      {"sub", [](const Var& x) { return 1 - x; }},
      {"div", [](const Var& x) { return 1 / x; }},
      {"softmax", [](const Var& x) { return softmax(x); }},
      {"log_softmax", [](const Var& x) { return log_softmax(x, 0); }},
      {"logsumexp", [](const Var& x) { return logsumexp(x, 1, true); }},
      {"sum", [](const Var& x) { return sum(x, 0); }},
      {"mean", [](const Var& x) { return mean(x, 1, true); }},
      {"max", [](const Var& x) { return max(x, 0); }},
      {"transpose", [](const Var& x) { return transpose(transpose(x)); }},
      {"reshape",
       [](const Var& x) {
         return reshape(reshape(x, {6}), {2, 3});
       }},
      {"slice", [](const Var& x) { return slice(x, 1, 0, 1); }},
      {"select", [](const Var& x) { return select(x, 0, 1); }},
      {"cat",
       [](const Var& x) {
         return slice(cat({x, x}, 1), 1, 2, 5);
       }},
      {"contiguous", [](const Var& x) { return contiguous(x); }},
      {"expand",
       [](const Var& x) {
         return sum(expand(x, {4, 2, 3}), 0);
       }},
      {"index_select",
       [](const Var& x) {
         return index_select(x, 1, tensor({2, 2, 0}));
       }},
      {"gather",
       [](const Var& x) {
         return gather(x, 1, tensor({{0, 0, 1}, {2, 2, 2}}));
       }},
      {"matmul", [](const Var& x) { return matmul(matmul(x, transpose(x)), x); }},
      {"masked_fill",
       [](const Var& x) {
         return masked_fill(x, tensor({true, false, false}), 3);
       }},
      {"where",
       [](const Var& x) {
         return where(tensor({true, false, false}), x, 2 * x);
       }},
  };
  Tensor value = f64({{0.5, 1.5, 0.75}, {2, 0.25, 1.25}}), w1 = normal({2, 3}, F64, 1), w2 = normal({2, 3}, F64, 2);
  for (const auto& named : ops) {
    const auto& name = named.first;
    const auto& op = named.second;
    CAPTURE(name);
    auto gradient = [&](int order) {
      Tape tape;
      Var x = tape.leaf(value);
      auto first = [&] { return sum(w1 * x); };
      auto second = [&, f = op] { return sum(w2 * f(x)); };
      Var loss;
      if (order == 0) loss = second();
      if (order == 1) loss = first(), loss = loss + second();
      if (order == 2) loss = second(), loss = loss + first();
      return tape.backward(loss)[x];
    };
    Tensor expected = gradient(0).add_(w1);
    CHECK(close(gradient(1), expected, 1e-14));
    CHECK(close(gradient(2), expected, 1e-14));
  }
}

TEST_CASE("every kept pass gives the same gradients") {
  Tape tape;
  Var a = tape.leaf(f64(3)), b = tape.leaf(f64(2)), d = tape.leaf(f64(1));
  Var c = a + b, e = c * d;
  Gradients first = tape.backward(e, Keep::tape);
  CHECK_FALSE(tape.consumed());
  Gradients second = tape.backward(e, Keep::tape);
  for (const Gradients* g : {&first, &second}) {
    CHECK((*g)[a].item() == 1);
    CHECK((*g)[b].item() == 1);
    CHECK((*g)[d].item() == 5);
  }
  first += second;
  CHECK(first[a].item() == 2);
  CHECK(first[b].item() == 2);
  CHECK(first[d].item() == 10);
  CHECK(second[d].item() == 5);
  Gradients last = tape.backward(e);
  CHECK(last[d].item() == 5);
  CHECK(tape.consumed());
  CHECK(says(error_of([&] { tape.backward(e); }), {"backward", "graph is freed", "Keep::tape"}));
  CHECK(says(error_of([&] { grad(e, {a}); }), {"grad", "graph is freed", "Keep::tape"}));
  CHECK(last[d].item() == 5);
}

TEST_CASE("a consumed tape records no more but constants go on") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2}));
  Var y = x * x;
  tape.backward(sum(y));
  CHECK(says(error_of([&] { y + 1; }), {"add", "consumed", "NoGrad", "Keep::tape"}));
  CHECK(says(error_of([&] { tape.leaf(f64(1)); }), {"leaf", "consumed"}));
  Parameter p(f64(1));
  CHECK(says(error_of([&] { p * 2; }), {"parameter", "consumed"}));
  CHECK(values(y.value()) == std::vector<double>{1, 4});
  CHECK(values((y.detach() + 1).value()) == std::vector<double>{2, 5});
  NoGrad pause;
  CHECK(values((y + 1).value()) == std::vector<double>{2, 5});
  CHECK((p * 2).item() == 2);
}

TEST_CASE("an op without derivative cuts the graph loudly") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2, 3}));
  Var loss = sum(opaque(x));
  CHECK_FALSE(loss.tracked());
  CHECK(says(error_of([&] { tape.backward(loss); }), {"backward", "not on a tape", "without derivative"}));
  CHECK(says(error_of([&] { tape.backward(sum((x > 2).detach())); }), {"boolean"}));
  CHECK_FALSE((x > 2).tracked());
  CHECK_FALSE(argmax(x).tracked());
  Var p = softmax(x);
  Var squares = sum(p * p);
  CHECK(squares.item() == doctest::Approx(0.5105430578904046).epsilon(1e-12));
  CHECK(close(tape.backward(squares)[x], f64({-0.07571796004928924, -0.13010479484068163, 0.205822754889971}), 1e-12));
}

TEST_CASE("backward refuses what has no gradient") {
  Tape tape;
  Var x = tape.leaf(range({3, 4}));
  Var y = x * 2;
  CHECK(says(error_of([&] { tape.backward(Var()); }), {"backward", "undefined"}));
  CHECK(says(error_of([&] { tape.backward(Var(f64(1))); }), {"backward", "not on a tape", "constants"}));
  CHECK(says(error_of([&] { tape.backward(y); }), {"backward", "one element", "(3, 4)", "seed"}));
  CHECK(says(error_of([&] { tape.backward(y, range({4, 3})); }), {"backward", "(3, 4)", "(4, 3)"}));
  CHECK(says(error_of([&] { tape.backward(y, range({3, 4}, DType::f32)); }), {"backward", "f64", "f32"}));
  CHECK(says(error_of([&] { tape.backward(y > 1); }), {"backward", "boolean"}));
  CHECK(says(error_of([&] { tape.backward(argmax(reshape(y, {12}))); }), {"backward", "i64"}));
  CHECK(says(error_of([&] { tape.leaf(tensor({1, 2})); }), {"leaf", "floating", "i64"}));
  CHECK(says(error_of([&] { tape.leaf(tensor({true})); }), {"leaf", "floating", "boolean"}));
  CHECK_FALSE(tape.consumed());                                        // no refusal used it up
  Gradients of_one = tape.backward(reshape(sum(y), {1}), Keep::tape);  // any shape of one element is a loss
  CHECK(same_bits(of_one[x], Tensor::full({3, 4}, 2, F64)));
  CHECK(same_bits(tape.backward(y, range({3, 4}))[x], range({3, 4}).mul_(2)));
}

TEST_CASE("a leaf is a loss and an unused leaf has no gradient") {
  Tape tape;
  Var x = tape.leaf(f64(3)), unused = tape.leaf(f64({1, 2})), later = tape.leaf(f64(1));
  Gradients g = tape.backward(x, Keep::tape);
  CHECK(g[x].item() == 1);
  CHECK(g.size() == 1);
  CHECK(g.find(unused) == nullptr);
  Var zero = x * 0 + sum(later * Tensor::zeros({1}, F64));
  Gradients zeros = tape.backward(zero, Keep::tape);
  REQUIRE(zeros.find(x) != nullptr);  // zero is an answer, absent another
  CHECK(zeros[x].item() == 0);
  CHECK(zeros[later].item() == 0);
  CHECK(zeros.find(unused) == nullptr);
  CHECK(says(error_of([&] { zeros[unused]; }), {"gradients", "(2,)", "does not depend"}));
  CHECK(says(error_of([&] { zeros[Var(f64({1}))]; }), {"gradients", "constant", "tape.leaf"}));
  CHECK(says(error_of([&] { zeros[zero]; }), {"gradients", "no leaf", "grad("}));
  Parameter p(f64({1, 2, 3}));
  CHECK(zeros.find(p) == nullptr);
  CHECK(says(error_of([&] { zeros[p]; }), {"gradients", "(3,)", "find()"}));
}

TEST_CASE("seeds weigh the outputs and stay as they are") {
  Tensor seed = f64({1, -2, 0.5}), kept = seed.clone();
  Tape tape;
  Var x = tape.leaf(f64({1, 2, 3})), z = tape.leaf(f64({0, 0, 0}));
  Var y = x + z + slice(cat({x, x}), 0, 1, 4) + x * x;
  for (int pass = 0; pass < 3; ++pass) {
    Gradients g = tape.backward(y, seed, Keep::tape);
    CHECK(same_bits(g[z], kept));
    CHECK(same_bits(g[x], f64({1 + 0.5 + 2, -2 + 1 - 8, 0.5 - 2 + 3})));
    CHECK(same_bits(seed, kept));
    CHECK_FALSE(g[z].shares_storage(seed));
    g += g;
    CHECK(same_bits(seed, kept));
  }
  Var only = tape.leaf(f64({1, 2, 3}));
  Gradients direct = tape.backward(only, seed, Keep::tape);
  CHECK_FALSE(direct[only].shares_storage(seed));
  Tensor strided = f64({{1, 9}, {-2, 9}, {0.5, 9}}).select(1, 0);
  CHECK(same_bits(tape.backward(y, strided)[z], kept));
}

// ---- Buffers --------------------------------------------------------------------------------------------------

TEST_CASE("gradients share no memory and are row-major") {
  Tensor constant = f64({{1, 2}, {3, 4}});
  Tape tape;
  Var a = tape.leaf(constant), b = tape.leaf(constant), c = tape.leaf(constant), d = tape.leaf(constant);
  Var e = tape.leaf(constant), f = tape.leaf(constant);
  Parameter p(constant);
  Var loss = sum(a) + sum(b) + sum(transpose(c)) + sum(transpose(d + e) * constant) + sum(reshape(f, {4})) +
             sum(expand(p, {3, 2, 2}));
  Gradients g = tape.backward(loss, Keep::tape);
  CHECK(g.size() == 7);
  for (auto one = g.begin(); one != g.end(); ++one) {
    CHECK(one->value.is_contiguous());
    CHECK_FALSE(one->value.shares_storage(constant));
    for (auto two = g.begin(); two != one; ++two) CHECK_FALSE(one->value.shares_storage(two->value));
  }
  Gradients again = tape.backward(loss, Keep::tape);
  for (auto& [parameter, value] : again) Tensor(value).mul_(1000);
  CHECK(same_bits(g[a], Tensor::ones({2, 2}, F64)));
  CHECK(same_bits(g[d], constant.transpose()));
  CHECK(same_bits(g[p], Tensor::full({2, 2}, 3, F64)));
  CHECK(same_bits(constant, f64({{1, 2}, {3, 4}})));
  Gradients third = tape.backward(loss);
  CHECK(same_bits(third[b], Tensor::ones({2, 2}, F64)));
}

TEST_CASE("adding gradients leaves copies and the other side alone") {
  Parameter p(f64({1, 2})), q(f64({3, 4}));
  auto gradients = [&](double of_p, double of_q) {
    Tape tape;
    Var loss = of_p * sum(p * p);
    if (of_q != 0) loss = loss + of_q * sum(q * q);
    return tape.backward(loss);
  };
  Gradients one = gradients(1, 0), two = gradients(10, 100);
  Gradients copy = one;
  one += two;
  CHECK(values(one[p]) == std::vector<double>{22, 44});
  CHECK(values(one[q]) == std::vector<double>{600, 800});
  CHECK(values(copy[p]) == std::vector<double>{2, 4});
  CHECK(copy.find(q) == nullptr);
  CHECK_FALSE(one[q].shares_storage(two[q]));
  one += one;
  CHECK(values(one[p]) == std::vector<double>{44, 88});
  CHECK(values(two[p]) == std::vector<double>{20, 40});
  Gradients none;
  none += two;
  CHECK(values(none[q]) == std::vector<double>{600, 800});
  none += Gradients();
  CHECK(none.size() == 2);
  none.find(p)->mul_(0);
  CHECK(values(two[p]) == std::vector<double>{20, 40});
}

TEST_CASE("buffers are added to in any order of consumers and never corrupted") {
  // x + z hands one buffer to both; slices and selects write into x's; what belongs to z must stay.
  Tensor value = normal({4, 3}, F64, 1), u = normal({4, 3}, F64, 2), v = normal({3}, F64, 3),
         w = normal({2, 3}, F64, 4);
  Tensor t = normal({4, 3}, F64, 5);
  std::vector<int> order{0, 1, 2, 3, 4};
  Tensor for_x = u.clone().add_(t), for_z = t;
  for_x.slice(0, 0, 4, 2).add_(w);
  for_x.select(0, 1).add_(v);
  for_x.transpose().add_(range({3, 4}));
  int permutations = 0;
  do {
    Tape tape;
    Var x = tape.leaf(value), z = tape.leaf(value), loss = x.detach() * 0;
    loss = sum(loss);
    for (int k : order) {
      if (k == 0) loss = loss + sum(slice(x, 0, 0, 4, 2) * w);
      if (k == 1) loss = loss + sum((x + z) * t);
      if (k == 2) loss = loss + sum(x * u);
      if (k == 3) loss = loss + sum(select(x, 0, 1) * v);
      if (k == 4) loss = loss + sum(transpose(x) * range({3, 4}));
    }
    Gradients first = tape.backward(loss, Keep::tape), second = tape.backward(loss, Keep::tape);
    CHECK(close(first[x], for_x, 1e-14));
    CHECK(same_bits(first[z], for_z));
    CHECK(same_bits(second[x], first[x]));
    CHECK(same_bits(second[z], first[z]));
    std::vector<Var> composed = grad(loss, {x, z}, {.create_graph = true});
    CHECK(close(composed[0].value(), for_x, 1e-14));
    CHECK(same_bits(composed[1].value(), for_z));
    ++permutations;
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(permutations == 120);
}

TEST_CASE("slices and selects of one tensor give what the composed rules give") {
  for (DType dtype : {DType::f32, F64}) {
    Tensor value = normal({7, 5}, dtype, 1);
    Tape tape;
    Var x = tape.leaf(value);
    Var loss = Var(Tensor::zeros({}, dtype));
    uint64_t seed = 10;
    auto weigh = [&](const Var& part) { loss = loss + sum(tanh(part) * normal(part.shape(), dtype, seed++)); };
    for (int64_t i = 0; i < 7; ++i) weigh(select(x, 0, i - (i % 2 ? 7 : 0)));
    for (int64_t i = 0; i < 5; ++i) weigh(select(x, 1, i));
    weigh(slice(x, 0, 1, 6, 2));
    weigh(slice(x, 1, -2, 100));
    weigh(slice(x, 1, 4, 2));       // empty
    weigh(slice(x, 0, 6, 7, 100));  // one row, by a step beyond the end
    for (const Var& part : split(x, 3, 0)) weigh(part);
    for (const Var& part : split(x, {1, 0, 4}, 1)) weigh(part);
    weigh(slice(slice(transpose(x), 0, 0, 5, 2), 1, 1, 7, 3));
    Gradients fast = tape.backward(loss, Keep::tape);
    Var composed = grad(loss, {x}, {.create_graph = true})[0];
    CHECK(close(fast[x], composed.value(), dtype == F64 ? 1e-13 : 1e-5));
    CHECK(same_bits(fast[x], tape.backward(loss)[x]));
  }
}

TEST_CASE("asked for values keep their gradients while their inputs go on") {
  Tape tape;
  Var x = tape.leaf(range({2, 3}));
  Var y = reshape(x, {6});  // its gradient and x's could be one buffer
  Var z = y + 0;
  Var loss = sum(z * range({6})) + sum(slice(x, 0, 0, 1)) + sum(x * x);
  std::vector<Var> g = grad(loss, {x, y, z, loss});
  CHECK(values(g[0].value()) == std::vector<double>{1, 4, 7, 9, 12, 15});
  CHECK(values(g[1].value()) == std::vector<double>{0, 1, 2, 3, 4, 5});
  CHECK(values(g[2].value()) == std::vector<double>{0, 1, 2, 3, 4, 5});
  CHECK(g[3].item() == 1);
}

// ---- Depth and memory -----------------------------------------------------------------------------------------

TEST_CASE("a chain of a hundred thousand steps with a small stack") {
  on_a_small_stack([] {
    int64_t bytes = live_bytes();
    {
      Tape tape;
      Var x = tape.leaf(f64(1));
      Var y = long_chain(x, 100'000);
      CHECK(std::abs(y.item() - 1.1051708628) < 1e-10);
      Gradients g = tape.backward(y);
      CHECK(std::abs(g[x].item() - 1.1051708628) < 1e-10);
    }
    CHECK(live_nodes() == 0);
    {  // dropped without a backward pass
      Tape tape;
      Var y = long_chain(tape.leaf(f64(1)), 100'000);
      CHECK(live_nodes() == 200'001);
    }
    CHECK(live_nodes() == 0);
    CHECK(live_bytes() == bytes);
  });
}

TEST_CASE("a chain of a million nodes with a small stack") {
  on_a_small_stack([] {
    int64_t bytes = live_bytes();
    {
      Tape tape;
      Var x = tape.leaf(f64(1));
      Var y = long_chain(x, 500'000);
      CHECK(tape.size() == 1'000'001);
      CHECK(std::abs(y.item() - 1.6487208585) < 1e-9);  // (1 + 1e-6)^500000
      Gradients kept = tape.backward(y, Keep::tape);
      CHECK(std::abs(kept[x].item() - y.item()) < 1e-10);
      Gradients g = tape.backward(y);
      CHECK(same_bits(g[x], kept[x]));
    }
    CHECK(live_nodes() == 0);
    CHECK(live_bytes() == bytes);
    {  // dropped with its values still held, and the last Var outliving the tape
      Var last;
      {
        Tape tape;
        last = long_chain(tape.leaf(f64(1)), 500'000);
      }
      CHECK(last.item() > 1.6);
    }
    CHECK(live_bytes() == bytes);
  });
}

TEST_CASE("nothing owns itself: counters come back with and without backward") {
  Parameter p(f64({0.1, 0.2, 0.3}));
  int64_t bytes = live_bytes(), nodes = live_nodes();
  for (int mode = 0; mode < 5; ++mode) {
    CAPTURE(mode);
    {
      Tape tape;
      Var x = tape.leaf(f64({1, 2, 3}));
      Var y = tanh(x * p), z = exp(y), s = softmax(z), m = masked_softmax(s, tensor({true, false, true}));
      Var loss = sum(m * m) + logsumexp(s) + max(y) + cross_entropy(s, tensor(1));
      CHECK(live_nodes() > nodes);
      CHECK(live_bytes() > bytes);
      if (mode == 1) tape.backward(loss);
      if (mode == 2) tape.backward(loss, Keep::tape);
      if (mode == 3) grad(loss, {x}, {.create_graph = true});
      if (mode == 4) grad(sum(grad(loss, {x, y}, {.create_graph = true})[1]), {x, p}, {.create_graph = true});
    }
    CHECK(live_nodes() == nodes);
    CHECK(live_bytes() == bytes);
  }
  {
    Var y = tanh(Var(f64({1, 2, 3})) * p);  // no tape: inference
    NoGrad pause;
    Var z = exp(y);
  }
  CHECK(live_bytes() == bytes);
}

TEST_CASE("a consumed tape has freed its saved values") {
  Tape tape;
  Var x = tape.leaf(Tensor::ones({1000}, F64));
  int64_t before = live_bytes();
  Gradients g;
  {
    Var loss = sum(exp(tanh(sigmoid(x))));
    CHECK(live_bytes() > before + 3 * 8000);  // three activations wait for the backward pass
    g = tape.backward(loss);
  }
  CHECK(live_bytes() < before + 2 * 8000 + 100'000);  // one gradient, and the nodes themselves
  CHECK(live_bytes() < before + 8000 + 80'000);
}

TEST_CASE("training steps keep memory flat") {
  Parameter w(normal({8, 8}, F64, 1));
  Tensor input = normal({16, 8}, F64, 2);
  std::vector<double> losses;
  std::vector<Gradients> kept;
  int64_t at_20 = 0;
  for (int step = 0; step < 200; ++step) {
    {
      Tape tape;
      Var y = tanh(matmul(input, w));
      Var loss = mean(y * y);
      losses.push_back(loss.item());
      Gradients g = tape.backward(loss);
      w.mutable_value().add_(g[w], -0.5);
    }
    if (step == 20) at_20 = live_bytes();
  }
  CHECK(live_bytes() == at_20);
  CHECK(live_nodes() == 0);
  CHECK(losses.back() < 0.5 * losses.front());
  // Gradients have no history: to keep them costs their own size, no tape.
  int64_t each = 0;
  for (int step = 0; step < 20; ++step) {
    int64_t before = live_bytes();
    {
      Tape tape;
      kept.push_back(tape.backward(sum(w * w)));
    }
    if (step == 0) each = live_bytes() - before;
    CHECK(live_bytes() - before == each);
  }
  CHECK(each < 2000);
}

TEST_CASE("a sum of losses across tapes is refused and the remedy named") {
  Parameter w(f64(2));
  Var total = Var(f64(0));
  double numbers = 0;
  for (int step = 0; step < 3; ++step) {
    Tape tape;
    Var loss = w * w;
    numbers += loss.item();
    if (step == 0) total = total + loss;
    if (step > 0) CHECK(says(error_of([&] { total + loss; }), {"add", "ended", "detach()"}));
  }
  CHECK(numbers == 12);
  CHECK(total.item() == 4);  // its value can still be read
}

TEST_CASE("state passed on between tapes must be detached") {
  Parameter w(f64(0.5));
  auto cell = [&](const Var& h, const Var& x) { return tanh(w * h + x); };
  Var h = Var(f64(0));
  std::vector<Var> first_inputs;
  {
    Tape tape;
    for (int t = 0; t < 3; ++t) {
      first_inputs.push_back(tape.leaf(f64(0.3)));
      h = cell(h, first_inputs.back());
    }
    tape.backward(h);
  }
  Tape tape;
  Var x = tape.leaf(f64(0.3));
  CHECK(says(error_of([&] { cell(h, x); }), {"mul", "tape that has ended", "freed", "detach()"}));
  Var state = h.detach(), start = x;
  state = cell(state, x);
  for (int t = 0; t < 2; ++t) state = cell(state, tape.leaf(f64(0.3)));
  Gradients g = tape.backward(state);
  CHECK(g.size() == 4);
  CHECK(g[start].item() > 0.01);  // all three steps back
  for (const Var& old : first_inputs) CHECK(g.find(old) == nullptr);
  CHECK(g[w].item() != 0);
}

// ---- What changes under the tape ------------------------------------------------------------------------------

TEST_CASE("a saved value changed in place is found and named") {
  {
    Tape tape;
    Var x = tape.leaf(f64(1));
    Var y = exp(x);
    Tensor(y.value()).mul_(2);
    CHECK(says(error_of([&] { tape.backward(y); }),
               {"backward of exp", "tape_test.cpp", "changed in place", "expected version", "found version"}));
  }
  {
    Tape tape;
    Var x = tape.leaf(f64(1));
    CHECK(tape.backward(exp(x) * 2)[x].item() == doctest::Approx(5.43656365691809).epsilon(1e-12));
  }
  {  // through a transposed view of what was saved
    Tensor data = range({3, 2});
    Tape tape;
    Var w = tape.leaf(range({3, 4}));
    Var loss = sum(matmul(data.transpose(), w));
    data.add_(1);
    CHECK(says(error_of([&] { tape.backward(loss); }), {"backward of matmul", "(2, 3)", "changed in place"}));
  }
  {  // through a slice of the output
    Tape tape;
    Var x = tape.leaf(range({2, 3}));
    Var p = softmax(x);
    Var loss = sum(p * range({2, 3}));
    p.value().slice(1, 0, 1).fill_(0);
    CHECK(says(error_of([&] { tape.backward(loss); }), {"backward of softmax", "changed in place"}));
  }
  {  // a parameter stepped between forward and backward
    Parameter w(f64(3));
    Tape tape;
    Var loss = w * w;
    w.mutable_value().add_(1);
    CHECK(says(error_of([&] { tape.backward(loss); }), {"backward of mul", "changed in place"}));
  }
  {  // a use after the change is refused at once
    Tape tape;
    Tensor data = f64({1, 2});
    Var x = tape.leaf(data);
    data.set({0}, 5);
    CHECK(says(error_of([&] { x + 1; }), {"changed in place", "(2,)"}));
    CHECK(says(error_of([&] { x.item(); }), {"changed in place"}));
  }
  {  // what no rule needs may change
    Parameter w(f64(3));
    Tape tape;
    Var loss = w + 1;
    w.mutable_value().add_(1);
    CHECK(tape.backward(loss)[w].item() == 1);
  }
}

TEST_CASE("detach cuts the future and not the past") {
  Tape tape;
  Var a = tape.leaf(Tensor::zeros({2, 2}, F64));
  Var b = a * 2;
  Var c = sum(b);
  Var cut = b.detach();
  CHECK_FALSE(cut.tracked());
  CHECK(same_bits(tape.backward(c, Keep::tape)[a], Tensor::full({2, 2}, 2, F64)));
  CHECK(same_bits(tape.backward(sum(b * cut + b), Keep::tape)[a], Tensor::full({2, 2}, 2, F64)));
  Var square = sum(a * a);
  Tensor shared = a.detach().value();
  CHECK(shared.shares_storage(a.value()));
  shared.set({0, 0}, 10);
  CHECK(says(error_of([&] { tape.backward(square); }), {"backward of mul", "changed in place"}));
}

// ---- Pausing and nesting --------------------------------------------------------------------------------------

TEST_CASE("NoGrad pauses this thread and restores what was") {
  Tape tape;
  Var x = tape.leaf(range({2, 3}));
  {
    NoGrad pause;
    CHECK(Tape::recording() == nullptr);
    CHECK_FALSE(select(x, 0, 1).tracked());
    CHECK_FALSE(transpose(x).tracked());
    CHECK_FALSE((x * 2).tracked());
    Tensor view = transpose(x * 1).value();
    view.add_(0);
    {
      NoGrad again;
      CHECK_FALSE((x * 2).tracked());
    }
    CHECK_FALSE((x * 2).tracked());
    bool other_thread_records = false;
    std::thread([&] {
      Tape own;
      other_thread_records = (own.leaf(f64(1)) * 2).tracked();
    }).join();
    CHECK(other_thread_records);
  }
  CHECK(Tape::recording() == &tape);
  CHECK((x * 2).tracked());
  try {
    NoGrad pause;
    throw std::runtime_error("out of here");
  } catch (const std::runtime_error&) {}
  CHECK((x * 2).tracked());
  size_t size = tape.size();
  {
    NoGrad pause;
    Parameter p(f64(1));
    CHECK_FALSE(Var(p).tracked());
    CHECK_FALSE((p * x).tracked());
  }
  CHECK(tape.size() == size);
}

TEST_CASE("a tape may end while NoGrad pauses it") {
  auto tape = std::make_unique<Tape>();
  {
    NoGrad pause;
    tape.reset();
  }
  CHECK(Tape::recording() == nullptr);
  Tape outer;
  auto inner = std::make_unique<Tape>();
  {
    NoGrad pause;
    inner.reset();
    CHECK(Tape::recording() == nullptr);
  }
  CHECK(Tape::recording() == &outer);
}

TEST_CASE("tapes nest and an outer value on an inner tape is refused") {
  Tape outer;
  Var x = outer.leaf(f64(3));
  Var y = x * x;
  {
    Tape inner;
    CHECK(Tape::recording() == &inner);
    std::string text = error_of([&] { y * 2; });
    CHECK(says(text, {"mul", "outer tape", "inner tape", "detach()"}));
    Var z = inner.leaf(y.value());
    CHECK(inner.backward(z * z + y.detach())[z].item() == 18);
    CHECK(says(error_of([&] { inner.backward(y); }), {"backward", "another tape"}));
  }
  CHECK(Tape::recording() == &outer);
  Var inside;
  {
    Tape inner;
    inside = inner.leaf(f64(1)) * 2;
  }
  CHECK(says(error_of([&] { y + inside; }), {"add", "ended", "detach()"}));
  CHECK(outer.backward(y * 2)[x].item() == 12);
}

TEST_CASE("both tapes are named by their numbers") {
  Tape outer;
  Var x = outer.leaf(f64(1));
  Tape inner;
  std::string text = error_of([&] { x * 2; });
  auto number_after = [&](const std::string& words) {
    size_t at = text.find(words);
    return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + words.size());
  };
  CHECK(number_after("outer tape ") > 0);
  CHECK(number_after("inner tape ") > number_after("outer tape "));
}

TEST_CASE("tapes may end in any order") {
  auto outer = std::make_unique<Tape>();
  auto middle = std::make_unique<Tape>();
  auto inner = std::make_unique<Tape>();
  Var x = inner->leaf(f64(2));
  middle.reset();
  CHECK(Tape::recording() == inner.get());
  outer.reset();
  CHECK(Tape::recording() == inner.get());
  CHECK(live_nodes() == 1);
  CHECK(inner->backward(x * x)[x].item() == 4);
  inner.reset();
  CHECK(Tape::recording() == nullptr);
  CHECK(live_nodes() == 0);
  outer = std::make_unique<Tape>();
  inner = std::make_unique<Tape>();
  inner.reset();
  CHECK(Tape::recording() == outer.get());
  {
    NoGrad pause;
    Tape brief;
    CHECK(Tape::recording() == &brief);
  }
  CHECK(Tape::recording() == outer.get());
}

TEST_CASE("a tape that throws its way out leaves nothing behind") {
  int64_t bytes = live_bytes();
  try {
    Tape tape;
    Scope scope("somewhere");
    NoGrad pause;
    Tape inner;
    Var x = inner.leaf(f64({1, 2}));
    UserSite site{Operand(x)};
    x + Var(f64({1, 2, 3}));
    FAIL("shapes (2,) and (3,) were added");
  } catch (const Error&) {}
  CHECK(Tape::recording() == nullptr);
  CHECK(live_nodes() == 0);
  CHECK(live_bytes() == bytes);
  Tape tape;
  const int here = __LINE__ + 1;
  Var y = tape.leaf(f64(1)) * 2;
  CHECK(tape.node(y).scope == "");
  CHECK(tape.node(y).user_site.line == here);
}

TEST_CASE("a rule that throws is named and recording goes on") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2}));
  Var bad = with_rule(x, [](const Var&) -> Var { fail("this rule fails"); });
  CHECK(says(error_of([&] { tape.backward(sum(bad), Keep::tape); }), {"backward of with_rule", "this rule fails"}));
  CHECK(Tape::recording() == &tape);
  CHECK_FALSE(tape.consumed());
  CHECK(same_bits(tape.backward(sum(x * 2), Keep::tape)[x], f64({2, 2})));
  CHECK_THROWS_AS(grad(sum(bad), {x}, {.create_graph = true}), Error);
  CHECK(Tape::recording() == &tape);
  Var other = with_rule(x, [](const Var&) -> Var { throw std::runtime_error("not one of ours"); });
  CHECK_THROWS_AS(tape.backward(sum(other), Keep::tape), std::runtime_error);
  CHECK(Tape::recording() == &tape);
  CHECK_THROWS_AS(tape.backward(sum(bad)), Error);  // not kept: half freed, so used up
  CHECK(says(error_of([&] { tape.backward(sum(x)); }), {"consumed"}));
}

TEST_CASE("a rule that returns another shape or dtype is named") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2}));
  Var wide = with_rule(x, [](const Var&) { return Var(f64({1, 2, 3})); });
  CHECK(says(error_of([&] { tape.backward(sum(wide), Keep::tape); }), {"with_rule", "f64", "(2,)", "(3,)"}));
  Var single = with_rule(x, [](const Var&) { return Var(f32({1, 2})); });
  CHECK(says(error_of([&] { tape.backward(sum(single), Keep::tape); }), {"with_rule", "f64", "f32"}));
  Var scalar = with_rule(x, [](const Var&) { return Var(f64(1)); });
  CHECK_THROWS_AS(tape.backward(sum(scalar), Keep::tape), Error);
  Var batch = with_rule(x, [](const Var&) { return Var(f64({{1, 2}, {3, 4}})); });  // broadcast: summed back
  CHECK(same_bits(tape.backward(sum(batch))[x], f64({4, 6})));
}

TEST_CASE("values of another thread's tape are refused") {
  Tape tape;
  Var x = tape.leaf(f64(2));
  Var y = x * 3;
  std::string text, grad_text;
  double value = 0;
  std::thread([&] {
    Tape own;
    text = error_of([&] { y * 2; });
    grad_text = error_of([&] { grad(y, {x}); });
    value = y.item();
  }).join();
  CHECK(says(text, {"mul", "another thread", "detach()"}));
  CHECK(says(grad_text, {"grad", "another thread"}));
  CHECK(value == 6);
  CHECK(tape.backward(y)[x].item() == 3);
}

// ---- Derivatives of any values, and of higher order -----------------------------------------------------------

TEST_CASE("grad goes to intermediate values and says what y does not depend on") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2})), other = tape.leaf(f64(1));
  Var h = x * x, y = sum(h * h * 3), after = h + 1;
  std::vector<Var> g = grad(y, {h, x, h});
  CHECK(values(g[0].value()) == std::vector<double>{6, 24});
  CHECK(values(g[1].value()) == std::vector<double>{12, 96});
  CHECK(same_bits(g[2].value(), g[0].value()));
  CHECK_FALSE(g[0].tracked());
  CHECK(says(error_of([&] { grad(y, {x, other}); }), {"grad", "input 1", "allow_unused"}));
  CHECK(says(error_of([&] { grad(y, {after}); }), {"grad", "input 0", "(2,)"}));
  CHECK(says(error_of([&] { grad(y, {Var(f64(1))}); }), {"grad", "constant", "tape.leaf()"}));
  CHECK(says(error_of([&] { grad(h, {x}); }), {"grad", "one element", "(2,)"}));
  CHECK(says(error_of([&] { grad(Var(f64(1)), {x}); }), {"grad", "not on a tape"}));
  g = grad(y, {other, x}, {.allow_unused = true});
  CHECK_FALSE(g[0].defined());
  CHECK(g[1].defined());
  g = grad(h, {x}, {.seed = Var(f64({1, 10}))});
  CHECK(values(g[0].value()) == std::vector<double>{2, 40});
  Parameter p(f64(5));
  Var z = p * x;
  CHECK(grad(sum(z), {p})[0].item() == 3);
  CHECK_FALSE(tape.consumed());
}

TEST_CASE("derivatives to third order agree with closed forms") {
  for (double at : {-1.25, 0.3, 0.9}) {
    Tape tape;
    Var x = tape.leaf(f64(at));
    Var y = x * x * x * tanh(x);
    Var first = grad(y, {x}, {.create_graph = true})[0];
    Var second = grad(first, {x}, {.create_graph = true})[0];
    Var third = grad(second, {x})[0];
    double t = std::tanh(at), s = 1 - t * t, s1 = -2 * t * s, s2 = -2 * s * s - 2 * t * s1;
    CHECK(first.item() == doctest::Approx(3 * at * at * t + at * at * at * s).epsilon(1e-12));
    CHECK(second.item() == doctest::Approx(6 * at * t + 6 * at * at * s + at * at * at * s1).epsilon(1e-12));
    CHECK(third.item() == doctest::Approx(6 * t + 18 * at * s + 9 * at * at * s1 + at * at * at * s2).epsilon(1e-12));
    CHECK(first.tracked());
    CHECK_FALSE(third.tracked());
    Gradients g = tape.backward(second);  // a gradient is a loss like any other
    CHECK(g[x].item() == doctest::Approx(third.item()).epsilon(1e-14));
  }
}

TEST_CASE("a gradient penalty reaches the parameters") {
  // loss = |d/dx sum(tanh(x w))|^2, by differences in w.
  Tensor value = f64({0.3, -0.7});
  Parameter w(f64({0.5, 1.5}));
  auto penalty = [&](Gradients* g) {
    Tape tape;
    Var x = tape.leaf(value);
    Var slope = grad(sum(tanh(x * w)), {x}, {.create_graph = true})[0];
    Var loss = sum(slope * slope);
    double result = loss.item();
    if (g) *g = tape.backward(loss);
    return result;
  };
  Gradients g;
  penalty(&g);
  for (int64_t i = 0; i < 2; ++i) {
    double kept = w.value().at({i}), h = 1e-5;
    w.mutable_value().set({i}, kept + h);
    double up = penalty(nullptr);
    w.mutable_value().set({i}, kept - h);
    double down = penalty(nullptr);
    w.mutable_value().set({i}, kept);
    CHECK(g[w].at({i}) == doctest::Approx((up - down) / (2 * h)).epsilon(1e-7));
  }
}

TEST_CASE("the backward pass is recorded only when asked for") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2, 3}));
  Var y = sum(exp(x) * tanh(x));
  size_t size = tape.size();
  grad(y, {x});
  tape.backward(y, Keep::tape);
  CHECK(tape.size() == size);
  grad(y, {x}, {.create_graph = true});
  CHECK(tape.size() > size);
  Tape inner;
  Var z = inner.leaf(f64(1));
  Var v = z * z;
  CHECK(Tape::recording() == &inner);
  inner.backward(v);
  CHECK(Tape::recording() == &inner);
}

// ---- Parameters -----------------------------------------------------------------------------------------------

TEST_CASE("a parameter is an identity and its copies share it") {
  Parameter p(f64({1, 2}));
  Parameter copy = p, other(f64({1, 2}));
  CHECK(copy.id() == p.id());
  CHECK(other.id() != p.id());
  copy.mutable_value().set({0}, 7);
  CHECK(p.value().at({0}) == 7);
  Tape tape;
  Gradients g = tape.backward(sum(p * copy + other), Keep::tape);
  CHECK(g.size() == 2);
  CHECK(values(g[p]) == std::vector<double>{14, 4});
  CHECK(&g[p] == &g[copy]);
  other = p;  // tied from here on
  CHECK(other.id() == p.id());
  CHECK(tape.backward(sum(other * p))[p].at({1}) == 4);
  Parameter absent;
  CHECK_FALSE(absent.defined());
  CHECK(says(error_of([&] { absent.value(); }), {"parameter", "absent"}));
  CHECK(says(error_of([&] { sum(absent); }), {"parameter", "absent"}));
  CHECK_THROWS_AS(Parameter{Tensor()}, Error);
}

TEST_CASE("a copy of gradients has tensors of its own") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2}));
  Gradients g = tape.backward(sum(x * x)), copy = g, assigned;
  assigned = g;
  Tensor held = copy[x];
  held.mul_(5);
  CHECK(values(g[x]) == std::vector<double>{2, 4});
  CHECK(values(copy[x]) == std::vector<double>{10, 20});
  CHECK(values(assigned[x]) == std::vector<double>{2, 4});
}

TEST_CASE("live parameters are those with a holder") {
  std::vector<uint64_t> before = live_parameters();
  {
    Parameter a(f64(1)), b(f64(2));
    Parameter copy = a;
    std::vector<uint64_t> now = live_parameters();
    CHECK(now.size() == before.size() + 2);
    CHECK(std::is_sorted(now.begin(), now.end()));
    a = b;
    CHECK(live_parameters().size() == before.size() + 2);  // the copy holds the first
    copy = b;
    CHECK(live_parameters().size() == before.size() + 1);
    Tape tape;
    Var y = b * 2;
    b = copy = a = Parameter();
    CHECK(live_parameters().size() == before.size() + 1);  // the tape holds its leaf
  }
  CHECK(live_parameters() == before);
  Gradients g;
  {
    Parameter a(f64(1));
    Tape tape;
    g = tape.backward(a * 2);
  }
  CHECK(live_parameters().size() == before.size() + 1);  // so do gradients
  CHECK(g.begin()->parameter.value().item() == 1);
  g = Gradients();
  CHECK(live_parameters() == before);
}

TEST_CASE("a clone is independent and keeps ties") {
  Parameter shared(f64({1, 2}));
  Pair tied{shared, shared}, untied{shared, Parameter(f64({1, 2}))};
  Pair copy = clone(tied), other = clone(untied);
  CHECK(copy.a.id() == copy.b.id());
  CHECK(copy.a.id() != tied.a.id());
  CHECK(other.a.id() != other.b.id());
  copy.a.mutable_value().fill_(9);
  CHECK(values(tied.a.value()) == std::vector<double>{1, 2});
  CHECK(values(copy.b.value()) == std::vector<double>{9, 9});
  Tape tape;
  Gradients g = tape.backward(sum(tied.a * copy.a));
  CHECK(values(g[shared]) == std::vector<double>{9, 9});
  CHECK(values(g[copy.b]) == std::vector<double>{1, 2});
}

TEST_CASE("one leaf a parameter and tape") {
  Parameter p(f64(2));
  Tape tape;
  Var first = p * 3, second = p * 4;
  CHECK(tape.size() == 3);
  CHECK(tape.node(first).inputs == tape.node(second).inputs);
  CHECK(tape.node(0).op == "parameter");
  Tape inner;
  CHECK(inner.backward(p * p)[p].item() == 4);
  Parameter ids(tensor({1, 2}));  // a table of numbers that nobody trains
  CHECK_FALSE(Var(ids).tracked());
}

TEST_CASE("two threads train on the same parameters with a tape each") {
  Parameter w(normal({16, 16}, F64, 1)), b(normal({16}, F64, 2));
  const Tensor inputs[] = {normal({8, 16}, F64, 3), normal({8, 16}, F64, 4)};
  auto gradients = [&](const Tensor& input) {
    Tape tape;
    Scope scope("step");
    Var loss = mean(tanh(linear(tanh(linear(input, w, b)), w, b)));
    return tape.backward(loss);
  };
  Gradients serial[] = {gradients(inputs[0]), gradients(inputs[1])};
  for (int round = 0; round < 20; ++round) {
    Gradients parallel[2];
    std::thread threads[] = {std::thread([&] { parallel[0] = gradients(inputs[0]); }),
                             std::thread([&] { parallel[1] = gradients(inputs[1]); })};
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < 2; ++i) {
      CHECK(same_bits(parallel[i][w], serial[i][w]));
      CHECK(same_bits(parallel[i][b], serial[i][b]));
    }
    parallel[0] += parallel[1];
    CHECK(close(parallel[0][w], serial[0][w].clone().add_(serial[1][w]), 1e-15));
  }
}

// ---- For study ------------------------------------------------------------------------------------------------

TEST_CASE("nodes know their op and shape and inputs") {
  Tape tape;
  Var x = tape.leaf(range({2, 3}, DType::f32)), c = Var(range({3, 2}, DType::f32));
  Var y = matmul(x, c);
  Var z = y + y;
  CHECK(tape.size() == 3);
  NodeInfo info = tape.node(y);
  CHECK(info.op == "matmul");
  CHECK(info.shape == Shape{2, 2});
  CHECK(info.dtype == DType::f32);
  CHECK(info.inputs == std::vector<uint32_t>{0});  // the constant is not one
  CHECK(tape.node(z).inputs == std::vector<uint32_t>{1, 1});
  CHECK(tape.node(x).op == "leaf");
  CHECK(tape.node(2).op == "add");
  CHECK(says(error_of([&] { tape.node(3); }), {"node", "3"}));
  CHECK(says(error_of([&] { tape.node(c); }), {"node", "not on this tape"}));
  CHECK(live_nodes() == 3);
  Tape inner;
  inner.leaf(f64(1));
  CHECK(live_nodes() == 4);
  CHECK(says(error_of([&] { inner.node(y); }), {"node", "not on this tape"}));
}

TEST_CASE("scopes give nodes a path") {
  Tape tape;
  Var x = tape.leaf(f64(1));
  CHECK(tape.node(x).scope == "");
  {
    Scope decoder("decoder");
    Var a = x * 2;
    CHECK(tape.node(a).scope == "decoder");
    for (int64_t t = 0; t < 3; ++t) {
      Scope step("step", t);
      Var b = x * 2;
      CHECK(tape.node(b).scope == fmt::format("decoder/step[{}]", t));
      Scope attention("attention");
      Scope deeper("scores");
      CHECK(tape.node(x * 3).scope == fmt::format("decoder/step[{}]/attention/scores", t));
    }
    CHECK(tape.node(x * 2).scope == "decoder");
    CHECK(tape.node(a).scope == "decoder");
  }
  CHECK(tape.node(x * 2).scope == "");
}

TEST_CASE("scopes follow nested tapes in and out") {
  Scope whole("whole");
  Tape outer;
  Var x = outer.leaf(f64(1));
  CHECK(outer.node(x).scope == "whole");
  {
    Scope part("part", 1);
    {
      Tape inner;
      Var y = inner.leaf(f64(1));
      CHECK(inner.node(y).scope == "whole/part[1]");
      Scope deep("deep");
      CHECK(inner.node(y * 2).scope == "whole/part[1]/deep");
      {
        Tape third;
        CHECK(third.node(third.leaf(f64(1))).scope == "whole/part[1]/deep");
      }
      CHECK(inner.node(y * 2).scope == "whole/part[1]/deep");
      CHECK(inner.node(y).scope == "whole/part[1]");
    }
    CHECK(outer.node(x * 2).scope == "whole/part[1]");
    Tape inner;
    CHECK(inner.node(inner.leaf(f64(1))).scope == "whole/part[1]");
    Scope late("late");
    CHECK(inner.node(inner.leaf(f64(1))).scope == "whole/part[1]/late");
  }
  CHECK(outer.node(x * 2).scope == "whole");
  CHECK(outer.node(x).scope == "whole");
}

// clang-format off
  TEST_CASE("nodes know the line that made them") {
    Tape tape;
    Var x = tape.leaf(f64({1, 2})); const int leaf_line = __LINE__;
    Parameter p(f64({1, 2}));
    Tensor c = f64({3, 4});
    struct Made { const char* what; Var y; int line; };
    std::vector<Made> made;
    auto add = [&](const char* what, Var y, int line) { made.push_back({what, std::move(y), line}); };
    add("operator", x * x, __LINE__);
    add("number on the left", 2 * x, __LINE__);
    add("number on the right", x / 2, __LINE__);
    add("tensor on the left", c - x, __LINE__);
    add("parameter", p + c, __LINE__);
    add("unary minus", -x, __LINE__);
    add("function", tanh(x), __LINE__);
    add("function of a parameter", exp(p), __LINE__);
    add("reduction", sum(x, 0), __LINE__);
    add("matmul", matmul(unsqueeze(x, 1), unsqueeze(x, 0)), __LINE__);
    add("bmm", bmm(reshape(x, {1, 1, 2}), reshape(c, {1, 2, 1})), __LINE__);
    add("reshape", reshape(x, {2, 1}), __LINE__);
    add("slice", slice(x, 0, 0, 1), __LINE__);
    add("cat with braces", cat({x, x}), __LINE__);
    add("cat with a constant first", cat({Var(c), x}), __LINE__);
    add("stack with braces", stack({x, x}), __LINE__);
    add("cat of a vector", cat(std::vector<Var>{x, x}), __LINE__);
    add("stack of a vector", stack(std::vector<Var>{x, x}), __LINE__);
    add("where", where(x > 1, x, 0), __LINE__);
    add("masked softmax", masked_softmax(x, tensor({true, false})), __LINE__);
    for (const Made& m : made) {
      CAPTURE(m.what);
      NodeInfo info = tape.node(m.y);
      CHECK(in_this_file(info.site));
      CHECK(info.site.line == m.line);
      CHECK(info.user_site.line == m.line);
    }
    Var dot = matmul(x, c); const int dot_line = __LINE__;  // several ops inside
    CHECK(tape.node(dot).user_site.line == dot_line);
    CHECK(in_this_file(tape.node(dot).user_site));
    CHECK(tape.node(x).site.line == leaf_line);
    CHECK(in_this_file(tape.node(x).site));
    // In one line with several ops every node gets that line.
    uint32_t first = static_cast<uint32_t>(tape.size());
    Var y = tanh(x * 2 + p) - sigmoid(sum(x)); const int line = __LINE__;
    for (uint32_t id = first; id < tape.size(); ++id) CHECK(tape.node(id).site.line == line);
    CHECK(tape.node(y).op == "sub");
  }

  TEST_CASE("composites keep the inner line and the user's line") {
    Tape tape;
    Var logits = tape.leaf(range({2, 3}));
    uint32_t first = static_cast<uint32_t>(tape.size());
    Var loss = cross_entropy(logits, tensor({0, 2})); const int line = __LINE__;
    CHECK(tape.size() > first + 2);
    for (uint32_t id = first; id < tape.size(); ++id) {
      NodeInfo info = tape.node(id);
      CAPTURE(info.op);
      CHECK(in_this_file(info.user_site));
      CHECK(info.user_site.line == line);
      if (id > first) CHECK(std::string_view(info.site.file).ends_with("loss.cpp"));  // the first still reads logits
    }
    Var outer;
    int call_line = 0;
    {
      UserSite site{Site{"model.py", 7}};  // the first one on the way in wins
      UserSite nested{Operand(logits)};
      outer = cross_entropy(logits, tensor({0, 2})); call_line = __LINE__;
      CHECK(tape.node(outer).user_site.line == 7);
      outer = logits * 2; call_line = __LINE__;
    }
    CHECK(tape.node(outer).site.line == call_line);
    CHECK(std::string(tape.node(outer).user_site.file) == "model.py");
    CHECK(tape.node(logits * 2).user_site.line == __LINE__);
    CHECK(loss.tracked());
  }
// clang-format on

TEST_CASE("every op passes the hook with its name") {
  seen_ops.clear();
  detail::on_op = [](const char* op) { seen_ops.emplace_back(op); };
  Var x = Var(f64({1, 2}));
  Var y = exp(x) * 2 > 1;  // no tape: ops run all the same
  detail::on_op = nullptr;
  exp(x);
  CHECK(seen_ops == std::vector<std::string>{"exp", "mul", "gt"});
}

TEST_CASE("without a tape nothing is recorded") {
  CHECK(Tape::recording() == nullptr);
  Parameter p(f64(2));
  Var y = p * p;
  CHECK(y.item() == 4);
  CHECK_FALSE(y.tracked());
  CHECK(live_nodes() == 0);
  Tape tape;
  CHECK_FALSE((y + 1).tracked());  // constants only: no node
  CHECK(tape.size() == 0);
  CHECK(says(error_of([&] { tape.backward(y); }), {"before the tape began"}));
}

TEST_CASE("operands say what is wrong with them") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2}));
  CHECK(says(error_of([&] { x + f32({1, 2}); }), {"add", "f64", "f32", ".to()"}));
  CHECK(says(error_of([&] { x* tensor({1, 2}); }), {"mul", "f64", "i64"}));
  CHECK(says(error_of([&] { Var(tensor({1, 2})) * 0.5; }), {"mul", "0.5", "i64"}));
  CHECK(says(error_of([&] { x + f64({1, 2, 3}); }), {"add", "(2,)", "(3,)", "axis -1"}));
  CHECK_THROWS_AS(x + Var(), Error);
  CHECK((2 * x).dtype() == F64);
  CHECK((1 + Var(f32({1}))).dtype() == DType::f32);
  CHECK((Var(tensor({1, 2})) * 2).dtype() == DType::i64);
}
}
