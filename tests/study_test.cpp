// What a tape shows of itself: traces, the NaN watch, hooks, profiles, exports, explanations, and derivatives of any
// function as a second oracle.
#include "op_samples.h"
#include "testing.h"

#include <tapedeck/core/derivatives.h>
#include <tapedeck/core/export.h>
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/nn/optim.h>
#include <tapedeck/ops/ops.h>

#include <pthread.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

using namespace tapedeck;
using namespace tapedeck::testing;
using nlohmann::json;

namespace {

using Map = std::function<Var(const Var&)>;  // tapedeck::Function

constexpr DType F64 = DType::f64;

std::string here(int line) { return "study_test.cpp:" + std::to_string(line); }

// A model whose tape has views, fused ops, slices with short cuts, lookups and nested scopes.
struct Small {
  Seq2SeqAttention model;
  Batch batch;
  explicit Small(DType dtype = F64) : model(make(dtype)) {
    const std::vector<Sequence> source{{3, 4, 3, 5}, {6, 3}}, target{{5, 3, 4, 3}, {3, 6}};
    batch = make_batch(source, target);
  }
  Var loss() const { return model.loss(batch); }
  static Seq2SeqAttention make(DType dtype) {
    Rng rng(5);
    return Seq2SeqAttention({.vocabulary = 8, .d_model = 4, .dtype = dtype}, rng);
  }
};

std::vector<Tensor> tensors(const Gradients& grads) {
  std::vector<Tensor> all;
  for (const Gradients::Entry& entry : grads) all.push_back(entry.value);
  return all;
}

bool all_same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same_bits);
}

// The nodes that read a node, and with which edge.
std::vector<std::vector<std::pair<uint32_t, size_t>>> readers(const Tape& tape) {
  std::vector<std::vector<std::pair<uint32_t, size_t>>> all(tape.size());
  for (uint32_t id = 0; id < tape.size(); ++id) {
    const std::vector<uint32_t> inputs = tape.node(id).inputs;
    for (size_t e = 0; e < inputs.size(); ++e) all[inputs[e]].push_back({id, e});
  }
  return all;
}

int64_t saved_bytes(const Tape& tape, const Var& y) {
  int64_t bytes = 0;
  for (const SavedValue& saved : tape.traced(tape.id(y)).saved) bytes += saved.bytes;
  return bytes;
}

// x with a gradient made by `rule`.
template <class Rule>
Var with_rule(Operand x, Rule rule) {
  return record("with_rule", x.value().clone(), Input{x, rule});
}

// ---- JSON and DOT as others read them

Tensor tensor_of(const json& flat, const std::vector<int64_t>& extents, DType dtype) {
  Shape shape;
  for (int64_t extent : extents) shape.push_back(extent);
  std::vector<double> data;
  for (const json& v : flat) {
    if (v.is_number()) {
      data.push_back(v.get<double>());
    } else {
      const std::string text = v;
      data.push_back(text == "nan" ? not_a_number : text == "inf" ? inf : text == "-inf" ? -inf : HUGE_VAL);
    }
  }
  return Tensor::from(data, shape).to(dtype);
}

bool same_file(const json& site, const Site& expected) {
  if (!expected.file) return site.is_null();
  return site["file"] == expected.file && site["line"] == expected.line;
}

struct Dot {
  struct Box {
    std::string label, shape;
    std::vector<std::string> clusters;  // labels, outermost first
  };
  std::map<std::string, Box> boxes;
  std::vector<std::pair<std::string, std::string>> edges;
  std::multiset<std::string> clusters;
};

// Reads the subset that to_dot writes, one statement a line; fails on anything else.
Dot read_dot(const std::string& text) {
  static const std::string id = R"re((\w+|"(?:[^"\\]|\\.)*"))re";
  static const std::regex edge(id + " -> " + id), label("label=(\"(?:[^\"\\\\]|\\\\.)*\")"),
      box(id + R"re( \[((?:[^"\]]|"(?:[^"\\]|\\.)*")*)\])re"), shape("shape=(\\w+)");
  Dot dot;
  std::vector<std::string> open;
  std::istringstream in(text);
  std::string line;
  REQUIRE(std::getline(in, line));
  REQUIRE(line == "digraph tape {");
  bool ended = false;
  for (std::smatch m; std::getline(in, line);) {
    INFO(line);
    REQUIRE_FALSE(ended);
    if (line == "}") {
      if (open.empty()) {
        ended = true;
      } else {
        open.pop_back();
      }
    } else if (line.starts_with("subgraph cluster") && line.ends_with(" {")) {
      REQUIRE(std::getline(in, line));
      REQUIRE(std::regex_match(line, m, label));
      open.push_back(m[1]);
      std::string path;
      for (const std::string& part : open) path += part;
      dot.clusters.insert(path);
    } else if (std::regex_match(line, m, edge)) {
      dot.edges.push_back({m[1], m[2]});
    } else if (line.starts_with("node [") || line == "rankdir=LR") {
    } else {
      REQUIRE(std::regex_match(line, m, box));
      const std::string name = m[1], attributes = m[2];
      REQUIRE(std::regex_search(attributes, m, label));
      Dot::Box made{m[1], "", open};
      if (std::regex_search(attributes, m, shape)) made.shape = m[1];
      REQUIRE(dot.boxes.emplace(name, made).second);
    }
  }
  REQUIRE(ended);
  for (const auto& edge_found : dot.edges) {
    INFO(edge_found.first << " -> " << edge_found.second);
    REQUIRE(dot.boxes.count(edge_found.first) == 1);
    REQUIRE(dot.boxes.count(edge_found.second) == 1);
  }
  return dot;
}

// ---- Functions of one tensor for the derivatives

double dot(const Tensor& a, const Tensor& b) {
  const std::vector<double> u = values(a), v = values(b);
  REQUIRE(u.size() == v.size());
  double total = 0;
  for (size_t i = 0; i < u.size(); ++i) total += u[i] * v[i];
  return total;
}

Tensor row(const Tensor& matrix, int64_t i) { return matrix.select(0, i).clone(); }

}  // namespace

TEST_SUITE("study") {
// ---- Trace ----------------------------------------------------------------------------------------------------

TEST_CASE("a traced run has the values and gradients of an untraced one bit for bit") {
  for (DType dtype : {DType::f32, F64}) {
    CAPTURE(dtype);
    const Small small(dtype);
    auto run = [&](const TapeOptions& options) {
      Tape tape(options);
      Var loss = small.loss();
      std::vector<Tensor> all = tensors(tape.backward(loss));
      all.push_back(loss.value());
      return all;
    };
    const std::vector<Tensor> plain = run({});
    CHECK(all_same_bits(run({.trace = Trace::on}), plain));
    CHECK(all_same_bits(run({.anomaly = Anomaly::on}), plain));
    CHECK(all_same_bits(run({.profile = Profile::on}), plain));
    CHECK(all_same_bits(run({Trace::on, Anomaly::on, Profile::on}), plain));
  }
}

TEST_CASE("lookups and slices of one tensor add up in the same order when traced") {
  auto gradient = [](const TapeOptions& options) {
    Tape tape(options);
    Var table = tape.leaf(normal({5, 3}, DType::f32, 1)), y = tape.leaf(normal({3}, DType::f32, 2));
    Var total = y;
    for (int64_t k = 0; k < 6; ++k) {
      Var rows = embedding(table, tensor({k % 3, 2, 2, (k + 1) % 5}));
      total = total + sum(rows * normal({4, 3}, DType::f32, 10 + static_cast<uint64_t>(k)), {0});
      total = total + select(table, 0, k % 5) * normal({3}, DType::f32, 20 + static_cast<uint64_t>(k));
    }
    return tensors(tape.backward(sum(total)));
  };
  CHECK(all_same_bits(gradient({.trace = Trace::on}), gradient({})));
  CHECK(all_same_bits(gradient({.anomaly = Anomaly::on}), gradient({})));
}

TEST_CASE("studying adds no nodes and an ordinary tape keeps nothing") {
  const Small small;
  auto nodes = [&](const TapeOptions& options) {
    Tape tape(options);
    small.loss();
    return tape.size();
  };
  const size_t plain = nodes({});
  CHECK(nodes({Trace::on, Anomaly::on, Profile::on}) == plain);

  Tape tape;
  CHECK_FALSE(tape.studies());
  CHECK_FALSE(tape.traces());
  Var x = tape.leaf(f64({1, 2}));
  CHECK(says(error_of([&] { tape.traced(tape.id(x)); }), {"trace", "not made for it"}));
  CHECK(says(error_of([&] { tape.profile(); }), {"profile", "not made for it"}));
  Tape other(Profile::on);
  CHECK(says(error_of([&] { other.traced(0); }), {"trace", "not made for it"}));
}

TEST_CASE("a trace holds each node's value and the gradient that grad gives") {
  const Small small;
  Tape tape(Trace::on);
  Var loss = small.loss();
  const uint32_t recorded = static_cast<uint32_t>(tape.size());
  tape.backward(loss, Keep::tape);
  std::vector<Tensor> traced;
  for (uint32_t id = 0; id < recorded; ++id) {
    REQUIRE(tape.traced(id).value.shape() == tape.node(id).shape);
    traced.push_back(tape.traced(id).gradient);
  }
  CHECK(same_bits(tape.traced(tape.id(loss)).value, loss.value()));
  CHECK(same_bits(tape.traced(tape.id(loss)).gradient, Tensor::full({}, 1, F64)));
  // Against a tape that is not traced, on which the same nodes are asked for as hooks.
  Tape plain;
  Var again = small.loss();
  REQUIRE(plain.size() == recorded);
  std::vector<Tensor> seen(recorded);
  // Parameters and the loss have Vars to hang hooks on.
  std::map<uint32_t, Parameter> parameters;
  for (const NamedParameter& p : named_parameters(small.model))
    parameters.emplace(plain.id(Var(p.parameter)), p.parameter);
  CHECK(plain.size() == recorded);
  Gradients grads = plain.backward(again);
  for (const auto& [id, parameter] : parameters) {
    REQUIRE(traced[id].defined());
    CHECK(same_bits(traced[id], grads[parameter]));
    CHECK(same_bits(tape.traced(id).value, parameter.value()));
  }
}

TEST_CASE("contributions sum up to the gradient of the input") {
  const Small small;
  Tape tape(TapeOptions{.trace = Trace::on, .fused = Fused::definitions});
  Var loss = small.loss();
  tape.backward(loss);
  int several = 0;
  const auto all = readers(tape);
  for (uint32_t id = 0; id < tape.size(); ++id) {
    if (id == tape.id(loss)) continue;
    const Tensor gradient = tape.traced(id).gradient;
    Tensor sum;
    int terms = 0;
    for (auto [reader, edge] : all[id]) {
      const std::vector<Tensor>& passed = tape.traced(reader).contributions;
      if (passed.empty() || !passed[edge].defined()) continue;
      REQUIRE(passed[edge].shape() == tape.node(id).shape);
      if (++terms == 1) {
        sum = passed[edge].clone();
      } else {
        sum.add_(passed[edge]);
      }
    }
    CAPTURE(id);
    REQUIRE(gradient.defined() == sum.defined());
    if (!sum.defined()) continue;
    CHECK(close(sum, gradient, 1e-14));
    several += terms > 1;
  }
  CHECK(several > 10);
}

TEST_CASE("a pass forgets the gradients of the pass before") {
  Tape tape(Trace::on);
  Var x = tape.leaf(f64({1, 2})), y = tape.leaf(f64({3, 4}));
  Var a = sum(x * x), b = sum(y * y);
  tape.backward(a, Keep::tape);
  CHECK(same_bits(tape.traced(tape.id(x)).gradient, f64({2, 4})));
  CHECK_FALSE(tape.traced(tape.id(y)).gradient.defined());
  grad(b, {y});
  CHECK_FALSE(tape.traced(tape.id(x)).gradient.defined());
  CHECK_FALSE(tape.traced(tape.id(a)).gradient.defined());
  CHECK(tape.traced(tape.id(a)).contributions.empty());
  CHECK(same_bits(tape.traced(tape.id(y)).gradient, f64({6, 8})));
}

TEST_CASE("a recorded pass shows the gradients of the nodes before it only") {
  const Small small;
  Tape tape(Trace::on);
  Var loss = small.loss();
  const uint32_t recorded = static_cast<uint32_t>(tape.size());
  const Var weight = small.model.out.weight;
  grad(loss, {weight}, {.create_graph = true});
  CHECK(tape.size() > recorded);
  CHECK(tape.traced(tape.id(weight)).gradient.defined());
  for (uint32_t id = recorded; id < tape.size(); ++id) REQUIRE_FALSE(tape.traced(id).gradient.defined());
}

TEST_CASE("an optimiser's step leaves a trace as it was") {
  Small small;
  Tape tape(Trace::on);
  Var loss = small.loss();
  Gradients grads = tape.backward(loss);
  const uint32_t id = tape.id(Var(small.model.out.weight));
  const Tensor before = small.model.out.weight.value().clone(), gradient = tape.traced(id).gradient.clone();
  Adam(small.model, {.lr = .1}).step(grads);
  CHECK_FALSE(same_bits(small.model.out.weight.value(), before));
  CHECK(same_bits(tape.traced(id).value, before));
  CHECK(same_bits(tape.traced(id).gradient, gradient));
}

TEST_CASE("saved values are those that the rules hold") {
  Tape tape(Trace::on);
  Var a = tape.leaf(f64({{1, 2, 3}, {4, 5, 6}})), b = tape.leaf(f64({7, 8, 9}));
  auto saved = [&](const Var& y) { return tape.traced(tape.id(y)).saved; };
  CHECK(saved(a).empty());
  Var t = tanh(a);
  REQUIRE(saved(t).size() == 1);
  CHECK(saved(t)[0].output);
  CHECK(saved(t)[0].shape == Shape{2, 3});
  CHECK(saved(t)[0].bytes == 48);
  Var m = a * b;
  REQUIRE(saved(m).size() == 2);
  CHECK_FALSE(saved(m)[0].output);
  CHECK(saved_bytes(tape, m) == 48 + 24);
  CHECK(saved(a + b).empty());
  CHECK(saved_bytes(tape, a * f64({1, 2, 3})) == 24);  // the constant has no rule, so a is not kept
  CHECK(saved_bytes(tape, a * a) == 48);               // both rules hold the same value
  CHECK(saved_bytes(tape, square(a)) == 48);
  CHECK(saved(transpose(a)).empty());
  CHECK(saved_bytes(tape, exp(a)) == 48);
  CHECK(saved_bytes(tape, softmax(a)) == 48);
  Tensor x32 = normal({4}, DType::f32, 1);
  CHECK(saved_bytes(tape, sigmoid(tape.leaf(x32))) == 16);
}

TEST_CASE("a fused op keeps its output and inputs and what its kernel saved") {
  Tape tape(Trace::on);
  Var a = tape.leaf(f64({1, 2, 3}));
  Var y = record_fused(
      "tripled", {a}, FusedValue{mul(a.value(), 3.0).value(), {f64({1, 2})}},
      [](const FusedPass& pass) { return std::vector{mul(pass.g, 3.0).value()}; },
      [](std::span<const Var> x) { return x[0] * 3.0; });
  CHECK(saved_bytes(tape, y) == 24 + 24 + 16);
  CHECK(tape.traced(tape.id(y)).saved[0].output);
  tape.backward(sum(y));
  CHECK(same_bits(tape.traced(tape.id(y)).contributions[0], f64({3, 3, 3})));
}

// ---- Anomaly --------------------------------------------------------------------------------------------------

TEST_CASE("no anomaly on clean runs and with masked values") {
  const Small small;
  Tape tape(Anomaly::on);
  Var loss = small.loss();
  CHECK(tape.backward(loss).size() > 0);
  Tape other(Anomaly::on);
  Var scores = other.leaf(f64({{1, 2, 3, 4}, {1, 2, 3, 4}}));
  Tensor mask = tensor({{true, true, false, true}, {false, false, false, false}});
  Var weights = masked_softmax(scores, mask);
  other.backward(sum(weights * f64({1, 2, 3, 4})));
  // Infinite inputs are no anomaly while results are finite.
  Var clipped = clamp(tape.consumed() ? Var(f64({inf, -inf, 0})) : Var(), -1, 1);
  CHECK(same_bits(clipped.value(), f64({1, -1, 0})));
}

TEST_CASE("anomaly names the first op forward with line and scope and shapes and ranges") {
  Tape tape(Anomaly::on);
  Var x = tape.leaf(f64({{4, 1}, {0, 2}}));
  std::string text;
  int line = 0;
  {
    Scope outer("encoder"), inner("layer", 2);
    auto planted = [&] { return log(x); };
    line = __LINE__ - 1;
    text = error_of([&] { sum(planted() * 2.0); });
  }
  CHECK(says(text, {"anomaly", "log made Inf at [1, 0]", here(line), "in encoder/layer[2]", "result f64 (2, 2)",
                    "with 1 Inf", "input 0 f64 (2, 2) in [0, 4]"}));

  text = error_of([&] { div(x, x * 1.0); });
  CHECK(says(text, {"div made NaN at [1, 0]", "input 0 f64 (2, 2) in [0, 4]", "input 1 f64 (2, 2) in [0, 4]"}));
  text = error_of([&] { exp(x * 1000.0); });
  CHECK(says(text, {"exp made Inf at [0, 0]", "in [0, 4000]"}));
  text = error_of([&] { softmax(Var(f64({{1, 2}, {-inf, -inf}}))); });
  CHECK(says(text, {"softmax made NaN at [1, 0]", "with 2 NaN", "with 2 Inf"}));
  Tensor scores32 = f32({{-inf, -inf, -inf}});
  CHECK(says(error_of([&] { softmax(tape.leaf(scores32)); }), {"softmax made NaN at [0, 0]", "f32 (1, 3)"}));
}

TEST_CASE("anomaly sees ops on constants while a tape records and not without one") {
  const Tensor zero = f64({0});
  {
    Tape tape(Anomaly::on);
    CHECK(says(error_of([&] { log(zero); }), {"log made Inf at [0]"}));
    NoGrad pause;
    CHECK(error_of([&] { log(zero); }).empty());
  }
  CHECK(error_of([&] { log(zero); }).empty());
  Tape plain;
  CHECK(error_of([&] { log(plain.leaf(zero)); }).empty());
}

TEST_CASE("a value that is bad from the start is shown among the first reader's inputs") {
  Tape tape(Anomaly::on);
  Var x = tape.leaf(f64({1, not_a_number}));
  CHECK(says(error_of([&] { x + 1.0; }), {"add made NaN at [1]", "input 0 f64 (2,) in [1, 1] with 1 NaN"}));
}

TEST_CASE("anomaly names the first rule backward with line and scope and ranges") {
  Tape tape(Anomaly::on);
  Var x = tape.leaf(f64({4, 0}));
  int line = 0;
  Var y;
  {
    Scope scope("norm");
    line = __LINE__, y = sqrt(x * 1.0);
  }
  std::string text = error_of([&] { tape.backward(sum(y * 3.0), Keep::tape); });
  CHECK(says(text, {"backward of sqrt", "rule for input 0 made Inf at [1]", here(line), "in norm",
                    "incoming f64 (2,) in [3, 3]", "result f64 (2,) in [0, 2]", "input 0 f64 (2,) in [0, 4]"}));
  // A zero incoming gradient gives exactly zero, and no anomaly.
  Gradients grads = tape.backward(sum(y * f64({1, 0})), Keep::tape);
  CHECK(same_bits(grads[x], f64({.25, 0})));
  // The recorded pass is watched too.
  text = error_of([&] { grad(sum(y), {x}, {.create_graph = true}); });
  CHECK(says(text, {"backward of sqrt", "anomaly", "Inf"}));
}

TEST_CASE("anomaly finds a bad seed and a hook and a sum that overflows") {
  Tape tape(Anomaly::on);
  Var x = tape.leaf(f64({1, 2}));
  Var y = x * 2.0;
  CHECK(says(error_of([&] { tape.backward(y, f64({1, inf}), Keep::tape); }), {"Inf at [1] in the seed"}));
  Var big = with_rule(x, [](const Var& g) { return g * 1e308; });
  Var z = sum(big) + sum(with_rule(x, [](const Var& g) { return g * 1e308; }));
  CHECK(says(error_of([&] { tape.backward(z, Keep::tape); }), {"Inf at [0]", "finite contributions", "leaf"}));
  tape.add_hook(y, [](const Var& g) { return g * not_a_number; });
  CHECK(says(error_of([&] { tape.backward(sum(y), Keep::tape); }), {"a hook made NaN at [0]"}));
}

TEST_CASE("anomaly watches fused kernels") {
  Tape tape(Anomaly::on);
  Var a = tape.leaf(f64({1, 2}));
  auto wrong = [](const FusedPass& pass) { return std::vector{div(pass.g, 0.0).value()}; };
  auto same = [](std::span<const Var> x) { return x[0] * 1.0; };
  Var y = record_fused("broken", {a}, FusedValue{a.value().clone(), {}}, wrong, same);
  CHECK(says(error_of([&] { tape.backward(sum(y)); }), {"backward of broken", "input 0 made Inf at [0]"}));
  auto bad_value = [&] { record_fused("bad", {a}, FusedValue{f64({1, inf}), {}}, wrong, same); };
  CHECK(says(error_of(bad_value), {"bad made Inf at [1]", "input 0 f64 (2,) in [1, 2]"}));
}

// ---- Hooks and retained gradients ---------------------------------------------------------------------------------

TEST_CASE("a hook observes a complete gradient once") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2})), h = x * 3.0;
  Var loss = sum(h * h) + sum(h * 5.0);  // two readers
  std::vector<Tensor> seen, at_leaf;
  tape.add_hook(h, [&](const Var& g) { return seen.push_back(g.value().clone()), g; });
  tape.add_hook(x, [&](const Var& g) { return at_leaf.push_back(g.value().clone()), g; });
  Gradients grads = tape.backward(loss, Keep::tape);
  REQUIRE(seen.size() == 1);
  CHECK(same_bits(seen[0], f64({11, 17})));
  REQUIRE(at_leaf.size() == 1);
  CHECK(same_bits(at_leaf[0], grads[x]));
  CHECK(same_bits(grads[x], f64({33, 51})));
  CHECK(all_same_bits(tensors(tape.backward(loss)), tensors(grads)));
  CHECK(seen.size() == 2);
}

TEST_CASE("hooks replace gradients in the order they were added") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2})), h = x * 3.0;
  tape.add_hook(h, [](const Var& g) { return g + 1.0; });
  tape.add_hook(h, [](const Var& g) { return g * 10.0; });
  tape.add_hook(x, [](const Var& g) { return clamp(g, -50, 50); });
  CHECK(same_bits(tape.backward(sum(h), Keep::tape)[x], f64({50, 50})));
  CHECK(same_bits(grad(sum(h), {h})[0].value(), f64({20, 20})));
  CHECK(same_bits(grad(sum(h), {x})[0].value(), f64({50, 50})));
}

TEST_CASE("a hook on a parameter and on a value that no gradient reaches") {
  Parameter p(f64({1, 2}));
  Tape tape;
  Var w = p, unused = w * 2.0, loss = sum(w * 3.0);
  int calls = 0;
  tape.add_hook(p, [](const Var& g) { return g * 2.0; });
  tape.add_hook(unused, [&](const Var& g) { return ++calls, g; });
  CHECK(same_bits(tape.backward(loss)[p], f64({6, 6})));
  CHECK(calls == 0);
}

TEST_CASE("a hook that returns something else is named") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2})), h = x * 3.0, loss = sum(h);
  std::optional<Var> answer = Var(f64({{1, 2}}));
  tape.add_hook(h, [&](const Var&) { return *answer; });
  CHECK(says(error_of([&] { tape.backward(loss, Keep::tape); }),
             {"backward of mul", "a hook", "f64 (1, 2)", "f64 (2,)"}));
  answer = Var(f32({1, 2}));
  CHECK(says(error_of([&] { tape.backward(loss, Keep::tape); }), {"a hook", "f32 (2,)", "f64 (2,)"}));
  answer = Var();
  CHECK(says(error_of([&] { tape.backward(loss, Keep::tape); }), {"a hook", "undefined"}));
  Tape other;
  CHECK(says(error_of([&] { other.add_hook(h, [](const Var& g) { return g; }); }), {"not on this tape"}));
  CHECK(says(error_of([&] { other.retain_gradient(f64({1})); }), {"not on this tape"}));
}

TEST_CASE("a hook takes part in a recorded backward pass") {
  Tape tape;
  Var x = tape.leaf(f64({2, 3})), h = x * x;
  tape.add_hook(h, [&](const Var& g) { return g * x; });
  Var g = grad(sum(h * 1.0), {x}, {.create_graph = true})[0];  // x * 2x
  CHECK(same_bits(g.value(), f64({8, 18})));
  Var second = grad(sum(g), {x})[0];  // of 2 x^2
  CHECK(close(second.value(), f64({8, 12}), 1e-14));
}

TEST_CASE("retained gradients come back with those of the leaves") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2})), h = x * 3.0, twice = h * h, unused = x * 7.0;
  tape.retain_gradient(h);
  tape.retain_gradient(h);
  tape.retain_gradient(twice);
  tape.retain_gradient(unused);
  tape.retain_gradient(x);
  Gradients grads = tape.backward(sum(twice) + sum(h), Keep::tape);
  CHECK(grads.size() == 3);
  CHECK(same_bits(grads[h], f64({7, 13})));
  CHECK(same_bits(grads[twice], f64({1, 1})));
  CHECK(same_bits(grads[x], f64({21, 39})));
  CHECK(grads.find(unused) == nullptr);
  CHECK(grads[h].unique());
  tape.add_hook(h, [](const Var& g) { return g * 2.0; });
  CHECK(same_bits(tape.backward(sum(h))[h], f64({2, 2})));
  Tape plain;
  Var leaf = plain.leaf(f64({1})), inner = leaf * 2.0;
  CHECK(plain.backward(sum(inner)).find(inner) == nullptr);
}

// ---- Profile ------------------------------------------------------------------------------------------------------

TEST_CASE("a profile counts calls and bytes by op") {
  Tape tape(Profile::on);
  Var x = tape.leaf(normal({8, 4}, DType::f32, 1));
  Var y = x;
  for (int i = 0; i < 3; ++i) y = tanh(y);
  Var z = y * 2.0 + y;
  exp(Tensor::ones({5}, F64));  // a constant: no node, but work
  argmax(y);
  {
    NoGrad pause;
    tanh(y);
  }
  tape.backward(sum(z));
  std::map<std::string, ProfileRow> rows;
  for (const ProfileRow& row : tape.profile()) rows[row.op] = row;
  CHECK(rows.size() == 6);
  CHECK(rows["tanh"].calls == 3);
  CHECK(rows["tanh"].bytes == 3 * 8 * 4 * 4);
  CHECK(rows["mul"].calls == 1);
  CHECK(rows["add"].bytes == 8 * 4 * 4);
  CHECK(rows["exp"].calls == 1);
  CHECK(rows["exp"].bytes == 40);
  CHECK(rows["exp"].backward_seconds == 0);
  CHECK(rows["argmax"].bytes == 8 * 8);
  CHECK(rows["sum"].bytes == 4);
  CHECK(rows["tanh"].forward_seconds > 0);
  CHECK(rows["tanh"].backward_seconds > 0);
  const auto sorted = tape.profile();
  CHECK(std::is_sorted(sorted.begin(), sorted.end(), [](const ProfileRow& a, const ProfileRow& b) {
    return a.forward_seconds + a.backward_seconds > b.forward_seconds + b.backward_seconds;
  }));
}

TEST_CASE("the profile table shows shares that sum to one") {
  const std::vector<ProfileRow> rows{{"matmul", 2, 1000, 3e-6, 6e-6}, {"add", 1, 8, 1e-6, 0}};
  CHECK(to_string(rows) ==
        "op                   calls   forward us  backward us   share        bytes\n"
        "matmul                   2          3.0          6.0   90.0%         1000\n"
        "add                      1          1.0          0.0   10.0%            8\n");
  CHECK(to_string(std::vector<ProfileRow>{}).starts_with("op "));
}

TEST_CASE("a recorded backward pass counts its ops once") {
  Tape tape(Profile::on);
  Var x = tape.leaf(f64({1, 2}));
  Var y = sum(tanh(x));
  grad(y, {x}, {.create_graph = true});
  for (const ProfileRow& row : tape.profile()) {
    CAPTURE(row.op);
    CHECK(row.backward_seconds == 0);
    CHECK(row.calls > 0);
  }
}

// ---- Exports ------------------------------------------------------------------------------------------------------

TEST_CASE("JSON has the documented keys and equal values") {
  const Small small;
  Tape tape(Trace::on);
  Var loss = small.loss();
  tape.backward(loss);
  const json parsed = json::parse(to_json(tape));
  CHECK(parsed["schema"] == "tapedeck-tape/1");
  REQUIRE(parsed["nodes"].size() == tape.size());
  bool with_strides = false;
  for (uint32_t id = 0; id < tape.size(); ++id) {
    const json& entry = parsed["nodes"][id];
    const NodeInfo node = tape.node(id);
    const TracedNode& traced = tape.traced(id);
    CAPTURE(id);
    CHECK(entry.size() == 13);
    CHECK(entry["id"] == id);
    CHECK(entry["op"] == node.op);
    CHECK(entry["scope"] == node.scope);
    CHECK(entry["inputs"].get<std::vector<uint32_t>>() == node.inputs);
    CHECK(entry["dtype"] == name(node.dtype));
    const auto shape = entry["shape"].get<std::vector<int64_t>>();
    CHECK(std::equal(shape.begin(), shape.end(), node.shape.begin(), node.shape.end()));
    const auto strides = entry["strides"].get<std::vector<int64_t>>();
    CHECK(std::equal(strides.begin(), strides.end(), traced.value.strides().begin(), traced.value.strides().end()));
    with_strides = with_strides || !traced.value.is_contiguous();
    CHECK(same_file(entry["site"], node.site));
    CHECK(same_file(entry["user_site"], node.user_site));
    CHECK(same_bits(tensor_of(entry["value"], shape, node.dtype), traced.value));
    CHECK(entry["gradient"].is_null() == !traced.gradient.defined());
    if (traced.gradient.defined()) CHECK(same_bits(tensor_of(entry["gradient"], shape, node.dtype), traced.gradient));
    REQUIRE(entry["contributions"].size() == traced.contributions.size());
    for (size_t e = 0; e < traced.contributions.size(); ++e) {
      const Tensor& term = traced.contributions[e];
      CHECK(entry["contributions"][e].is_null() == !term.defined());
      if (!term.defined()) continue;
      const auto to = parsed["nodes"][node.inputs[e]]["shape"].get<std::vector<int64_t>>();
      CHECK(same_bits(tensor_of(entry["contributions"][e], to, term.dtype()), term));
    }
    REQUIRE(entry["saved"].size() == traced.saved.size());
    for (size_t k = 0; k < traced.saved.size(); ++k) {
      CHECK(entry["saved"][k]["what"] == (traced.saved[k].output ? "output" : "input"));
      CHECK(entry["saved"][k]["bytes"] == traced.saved[k].bytes);
    }
  }
  CHECK(with_strides);
}

TEST_CASE("JSON of extreme numbers and of a tape without values") {
  Tape tape(Trace::on);
  Var x = tape.leaf(f64({not_a_number, inf, -inf, -0.0, 5e-324, 1.7976931348623157e308, 0.1}));
  Var y = tape.leaf(f32({0.1, 16777216, 1e-45, -0.0, inf}));
  const json parsed = json::parse(to_json(tape));
  for (const Var& v : {x, y}) {
    const json& entry = parsed["nodes"][tape.id(v)];
    const Tensor back = tensor_of(entry["value"], {v.numel()}, v.dtype());
    for (int64_t i = 0; i < v.numel(); ++i) {
      const double a = back.at({i}), b = v.value().at({i});
      CHECK((std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b)));
    }
    CHECK(entry["gradient"].is_null());
  }
  CHECK(parsed["nodes"][0]["value"][0] == "nan");
  CHECK(parsed["nodes"][0]["value"][2] == "-inf");
  Tape plain;
  Var a = plain.leaf(f64({1, 2}));
  tanh(a);
  const json bare = json::parse(to_json(plain));
  CHECK(bare["nodes"][1]["op"] == "tanh");
  CHECK_FALSE(bare["nodes"][1].contains("value"));
  CHECK_FALSE(bare["nodes"][1].contains("gradient"));
  Tape empty;
  CHECK(json::parse(to_json(empty))["nodes"].empty());
}

TEST_CASE("strings in exports are escaped") {
  Tape tape(Trace::on);
  Scope scope("a \"quoted\\ scope\"\n");
  Var x = tape.leaf(f64({1}), "dir\\file \"x\".cpp", 7);
  tanh(x);
  const json parsed = json::parse(to_json(tape));
  CHECK(parsed["nodes"][0]["site"]["file"] == "dir\\file \"x\".cpp");
  CHECK(parsed["nodes"][1]["scope"] == "a \"quoted\\ scope\"\n");
  read_dot(to_dot(tape));
  read_dot(to_dot(tape, 1));
}

TEST_CASE("DOT declares every box once with edges and clusters and chips") {
  const Small small;
  Tape tape(Trace::on);
  small.loss();
  const Dot dot = read_dot(to_dot(tape));
  std::set<std::string> scopes;
  for (uint32_t id = 0; id < tape.size(); ++id) {
    const NodeInfo node = tape.node(id);
    const std::string box = "n" + std::to_string(id);
    const bool leaf = node.op == "parameter";
    CHECK(dot.boxes.count(box) == (leaf ? 0 : 1));
    if (leaf) continue;
    CHECK(says(dot.boxes.at(box).label, {node.op, to_string(node.shape)}));
    CHECK(dot.boxes.at(box).shape.empty());
    if (!node.scope.empty()) scopes.insert(node.scope);
    for (uint32_t input : node.inputs) {
      const bool chip = tape.node(input).op == "parameter";
      const std::string from = chip ? "chip" + std::to_string(input) + "_" + box : "n" + std::to_string(input);
      CHECK(std::count(dot.edges.begin(), dot.edges.end(), std::pair{from, box}) == 1);
      if (chip) CHECK(dot.boxes.at(from).shape == "note");
    }
  }
  // Each scope is one cluster, however often it was entered.
  for (const std::string& cluster : dot.clusters) CHECK(dot.clusters.count(cluster) == 1);
  for (const std::string& scope : scopes) {
    std::string path = "\"" + scope + "\"";
    for (size_t at; (at = path.find('/')) != std::string::npos;) path.replace(at, 1, "\"\"");
    CHECK_MESSAGE(dot.clusters.count(path) == 1, scope);
  }
}

TEST_CASE("a scope entered twice is one cluster and an unread leaf is a chip") {
  Tape tape;
  Var x = tape.leaf(f64({1}));
  tape.leaf(f64({2}));
  Var y = x;
  for (const char* name : {"a", "b", "a", "a-b", "a"}) {
    Scope scope(name);
    y = tanh(y);
    Scope inner("c");
    y = tanh(y);
  }
  const Dot dot = read_dot(to_dot(tape));
  CHECK(dot.clusters ==
        std::multiset<std::string>{"\"a\"", "\"a\"\"c\"", "\"b\"", "\"b\"\"c\"", "\"a-b\"", "\"a-b\"\"c\""});
  CHECK(dot.boxes.at("chip1").shape == "note");
  CHECK(dot.boxes.at("n2").clusters == std::vector<std::string>{"\"a\""});
  CHECK(dot.boxes.at("n11").clusters == std::vector<std::string>{"\"a\"", "\"c\""});
}

TEST_CASE("DOT folds scopes to one box each") {
  const Small small;
  Tape tape(TapeOptions{.fused = Fused::definitions});
  small.loss();
  for (int depth : {1, 2, 3}) {
    CAPTURE(depth);
    std::map<std::string, int> inside;
    for (uint32_t id = 0; id < tape.size(); ++id) {
      const NodeInfo node = tape.node(id);
      std::vector<std::string> parts;
      std::istringstream in(node.scope);
      for (std::string part; std::getline(in, part, '/');) parts.push_back(part);
      if (node.op == "parameter" || static_cast<int>(parts.size()) < depth) continue;
      std::string path = parts[0];
      for (int i = 1; i < depth; ++i) path += "/" + parts[static_cast<size_t>(i)];
      ++inside["\"" + path + "\""];
    }
    const Dot dot = read_dot(to_dot(tape, depth));
    size_t folded = 0;
    for (const auto& [box, drawn] : dot.boxes) {
      if (box[0] != '"') continue;
      ++folded;
      REQUIRE(inside.count(box) == 1);
      CHECK(says(drawn.label, {std::to_string(inside[box]) + " nodes"}));
    }
    CHECK(folded == inside.size());
    CHECK(std::set(dot.edges.begin(), dot.edges.end()).size() == dot.edges.size());
    for (const auto& [from, to] : dot.edges) CHECK(from != to);
  }
  const Dot dot = read_dot(to_dot(tape, 1));
  CHECK(dot.boxes.count("\"encoder\"") == 1);
  CHECK(dot.boxes.count("\"decoder.step[0]\"") == 1);
}

TEST_CASE("a trace of a hundred thousand nodes is exported with a small stack") {
  bool done = false;
  on_a_small_stack([&] {
    Tape tape(Trace::on);
    Var x = tape.leaf(f64({1}));
    Var unused = tape.leaf(f64({1})), y = x, dead = unused;
    for (int i = 0; i < 50'000; ++i) y = y * 0.99999;
    for (int i = 0; i < 50'000; ++i) dead = dead * 0.0;
    tape.backward(sum(y) + sum(dead));
    CHECK(tape.size() > 100'000);
    const std::string text = to_json(tape), dot = to_dot(tape);
    CHECK(text.ends_with("]}\n"));
    CHECK(std::count(dot.begin(), dot.end(), '\n') > 200'000);
    CHECK(json::parse(text)["nodes"].size() == tape.size());
    CHECK(says(explain_gradient(tape, tape.id(x)), {"finite and not zero"}));
    CHECK(says(explain_gradient(tape, tape.id(unused)), {"zero", "got a good gradient and passed zero on"}));
    done = true;
  });
  CHECK(done);
}

TEST_CASE("a consumed tape is exported as it was") {
  const Small small;
  Tape tape(Trace::on);
  Var loss = small.loss();
  const std::string dot = to_dot(tape);
  tape.backward(loss);
  REQUIRE(tape.consumed());
  CHECK(to_dot(tape) == dot);
  CHECK(json::parse(to_json(tape))["nodes"].size() == tape.size());
}

// ---- Explanations -------------------------------------------------------------------------------------------------

TEST_CASE("explains a plain gradient and counts its zeros") {
  Tape tape(Trace::on);
  Var x = tape.leaf(f64({1, 2, 3, 4}));
  CHECK(says(explain_gradient(tape, tape.id(x)), {"node 0 (leaf (4,)", "no gradient: no backward pass has run"}));
  tape.backward(sum(masked_fill(x * 2.0, tensor({false, true, false, true}), 0)));
  CHECK(says(explain_gradient(tape, tape.id(x)), {"finite and not zero", "in [0, 2]", "2 of 4 elements are 0"}));
  CHECK(says(error_of([&] { explain_gradient(tape, 99); }), {"traced", "99"}));
  Tape plain;
  CHECK(says(error_of([&] { explain_gradient(plain, 0); }), {"not made for it"}));
}

TEST_CASE("explains a dead unit") {
  Tape tape(Trace::on);
  Var w = tape.leaf(f64({-1, -2}));
  Var alive = tape.leaf(f64({1, 2}));
  Var h = w * 3.0;
  Var y = relu(h);
  tape.backward(sum(y * 2.0) + sum(alive));
  const std::string text = explain_gradient(tape, tape.id(w));
  CHECK(says(text, {"its gradient is zero", "(relu (2,)", "got a good gradient and passed zero on to", "(mul (2,)",
                    "input f64 (2,) in [-6, -3]", "result f64 (2,) in [0, 0]"}));
  CHECK(text.find("cancelled") == std::string::npos);
}

TEST_CASE("explains a masked position") {
  Tape tape(Trace::on);
  Var used = tape.leaf(f64({1, 2})), hidden = tape.leaf(f64({3, 4}));
  Var scores = stack({used, hidden});
  tape.backward(sum(masked_softmax(scores, tensor({{true, true}, {false, false}})) * f64({{1, 2}, {3, 4}})));
  CHECK(says(explain_gradient(tape, tape.id(hidden)),
             {"is zero", "passed zero on to", "(unsqueeze (1, 2)", "2 of 4 elements of its own gradient are 0"}));
  CHECK(says(explain_gradient(tape, tape.id(used)), {"finite and not zero"}));
}

TEST_CASE("explains an absent gradient: unused and detached and after and beside the loss") {
  Tape tape(Trace::on);
  Var x = tape.leaf(f64({1, 2})), unused = tape.leaf(f64({3})), cut = tape.leaf(f64({5, 6}));
  Var h = cut * 2.0;
  Var other = tanh(h);
  Var loss = sum(x * h.detach());
  Var later = cut + 1.0;
  tape.backward(loss, Keep::tape);
  CHECK(says(explain_gradient(tape, tape.id(unused)), {"no gradient", "nothing on the tape uses it", "detached"}));
  CHECK(says(explain_gradient(tape, tape.id(cut)), {"no gradient", "a path ends in node", "(tanh (2,)", "(add (2,)",
                                                    "came after", "differentiated was node"}));
  CHECK(says(explain_gradient(tape, tape.id(later)), {"no gradient", "recorded after"}));
  CHECK(says(explain_gradient(tape, tape.id(other)), {"nothing on the tape uses it"}));
}

TEST_CASE("explains NaN and Inf") {
  Tape tape(Trace::on);
  Var x = tape.leaf(f64({0, 4}));
  Var h = x * 1.0;
  Var y = sqrt(h);
  tape.backward(sum(y), Keep::tape);
  CHECK(says(explain_gradient(tape, tape.id(x)),
             {"NaN or Inf", "(sqrt (2,)", "got a good gradient and passed NaN or Inf on to", "(mul (2,)",
              "input f64 (2,) in [0, 4]", "result f64 (2,) in [0, 2]"}));
  tape.backward(y, f64({not_a_number, 1}), Keep::tape);
  CHECK(says(explain_gradient(tape, tape.id(x)), {"NaN or Inf", "was differentiated: its seed is NaN or Inf"}));
  Var big = sum(with_rule(x, [](const Var& g) { return g * 1e308; })) +
            sum(with_rule(x, [](const Var& g) { return g * 1e308; }));
  tape.backward(big);
  CHECK(says(explain_gradient(tape, tape.id(x)), {"NaN or Inf", "finite contributions overflowed"}));
}

TEST_CASE("explains zeros that cancel and a zero seed") {
  Tape tape(Trace::on);
  Var x = tape.leaf(f64({1, 2}));
  Var h = x * 2.0;
  Var y = h - h;
  tape.backward(sum(y), Keep::tape);
  CHECK(says(explain_gradient(tape, tape.id(x)), {"is zero", "contributions cancelled"}));
  tape.backward(y, f64({0, 0}));
  CHECK(says(explain_gradient(tape, tape.id(x)), {"is zero", "was differentiated: its seed is zero"}));
}

// ---- Derivatives --------------------------------------------------------------------------------------------------

TEST_CASE("jacobian of closed forms") {
  const Tensor A = f64({{1, 2, 3}, {4, 5, 6}}), x = f64({.5, -1, 2});
  const Map affine = [&](const Var& v) { return squeeze(matmul(A, unsqueeze(v, 1)), 1) + 1.0; };
  CHECK(same_bits(jacobian(affine, x), A));
  // d s_i / d x_j = s_i (1[i = j] - s_j)
  const Tensor s = softmax(x).value(), J = jacobian([](const Var&v) { return softmax(v); }, x);
  REQUIRE(J.shape() == Shape{3, 3});
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      CHECK(J.at({i, j}) == doctest::Approx(s.at({i}) * ((i == j) - s.at({j}))).epsilon(1e-13));
    }
  }
  const Tensor M = normal({2, 3}, F64, 4);
  const Tensor T = jacobian([](const Var& v) { return transpose(v); }, M);
  REQUIRE(T.shape() == Shape{3, 2, 2, 3});
  for (int64_t k = 0; k < 36; ++k) {
    const int64_t a = k / 12, b = k / 6 % 2, c = k / 3 % 2, d = k % 3;
    CHECK(T.at({a, b, c, d}) == (a == d && b == c ? 1 : 0));
  }
  CHECK(jacobian([](const Var& v) { return sum(v); }, M).shape() == Shape{2, 3});
  CHECK(jacobian([](const Var& v) { return slice(v, 0, 0, 0); }, x).shape() == Shape{0, 3});
  const Tensor same = jacobian([](const Var& v) { return v; }, f32({1, 2}));
  CHECK(same_bits(same, f32({{1, 0}, {0, 1}})));
}

TEST_CASE("products agree with the jacobian and with each other") {
  const Tensor x = normal({2, 3}, F64, 1), B = normal({3, 2}, F64, 2);
  const Map f = [&](const Var& v) { return tanh(matmul(v, B)) * sigmoid(sum(v)); };  // (2, 3) -> (2, 2)
  const Tensor v = normal({2, 3}, F64, 3), g = normal({2, 2}, F64, 4);
  const Tensor J = jacobian(f, x).reshape({4, 6});
  const Tensor forward = jvp(f, x, v), back = vjp(f, x, g);
  REQUIRE(forward.shape() == Shape{2, 2});
  REQUIRE(back.shape() == Shape{2, 3});
  CHECK(close(matmul(J, v.reshape({6, 1})).value().reshape({2, 2}), forward, 1e-13));
  CHECK(close(matmul(g.reshape({1, 4}), J).value().reshape({2, 3}), back, 1e-13));
  CHECK(dot(forward, g) == doctest::Approx(dot(v, back)).epsilon(1e-13));
  for (int64_t i = 0; i < 4; ++i) {
    Tensor unit = Tensor::zeros({4}, F64);
    unit.set({i}, 1);
    CHECK(same_bits(row(J, i), vjp(f, x, unit.reshape({2, 2})).reshape({6})));
  }
}

TEST_CASE("hessian products are symmetric and match closed forms") {
  // f = 1/2 x^T A x + sum(x^3): H = (A + A^T)/2 + diag(6 x)
  const Tensor A = normal({3, 3}, F64, 1), x = f64({1, -2, .5}), v = f64({1, 2, 3}), w = f64({-1, .5, 2});
  const Map f = [&](const Var& u) { return 0.5 * sum(u * squeeze(matmul(A, unsqueeze(u, 1)), 1)) + sum(pow(u, 3)); };
  Tensor H = mul(add(A, A.transpose()), 0.5).value();
  for (int64_t i = 0; i < 3; ++i) H.set({i, i}, H.at({i, i}) + 6 * x.at({i}));
  const Tensor Hv = hessian_vector_product(f, x, v), Hw = hessian_vector_product(f, x, w);
  CHECK(close(Hv, matmul(H, v.reshape({3, 1})).value().reshape({3}), 1e-13));
  CHECK(dot(w, Hv) == doctest::Approx(dot(v, Hw)).epsilon(1e-13));
  const Map gradient = [&](const Var& u) { return grad(f(u), {u}, {.create_graph = true})[0]; };
  CHECK(close(jacobian(gradient, x), H, 1e-13));
  CHECK(close(jvp(gradient, x, v), Hv, 1e-13));

  const Small small;
  const Map loss = [&](const Var& table) {
    Small copy;
    const Var states = embedding(table, copy.batch.source);
    return sum(softmax(sum(tanh(states), {1})) * normal({2, 4}, F64, 3)) + sum(square(states));
  };
  const Tensor table = small.model.embed.weight.value(), a = normal(table.shape(), F64, 6),
               b = normal(table.shape(), F64, 7);
  CHECK(dot(a, hessian_vector_product(loss, table, b)) ==
        doctest::Approx(dot(b, hessian_vector_product(loss, table, a))).epsilon(1e-12));
}

TEST_CASE("derivatives of constants are zeros") {
  const Tensor x = f64({1, 2}), c = f64({5, 6, 7});
  const Map constant = [&](const Var&) { return Var(c); };
  CHECK(same_bits(jacobian(constant, x), Tensor::zeros({3, 2}, F64)));
  CHECK(same_bits(vjp(constant, x, c), Tensor::zeros({2}, F64)));
  CHECK(same_bits(jvp(constant, x, x), Tensor::zeros({3}, F64)));
  CHECK(same_bits(hessian_vector_product([](const Var&) { return Var(f64(1)); }, x, x), Tensor::zeros({2}, F64)));
  CHECK(same_bits(hessian_vector_product([](const Var& v) { return sum(v * 3.0); }, x, x), Tensor::zeros({2}, F64)));
  const Map detached = [](const Var& v) { return v.detach() * 2.0; };
  CHECK(same_bits(jvp(detached, x, x), Tensor::zeros({2}, F64)));
  Parameter p(f64({3, 4}));
  const Map of_parameter = [&](const Var&) { return p * 2.0; };  // tracked, but not through x
  CHECK(same_bits(jacobian(of_parameter, x), Tensor::zeros({2, 2}, F64)));
  CHECK(same_bits(jvp(of_parameter, x, x), Tensor::zeros({2}, F64)));
  CHECK(same_bits(jvp([](const Var& v) { return v; }, x, c.slice(0, 0, 2)), f64({5, 6})));
}

TEST_CASE("derivatives refuse what does not fit") {
  const Map f = [](const Var& v) { return tanh(v); };
  const Tensor x = f64({1, 2});
  CHECK(says(error_of([&] { vjp(f, x, f64({1, 2, 3})); }), {"vjp", "f64 of shape (2,)", "(3,)"}));
  CHECK(says(error_of([&] { jvp(f, x, f32({1, 2})); }), {"jvp", "f64", "f32"}));
  CHECK(says(error_of([&] { hessian_vector_product(f, x, x); }), {"hessian_vector_product", "one element", "(2,)"}));
  CHECK(says(error_of([&] { hessian_vector_product(f, x, f64({1})); }), {"hessian_vector_product", "(2,)", "(1,)"}));
  CHECK(says(error_of([&] { jacobian(f, tensor({1, 2})); }), {"leaf", "i64"}));
  Tape tape;
  Var outer = tape.leaf(x);
  CHECK(says(error_of([&] { jvp([&](const Var& v) { return v * outer; }, x, x); }), {"mul", "outer tape"}));
  CHECK(live_nodes() == 1);
}

TEST_CASE("derivatives in f32 have the dtype of x") {
  const Tensor x = f32({.5, -.25}), one = f32({1, 1});
  const Map f = [](const Var& v) { return square(v); };
  CHECK(same_bits(jvp(f, x, one), f32({1, -.5})));
  CHECK(same_bits(vjp(f, x, one), f32({1, -.5})));
  CHECK(same_bits(hessian_vector_product([](const Var& v) { return sum(square(v)); }, x, one), f32({2, 2})));
}

// <g, J v> = <J^T g, v> for every op and floating input; J v against differences where the op has no kink.
TEST_CASE("the two products agree on every op of the table") {
  int checked = 0;
  for (const samples::Sample& sample : samples::op_samples()) {
    if (sample.order < 1) continue;
    const std::vector<Tensor> inputs = samples::draw(sample.inputs, sample.name());
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (!is_floating(inputs[k].dtype())) continue;
      CAPTURE(sample.name());
      CAPTURE(k);
      const Map f = [&](const Var& x) {
        std::vector<Var> all(inputs.begin(), inputs.end());
        all[k] = x;
        return sample.f(all);
      };
      NoGrad pause;
      const Tensor y = f(inputs[k]).value();
      const Tensor v = normal(inputs[k].shape(), F64, 11), g = normal(y.shape(), F64, 12);
      const Tensor forward = jvp(f, inputs[k], v), back = vjp(f, inputs[k], g);
      REQUIRE(forward.shape() == y.shape());
      const double left = dot(g, forward), right = dot(back, v);
      const double scale = std::sqrt(dot(g, g) * dot(forward, forward)) + std::sqrt(dot(back, back) * dot(v, v));
      CHECK(std::abs(left - right) <= 1e-9 * std::max(1e-3, scale));
      ++checked;
    }
  }
  CHECK(checked > 100);
}

TEST_CASE("products with the jacobian of every smooth op agree with differences") {
  int checked = 0;
  for (const samples::Sample& sample : samples::op_samples()) {
    if (sample.order < 2) continue;
    const std::vector<Tensor> inputs = samples::draw(sample.inputs, sample.name());
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (!is_floating(inputs[k].dtype()) || !sample.excluded.empty()) continue;
      CAPTURE(sample.name());
      CAPTURE(k);
      const Map f = [&](const Var& x) {
        std::vector<Var> all(inputs.begin(), inputs.end());
        all[k] = x;
        return sample.f(all);
      };
      const Tensor v = normal(inputs[k].shape(), F64, 13), forward = jvp(f, inputs[k], v);
      // (f(x - 2h v) - 8 f(x - h v) + 8 f(x + h v) - f(x + 2h v)) / 12h
      const double h = 1e-3;
      Tensor difference = Tensor::zeros(forward.shape(), F64);
      for (auto [step, factor] : {std::pair{-2, 1.0}, {-1, -8.0}, {1, 8.0}, {2, -1.0}}) {
        Tensor x = inputs[k].clone();
        x.add_(v, step * h);
        difference.add_(f(x).value(), factor / (12 * h));
      }
      CHECK(close(forward, difference, 1e-8));
      ++checked;
    }
  }
  CHECK(checked > 80);
}
}
