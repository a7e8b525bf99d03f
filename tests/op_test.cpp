// Every property that an op must have, run on every row of the table.
#include "op_samples.h"

#include <doctest/doctest.h>
#include <tapedeck/ops/ops.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

using namespace tapedeck;
using namespace tapedeck::samples;

namespace {

using Tensors = std::vector<Tensor>;

// Bounds on max|a - b| / max(1, max|b|): against naive sums in another order, and of f32 against f64.
constexpr double tight = 1e-13, single = 1e-6;

double bound_of(DType dtype) { return dtype == DType::f32 ? single : tight; }

// NaN equals NaN and infinity itself; anything else against them, or another shape, is infinitely far off.
double distance(const Array& a, const Array& b) {
  if (a.shape != b.shape) return HUGE_VAL;
  double largest = 1, difference = 0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double u = a.data[i], v = b.data[i];
    if (u == v || (std::isnan(u) && std::isnan(v))) continue;
    if (!std::isfinite(u) || !std::isfinite(v)) return HUGE_VAL;
    difference = std::max(difference, std::abs(u - v));
  }
  for (double v : b.data) largest = std::max(largest, std::isfinite(v) ? std::abs(v) : 0);
  return difference / largest;
}
double distance(const Tensor& a, const Tensor& b) { return distance(Array(a), Array(b)); }

Array added(const Tensor& a, const Tensor& b) {
  return each([](const double* v) { return v[0] + v[1]; })({Array(a), Array(b)});
}

// Floating tensors in `dtype`, the others as they are.
Tensors in_dtype(const Tensors& inputs, DType dtype) {
  Tensors out;
  for (const Tensor& x : inputs) out.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
  return out;
}

Tensors draw(const Sample& row) { return draw(row.inputs, row.name()); }

Tensors draw(const Sample& row, const std::vector<Shape>& shapes) {
  std::vector<Draw> inputs = row.inputs;
  for (size_t i = 0; i < shapes.size(); ++i) inputs[i].shape = shapes[i];
  return draw(inputs, row.name());
}

// Incoming gradients and weights: nowhere near 0, never alike.
Tensor uneven(const Shape& shape, DType dtype, uint64_t seed) {
  Rng rng(seed);
  Tensor w = Tensor::empty(shape, DType::f64);
  double* p = w.mutable_data<double>();
  for (int64_t i = 0; i < w.numel(); ++i) p[i] = rng.uniform(0.5, 1.5) * (rng.bernoulli(0.5) ? 1 : -1);
  return w.to(dtype);
}

std::vector<size_t> floating(const Tensors& inputs) {
  std::vector<size_t> places;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_floating(inputs[i].dtype())) places.push_back(i);
  }
  return places;
}

std::vector<Array> arrays(const Tensors& inputs) { return {inputs.begin(), inputs.end()}; }

Tensor value(const Function& f, const Tensors& inputs) {
  std::vector<Var> constants(inputs.begin(), inputs.end());
  return f(constants).value();
}

struct Result {
  Tensor y;
  Tensors gradients;  // by input; undefined where there is none
};

// The value, and the gradients for an uneven incoming gradient or the one given.
Result differentiate(const Function& f, const Tensors& inputs, const Tensor& seed = {}) {
  Tape tape;
  std::vector<Var> xs;
  for (const Tensor& x : inputs) xs.push_back(is_floating(x.dtype()) ? tape.leaf(x) : Var(x));
  Var y = f(xs);
  Result result{y.value(), Tensors(inputs.size())};
  if (!y.tracked()) return result;
  Gradients grads = tape.backward(y, seed.defined() ? seed : uneven(y.shape(), y.dtype(), 9));
  for (size_t i = 0; i < xs.size(); ++i) {
    if (const Tensor* g = grads.find(xs[i])) result.gradients[i] = *g;
  }
  return result;
}

// Gradients that can be differentiated again, for the uneven incoming gradient. An input that y does not depend on has
// an undefined one.
std::vector<Var> differentiate_recorded(const Function& f, const Tensors& inputs) {
  Tape tape;
  std::vector<Var> xs, leaves;
  for (const Tensor& x : inputs) {
    xs.push_back(is_floating(x.dtype()) ? tape.leaf(x) : Var(x));
    if (xs.back().tracked()) leaves.push_back(xs.back());
  }
  Var y = f(xs);
  if (!y.tracked()) return {};
  return grad(y, leaves, {.create_graph = true, .allow_unused = true, .seed = uneven(y.shape(), y.dtype(), 9)});
}

// Every gradient has its input's shape and dtype, is row-major and shares no memory.
void check_gradients_fit(const Result& result, const Tensors& inputs) {
  for (size_t i : floating(inputs)) {
    CAPTURE(i);
    REQUIRE(result.gradients[i].defined());
    CHECK(result.gradients[i].shape() == inputs[i].shape());
    CHECK(result.gradients[i].dtype() == inputs[i].dtype());
    CHECK(result.gradients[i].is_contiguous());
    CHECK(result.gradients[i].unique());
  }
}

void check_derivatives(const Function& f, const Tensors& inputs, int order, const GradcheckOptions& given = {}) {
  for (int k = 1; k <= order; ++k) {
    GradcheckOptions options = given;
    options.order = k;
    GradcheckReport report = check(f, inputs, options);
    CAPTURE(k);
    INFO(to_string(report));
    CHECK(report.ok());
  }
}

// ---- Layouts: the same values, differently placed in memory ---------------------------------------------------------

struct Layout {
  std::string name;
  std::function<Tensor(const Tensor& x, double gap)> place;      // a dense base for x
  std::function<Var(const Var& base, const Shape& shape)> view;  // x, or something like it, as a view of the base
  std::function<Tensor(const Tensor& gradient, const Shape& base)> adjoint;  // of view
};

// Every second element along the first and the last axis, surrounded by gaps.
Tensor stepped_base(const Tensor& x, double gap) {
  if (x.rank() == 0) return x.clone();
  Shape shape = x.shape();
  std::set<int> axes = {0, x.rank() - 1};
  for (int axis : axes) shape[axis] = 2 * shape[axis] + 1;
  Scalar filler = is_floating(x.dtype()) ? Scalar(gap) : x.dtype() == DType::i64 ? Scalar(-99) : Scalar(true);
  Tensor base = Tensor::full(shape, filler, x.dtype());
  Tensor window = base;
  for (int axis : axes) window = window.slice(axis, 1, shape[axis], 2);
  window.copy_(x);
  return base;
}
Var stepped_view(const Var& base, const Shape&) {
  Var x = base;
  if (x.rank() > 0) x = slice(x, 0, 1, x.size(0), 2);
  if (x.rank() > 1) x = slice(x, -1, 1, x.size(-1), 2);
  return x;
}

Layout expanded(const char* name, std::function<bool(int axis, int rank)> repeats) {
  return {name,
          [repeats](const Tensor& x, double) {
            Tensor base = x;
            for (int i = 0; i < x.rank(); ++i) {
              if (repeats(i, x.rank())) base = base.slice(i, 0, 1);
            }
            return base.clone();
          },
          [](const Var& base, const Shape& shape) { return base.shape() == shape ? base : expand(base, shape); },
          [](const Tensor& gradient, const Shape& base) {
            Array from(gradient), total(base);
            for_each_index(from.shape, [&](const Index& i) {
              Index to = i;
              for (int k = 0; k < base.rank(); ++k) to[static_cast<size_t>(k)] %= base[k];
              total(to) += from(i);
            });
            return Tensor::from(total.data, base).to(gradient.dtype());
          }};
}

const std::vector<Layout>& layouts() {
  auto swapped = [](const Tensor& x) { return x.rank() < 2 ? x.clone() : x.transpose(0, -1).clone(); };
  static const std::vector<Layout> list = {
      {"transposed", [=](const Tensor& x, double) { return swapped(x); },
       [](const Var& base, const Shape&) { return base.rank() < 2 ? base : transpose(base, 0, -1); },
       [=](const Tensor& gradient, const Shape&) { return swapped(gradient); }},
      {"stepped", stepped_base, stepped_view,
       [](const Tensor& gradient, const Shape&) { return stepped_base(gradient, 0); }},
      expanded("expanded along the first axis", [](int axis, int) { return axis == 0; }),
      expanded("expanded along the last axis", [](int axis, int rank) { return axis == rank - 1; }),
      expanded("expanded along all axes", [](int, int) { return true; }),
  };
  return list;
}

// f of inputs of which those at `places` lie in memory as `layout` says.
struct Placed {
  Tensors bases;
  Function f;
};
Placed place(const Function& f, const Tensors& inputs, const Layout& layout, const std::vector<size_t>& places) {
  Placed placed{inputs, {}};
  std::vector<Shape> shapes;
  for (size_t i = 0; i < inputs.size(); ++i) shapes.push_back(inputs[i].shape());
  for (size_t i : places) placed.bases[i] = layout.place(inputs[i], std::nan(""));
  placed.f = [f, shapes, view = layout.view, places](In bases) {
    std::vector<Var> xs(bases.begin(), bases.end());
    for (size_t i : places) xs[i] = view(bases[i], shapes[i]);
    return f(xs);
  };
  return placed;
}

// visit(layout, inputs that lie so): all of them together, and each alone.
void for_each_placing(const Tensors& inputs,
                      const std::function<void(const Layout&, const std::vector<size_t>&)>& visit) {
  for (const Layout& layout : layouts()) {
    std::vector<size_t> changed;
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensor base = layout.place(inputs[i], 0);
      if (layout.view(base, inputs[i].shape()).value().strides() != inputs[i].strides()) changed.push_back(i);
    }
    if (!changed.empty()) visit(layout, changed);
    if (changed.size() < 2) continue;
    for (size_t i : changed) visit(layout, {i});
  }
}

// ---- Names
// -----------------------------------------------------------------------------------------------------------

std::set<std::string> recorded;
void collect(const char* op) { recorded.insert(op); }

// What passes to record() while it lives.
class Recorder {
 public:
  Recorder() {
    recorded.clear();
    detail::on_op = collect;
  }
  ~Recorder() { detail::on_op = nullptr; }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
};

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// All first groups of `pattern`.
std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) found.push_back((*it)[1]);
  return found;
}

std::vector<std::filesystem::path> sources(const std::string& extension) {
  std::vector<std::filesystem::path> found;
  for (const char* folder : {"core", "ops", "nn", "models"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::filesystem::path(TAPEDECK_SOURCE_DIR) / folder)) {
      if (entry.path().extension() == extension) found.push_back(entry.path());
    }
  }
  return found;
}

std::string without(const std::set<std::string>& from, const std::set<std::string>& what) {
  std::string rest;
  for (const std::string& name : from) {
    if (!what.contains(name)) rest += name + ' ';
  }
  return rest;
}

}  // namespace

TEST_SUITE("ops") {
TEST_CASE("every op has its row and every row its op") {
  std::set<std::string> declared, rows;
  for (const Sample& row : op_samples()) {
    rows.insert(row.op);
    if (!row.composed) declared.insert(row.op);
    declared.insert(row.also.begin(), row.also.end());
  }

  // Names that reach the tape, forward and backward, and where the backward pass is recorded itself.
  std::set<std::string> seen;
  for (const Sample& row : op_samples()) {
    Recorder recorder;
    differentiate(row.f, draw(row));
    differentiate_recorded(row.f, draw(row));
    seen.insert(recorded.begin(), recorded.end());
  }
  CHECK(without(seen, declared) == "");
  CHECK(without(declared, seen) == "");

  // An op's own rows record its own name.
  std::map<std::string, bool> own;
  for (const Sample& row : op_samples()) {
    Recorder recorder;
    value(row.f, draw(row));
    own[row.op] = own[row.op] || row.composed || recorded.contains(row.op);
  }
  for (const auto& entry : own) CHECK_MESSAGE(entry.second, entry.first);

  // Names in the sources, also where a helper `Var helper(const char* op, ...)` passes them on.
  std::set<std::string> written;
  std::vector<std::filesystem::path> files = sources(".cpp"), headers = sources(".h");
  files.insert(files.end(), headers.begin(), headers.end());
  for (const auto& path : files) {
    const std::string text = std::regex_replace(text_of(path), std::regex("//[^\n]*"), "");
    for (const std::string& name : matches(text, R"(\brecord(?:_\w+)?\(\s*"(\w+)\")")) written.insert(name);
    std::vector<std::string> helpers = matches(text, R"(\nVar (\w+)\(const char\* op\b)");
    for (const std::string& helper : helpers) {
      for (const std::string& name : matches(text, "\\b" + helper + R"(\(\s*"(\w+)\")")) written.insert(name);
    }
    INFO(path.string());
    CHECK_MESSAGE((helpers.size() > 0 || matches(text, R"((\brecord(?:_\w+)?\(\s*op\b))").empty()),
                  "an op's name that this test cannot find");
  }
  // Fused layers of nn have no row here: the modules' rows record them.
  std::set<std::string> fused;
  for (const ModuleSample& sample : module_samples()) {
    Recorder recorder;
    const ModuleCase one = sample.make();
    std::vector<Var> in;
    for (const NamedTensor& input : one.inputs) in.push_back(input.value);
    one.f(in);
    fused.insert(recorded.begin(), recorded.end());
  }
  for (const std::string& name : fused) written.erase(declared.contains(name) ? "" : name);
  CHECK(written.size() > 40);
  CHECK(without(written, declared) == "");
  CHECK(without(declared, written) == "");

  // Public functions.
  std::set<std::string> functions;
  for (const auto& path : sources(".h")) {
    if (path.parent_path().filename() != "ops" && path.filename() != "var.h") continue;
    for (const std::string& name : matches(text_of(path), R"(\n(?:Var|std::vector<Var>|Ordered|void) (\w+)\()"))
      functions.insert(name);
  }
  CHECK(without(functions, rows) == "singular_factor ");  // for rules
  CHECK(without(rows, functions) == "checkpoint ");       // the engine's
}

TEST_CASE("every op is asked about empty tensors and wrong arguments") {
  std::set<std::string> empty, bad, all;
  auto has_zero = [](const std::vector<Shape>& shapes) {
    return std::any_of(shapes.begin(), shapes.end(), [](const Shape& shape) { return shape.numel() == 0; });
  };
  for (const Sample& row : op_samples()) {
    all.insert(row.op);
    std::vector<Shape> shapes;
    for (const Draw& input : row.inputs) shapes.push_back(input.shape);
    if (!row.empty.empty() || has_zero(shapes)) empty.insert(row.op);
    for (const auto& list : row.empty) CHECK_MESSAGE((has_zero(list) && list.size() == row.inputs.size()), row.name());
    if (!row.bad.empty()) bad.insert(row.op);
  }
  CHECK(without(all, empty) == "");
  CHECK(without(all, bad) == "contiguous ");  // takes everything
}

TEST_CASE("values equal a naive reference") {
  for (const Sample& row : op_samples()) {
    INFO(row.name());
    Tensors inputs = draw(row);
    Array expected = row.expect(arrays(inputs));
    std::vector<uint32_t> versions;
    for (const Tensor& x : inputs) versions.push_back(x.version());
    Tensor y = value(row.f, inputs);
    CHECK(y.shape() == expected.shape);
    CHECK(distance(Array(y), expected) <= tight);
    for (size_t i = 0; i < inputs.size(); ++i) CHECK(inputs[i].version() == versions[i]);  // nothing written in place
  }
}

TEST_CASE("f32 agrees with f64") {
  for (const Sample& row : op_samples()) {
    INFO(row.name());
    Tensors rounded = in_dtype(draw(row), DType::f32);
    Result exact = differentiate(row.f, in_dtype(rounded, DType::f64));
    Tensor seed = is_floating(exact.y.dtype()) ? uneven(exact.y.shape(), DType::f32, 9) : Tensor();
    if (row.order > 0) exact = differentiate(row.f, in_dtype(rounded, DType::f64), seed.to(DType::f64));
    Result y = differentiate(row.f, rounded, seed);
    CHECK(y.y.dtype() == (exact.y.dtype() == DType::f64 ? DType::f32 : exact.y.dtype()));
    CHECK(distance(y.y, exact.y) <= single);
    if (row.order == 0) continue;
    check_gradients_fit(y, rounded);
    for (size_t i : floating(rounded)) CHECK(distance(y.gradients[i], exact.gradients[i]) <= single);
  }
}

TEST_CASE("gradients have the shape and dtype of their inputs") {
  for (const Sample& row : op_samples()) {
    if (row.order == 0) continue;
    INFO(row.name());
    for (DType dtype : {DType::f64, DType::f32}) {
      Tensors inputs = in_dtype(draw(row), dtype);
      check_gradients_fit(differentiate(row.f, inputs), inputs);
    }
  }
}

TEST_CASE("first and second derivatives agree with differences") {
  for (const Sample& row : op_samples()) {
    INFO(row.name());
    check_derivatives(row.f, draw(row), row.order, {.excluded = row.excluded});
  }
}

TEST_CASE("ops declared non-differentiable give constants") {
  int rows = 0;
  for (const Sample& row : op_samples()) {
    if (row.order > 0) continue;
    INFO(row.name());
    Tensors inputs = draw(row);
    Tape tape;
    std::vector<Var> xs;
    for (const Tensor& x : inputs) xs.push_back(is_floating(x.dtype()) ? tape.leaf(x) : Var(x));
    size_t before = tape.size();
    CHECK_FALSE(row.f(xs).tracked());
    CHECK(tape.size() == before);
    ++rows;
  }
  CHECK(rows > 10);
}

TEST_CASE("strided inputs give the same values") {
  for (const Sample& row : op_samples()) {
    for (DType dtype : {DType::f64, DType::f32}) {
      Tensors inputs = in_dtype(draw(row), dtype);
      for_each_placing(inputs, [&](const Layout& layout, const std::vector<size_t>& places) {
        INFO(row.name(), ": ", layout.name, ", input ", places[0], " of ", places.size());
        Placed placed = place(row.f, inputs, layout, places);
        Tensors seen = inputs;  // expanding changes the values
        for (size_t i : places) seen[i] = layout.view(placed.bases[i], inputs[i].shape()).value();
        Array expected = row.expect(arrays(seen));
        Tensor y = value(placed.f, placed.bases);
        CHECK(y.shape() == expected.shape);
        CHECK(distance(Array(y), expected) <= bound_of(dtype));
      });
    }
  }
}

TEST_CASE("strided inputs give the same gradients") {
  for (const Sample& row : op_samples()) {
    if (row.order == 0) continue;
    for (DType dtype : {DType::f64, DType::f32}) {
      Tensors inputs = in_dtype(draw(row), dtype);
      for_each_placing(inputs, [&](const Layout& layout, const std::vector<size_t>& places) {
        INFO(row.name(), ": ", layout.name, ", input ", places[0], " of ", places.size());
        Placed placed = place(row.f, inputs, layout, places);
        Tensors dense = inputs;
        for (size_t i : places) dense[i] = layout.view(placed.bases[i], inputs[i].shape()).value().clone();
        Result expected = differentiate(row.f, dense), y = differentiate(placed.f, placed.bases);
        check_gradients_fit(y, placed.bases);
        for (size_t i : floating(inputs)) {
          bool moved = std::find(places.begin(), places.end(), i) != places.end();
          Tensor g = moved ? layout.adjoint(expected.gradients[i], placed.bases[i].shape()) : expected.gradients[i];
          CHECK(distance(y.gradients[i], g) <= bound_of(dtype));
        }
      });
    }
  }
}

TEST_CASE("derivatives through strided inputs agree with differences") {
  for (const Sample& row : op_samples()) {
    if (!row.excluded.empty()) continue;  // by row of the dense input; its strided gradients are compared above
    Tensors inputs = draw(row);
    for_each_placing(inputs, [&](const Layout& layout, const std::vector<size_t>& places) {
      INFO(row.name(), ": ", layout.name, ", input ", places[0], " of ", places.size());
      Placed placed = place(row.f, inputs, layout, places);
      for (size_t i : places) placed.bases[i] = layout.place(inputs[i], 0.25);
      check_derivatives(placed.f, placed.bases, row.order);
    });
  }
}

TEST_CASE("empty inputs have values and gradients") {
  for (const Sample& row : op_samples()) {
    for (const std::vector<Shape>& shapes : row.empty) {
      std::string list;
      for (const Shape& shape : shapes) list += to_string(shape) + ' ';
      INFO(row.name(), ": ", list);
      Tensors inputs = draw(row, shapes);
      Array expected = row.expect(arrays(inputs));
      for (DType dtype : {DType::f64, DType::f32}) {
        Tensors xs = in_dtype(inputs, dtype);
        Result result = differentiate(row.f, xs);
        CHECK(result.y.shape() == expected.shape);
        CHECK(distance(Array(result.y), expected) <= bound_of(dtype));
        if (row.order > 0) check_gradients_fit(result, xs);
      }
      // What is infinite over nothing (logsumexp) has no differences.
      bool finite = std::all_of(expected.data.begin(), expected.data.end(), [](double v) { return std::isfinite(v); });
      if (finite) check_derivatives(row.f, inputs, row.order);
      for_each_placing(inputs, [&](const Layout& layout, const std::vector<size_t>& places) {
        INFO(layout.name);
        Placed placed = place(row.f, inputs, layout, places);
        Tensors seen = inputs;
        for (size_t i : places) seen[i] = layout.view(placed.bases[i], inputs[i].shape()).value();
        Result result = differentiate(placed.f, placed.bases);
        CHECK(distance(Array(result.y), row.expect(arrays(seen))) <= tight);
        if (row.order > 0) check_gradients_fit(result, placed.bases);
      });
    }
  }
}

TEST_CASE("the same tensor may be passed twice") {
  std::set<std::string> several, twice;
  for (const Sample& row : op_samples()) {
    if (row.order == 0) continue;
    Tensors inputs = draw(row);
    std::vector<size_t> places = floating(inputs);
    if (places.size() > 1) several.insert(row.op);
    for (size_t i : places) {
      for (size_t j : places) {
        if (i >= j || inputs[i].shape() != inputs[j].shape()) continue;
        twice.insert(row.op);
        INFO(row.name(), ": inputs ", i, " and ", j);
        Tensors equal = inputs;
        equal[i] = equal[j];
        Result apart = differentiate(row.f, equal);
        Tensors shorter = equal;
        shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(j));
        Function once = [f = row.f, i, j](In x) {
          std::vector<Var> xs(x.begin(), x.end());
          xs.insert(xs.begin() + static_cast<std::ptrdiff_t>(j), x[i]);
          return f(xs);
        };
        Result together = differentiate(once, shorter);
        CHECK(distance(together.y, apart.y) == 0);
        CHECK(distance(Array(together.gradients[i]), added(apart.gradients[i], apart.gradients[j])) <= tight);
        check_derivatives(once, shorter, row.order);
      }
    }
  }
  CHECK(without(several, twice) == "");
}

TEST_CASE("an input held constant gets no gradient and no edge") {
  for (const Sample& row : op_samples()) {
    if (row.order == 0) continue;
    Tensors inputs = draw(row);
    Result all = differentiate(row.f, inputs);
    std::vector<size_t> places = floating(inputs);
    for (size_t held : places) {
      INFO(row.name(), ": input ", held);
      Tape tape;
      std::vector<Var> xs;
      Var leaf;
      for (size_t i = 0; i < inputs.size(); ++i) {
        xs.push_back(is_floating(inputs[i].dtype()) ? tape.leaf(inputs[i]) : Var(inputs[i]));
        if (i == held) leaf = std::exchange(xs[i], xs[i].detach());
      }
      size_t before = tape.size();
      Var y = row.f(xs);
      CHECK(distance(y.value(), all.y) == 0);
      if (places.size() == 1) {
        CHECK_FALSE(y.tracked());
        CHECK(tape.size() == before);
        continue;
      }
      const auto place = std::find(places.begin(), places.end(), held) - places.begin();  // the leaf's node
      for (uint32_t id = 0; id < tape.size(); ++id) {
        for (uint32_t input : tape.node(id).inputs) CHECK(input != static_cast<uint32_t>(place));
      }
      Gradients grads = tape.backward(y, uneven(y.shape(), y.dtype(), 9));
      CHECK(grads.find(leaf) == nullptr);
      CHECK(grads.size() == places.size() - 1);
      for (size_t i : places) {
        if (i != held) CHECK(distance(grads[xs[i]], all.gradients[i]) == 0);
      }
    }
  }
}

TEST_CASE("without a tape nothing is recorded") {
  for (const Sample& row : op_samples()) {
    INFO(row.name());
    Tensors inputs = draw(row);
    std::vector<Var> constants(inputs.begin(), inputs.end());
    CHECK(live_nodes() == 0);
    CHECK_FALSE(row.f(constants).tracked());
    CHECK(live_nodes() == 0);

    Tape tape;
    CHECK_FALSE(row.f(constants).tracked());
    CHECK(live_nodes() == 0);
    std::vector<Var> xs;
    for (const Tensor& x : inputs) xs.push_back(is_floating(x.dtype()) ? tape.leaf(x) : Var(x));
    const int64_t leaves = live_nodes();
    {
      NoGrad pause;
      // Some ops hand their input on as it is; nothing new may be on the tape.
      row.f(xs);
    }
    CHECK(live_nodes() == leaves);
  }
}

TEST_CASE("gradients add to those of other uses of the input") {
  // L = sum(w1 x) + sum(w2 f(x)), in both orders: w1 + J^T w2
  for (const Sample& row : op_samples()) {
    if (row.order == 0) continue;
    Tensors inputs = draw(row);
    for (size_t i : floating(inputs)) {
      INFO(row.name(), ": input ", i);
      Function alone = [&](In x) {
        std::vector<Var> xs(inputs.begin(), inputs.end());
        xs[i] = x[0];
        return row.f(xs);
      };
      Tensor w1 = uneven(inputs[i].shape(), DType::f64, 3), w2 = uneven(value(row.f, inputs).shape(), DType::f64, 4);
      Array expected = added(w1, differentiate(alone, {inputs[i]}, w2).gradients[0]);
      Function first = [&](In x) { return sum(w1 * x[0]) + sum(w2 * alone(x)); };
      Function second = [&](In x) {
        Var used = sum(w2 * alone(x));
        return used + sum(w1 * x[0]);
      };
      Function together = [&](In x) {
        Var y = alone(x), direct = w1 * x[0];
        return sum(direct) + sum(w2 * y);
      };
      for (const Function& f : {first, second, together}) {
        CHECK(distance(Array(differentiate(f, {inputs[i]}, f64(1)).gradients[0]), expected) <= tight);
      }
    }
  }
}

TEST_CASE("special values") {
  // 0, infinities and NaN must come exactly, other values to the digits given.
  auto agrees = [](const Tensor& y, const Tensor& expected, double bound) {
    Array a(y), b(expected);
    CHECK(a.shape == b.shape);
    if (a.shape != b.shape) return;
    for (size_t i = 0; i < a.data.size(); ++i) {
      const double u = a.data[i], v = b.data[i];
      CAPTURE(i);
      CAPTURE(u);
      CAPTURE(v);
      if (std::isnan(v))
        CHECK(std::isnan(u));
      else if (v == 0 || std::isinf(v))
        CHECK(u == v);
      else
        CHECK(std::abs(u - v) <= bound * std::max(1.0, std::abs(v)));
    }
  };
  int checked = 0;
  for (const Sample& row : op_samples()) {
    for (size_t k = 0; k < row.specials.size(); ++k) {
      const Special& special = row.specials[k];
      for (DType dtype : {DType::f64, DType::f32}) {
        INFO(row.name(), ", special values ", k, ", ", name(dtype));
        const double bound = dtype == DType::f32 ? single : 1e-10;
        Tensors inputs = in_dtype(special.in, dtype);
        Tensor seed = special.seed.defined() ? special.seed.to(dtype) : Tensor::ones(special.out.shape(), dtype);
        Result result = differentiate(row.f, inputs, seed);
        agrees(result.y, special.out, bound);
        if (special.gradients.empty()) continue;
        std::vector<size_t> places = floating(inputs);
        REQUIRE(places.size() == special.gradients.size());
        for (size_t i = 0; i < places.size(); ++i) {
          CAPTURE(places[i]);
          agrees(result.gradients[places[i]], special.gradients[i], bound);
        }
        ++checked;
      }
    }
  }
  CHECK(checked > 60);
}

TEST_CASE("errors name the op and what was given") {
  for (const Sample& row : op_samples()) {
    for (size_t k = 0; k < row.bad.size(); ++k) {
      const Bad& bad = row.bad[k];
      INFO(row.name(), ", wrong arguments ", k);
      std::vector<Var> xs;
      for (size_t i = 0; i < bad.shapes.size(); ++i) {
        DType dtype = bad.dtypes.empty() ? row.inputs.at(i).dtype : bad.dtypes.at(i);
        xs.push_back(Tensor::zeros(bad.shapes[i], dtype));
      }
      std::string message;
      try {
        (bad.f ? bad.f : row.f)(xs);
      } catch (const Error& error) {
        message = error.what();
      }
      CAPTURE(message);
      std::vector<std::string> parts = bad.says;
      parts.push_back(row.op + ":");
      if (bad.names_shapes) {
        for (const Shape& shape : bad.shapes) parts.push_back(to_string(shape));
      }
      for (const std::string& part : parts) CHECK_MESSAGE(message.find(part) != std::string::npos, part);
    }
  }
}

// ---- Cases that a row cannot hold -------------------------------------------------------------------------------

TEST_CASE("a small regression has its gradients by hand") {
  Tape tape;
  Var x = tape.leaf(f64({{1, 2, 3}, {4, 5, 6}})), weight = tape.leaf(f64({{1}, {0}, {-1}}));
  Var bias = tape.leaf(f64({{1, 2, 3}})), label = tape.leaf(f64({{1}, {2}}));
  Var error = matmul(x, weight) + bias - label;
  Var loss = sum(error * error);
  CHECK(loss.item() == 19);
  Gradients grads = tape.backward(loss);
  CHECK(distance(grads[x], f64({{-6, 0, 6}, {-12, 0, 12}})) == 0);
  CHECK(distance(grads[weight], f64({{-54}, {-72}, {-90}})) == 0);
  CHECK(distance(grads[bias], f64({{-10, -6, -2}})) == 0);
  CHECK(distance(grads[label], f64({{6}, {12}})) == 0);
}

TEST_CASE("no op cuts the tape: softmax squared") {
  Tape tape;
  Var x = tape.leaf(f64({1, 2, 3})), y = softmax(x);
  Var loss = sum(y * y);
  CHECK(loss.item() == doctest::Approx(0.5105430578904046).epsilon(1e-13));
  Tensor expected = f64({-0.07571796004928924, -0.13010479484068163, 0.205822754889971});
  CHECK(distance(tape.backward(loss)[x], expected) <= 1e-13);
}

TEST_CASE("ops that only change shape move no data") {
  Tensor x = uneven({2, 1, 6}, DType::f64, 1);
  const std::vector<Var> views = {reshape(x, {3, 4}),
                                  transpose(x, 0, 2),
                                  permute(x, {2, 0, 1}),
                                  expand(x, {5, 2, 3, 6}),
                                  broadcast_to(x, {2, 3, 6}),
                                  unsqueeze(x, 0),
                                  squeeze(x, 1),
                                  slice(x, 2, 1, 6, 2),
                                  select(x, 0, 1),
                                  split(x, 2, -1).at(2),
                                  contiguous(x),
                                  reshape(transpose(x, 0, 1), {12}),
                                  reshape(slice(x, 2, 0, 6, 2), {6})};
  for (size_t i = 0; i < views.size(); ++i) CHECK_MESSAGE(views[i].value().shares_storage(x), i);
  CHECK_FALSE(contiguous(transpose(x, 0, 2)).value().shares_storage(x));
  CHECK_FALSE(reshape(transpose(x, 0, 2), {12}).value().shares_storage(x));
}

TEST_CASE("split keeps the axis and select drops it") {
  Tensor w = f64({{1, 2}, {3, 4}});
  Tape tape;
  Var a = tape.leaf(Tensor::zeros({2, 3, 2}, DType::f64));
  std::vector<Var> parts = split(a, 1, 1);
  REQUIRE(parts.size() == 3);
  Var kept = parts[0] * w;
  CHECK(kept.shape() == Shape{2, 2, 2});
  for (size_t i = 1; i < 3; ++i) kept = kept + parts[i] * w;
  Tensor g = tape.backward(sum(kept), Keep::tape)[a];
  CHECK(distance(g, f64({{{4, 6}, {4, 6}, {4, 6}}, {{4, 6}, {4, 6}, {4, 6}}})) == 0);
  Var dropped = select(a, 1, 0) * w;
  CHECK(dropped.shape() == Shape{2, 2});
  for (int64_t i = 1; i < 3; ++i) dropped = dropped + select(a, 1, i) * w;
  g = tape.backward(sum(dropped))[a];
  CHECK(distance(g, f64({{{1, 2}, {1, 2}, {1, 2}}, {{3, 4}, {3, 4}, {3, 4}}})) == 0);
}

TEST_CASE("products read any strides at any size") {
  // Sizes around the edges of BLAS's tiles; buffers hold NaN before where built with TAPEDECK_POISON.
  std::vector<int64_t> sizes = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65};
  for (DType dtype : {DType::f64, DType::f32}) {
    for (int64_t n : sizes) {
      for (int64_t k : {int64_t{1}, int64_t{5}, n}) {
        for (int64_t m : {int64_t{1}, int64_t{3}, n}) {
          CAPTURE(m);
          CAPTURE(k);
          CAPTURE(n);
          Tensor a = uneven({m, k}, dtype, 1), b = uneven({k, n}, dtype, 2);
          Array expected = product(Array(a), Array(b));
          Tensor at = a.transpose().clone().transpose(), bt = b.transpose().clone().transpose();
          Tensor wide = Tensor::full({k, 2 * n}, std::nan(""), dtype);
          Tensor bs = wide.slice(1, 0, 2 * n, 2);
          bs.copy_(b);
          for (const Tensor& left : {a, at}) {
            for (const Tensor& right : {b, bt, bs}) {
              CHECK(distance(Array(value([](In x) { return matmul(x[0], x[1]); }, {left, right})), expected) <=
                    bound_of(dtype));
            }
          }
        }
      }
    }
  }
  // A view with a stride that means nothing: (1, 3) made by transposing (3, 1), its first two columns.
  Tensor row = Tensor::ones({3, 1}, DType::f64).transpose().slice(1, 0, 2);
  CHECK(distance(value([](In x) { return matmul(x[0], x[1]); }, {row, f64({{0, 1}, {2, 3}})}), f64({{2, 4}})) == 0);
  Tensor repeated_column = f64({{1}, {2}, {3}}).expand({3, 4});
  CHECK(distance(value([](In x) { return matmul(x[0], x[1]); }, {repeated_column, Tensor::ones({4, 2}, DType::f64)}),
                 f64({{4, 4}, {8, 8}, {12, 12}})) == 0);
}

TEST_CASE("sums in f32 do not drift") {
  const float v = 1.23456f;
  const int64_t n = 62500, many = 20'000'000;
  const double exact = static_cast<double>(v) * static_cast<double>(n);
  Tensor equal = Tensor::full({n}, v), columns = Tensor::full({n, 2}, v);
  CHECK(sum(equal).item() == doctest::Approx(exact).epsilon(1e-7));
  CHECK(mean(equal).item() == doctest::Approx(static_cast<double>(v)).epsilon(1e-7));
  for (const Tensor& x : {columns, columns.transpose().clone().transpose(), Tensor::full({1, 2}, v).expand({n, 2}),
                          Tensor::full({n, 4}, v).slice(1, 0, 4, 2)}) {
    CHECK(sum(x, 0).value().at({1}) == doctest::Approx(exact).epsilon(1e-7));
    CHECK(mean(x, 0).value().at({0}) == doctest::Approx(static_cast<double>(v)).epsilon(1e-7));
    CHECK(sum(x).item() == doctest::Approx(2 * exact).epsilon(1e-7));
    CHECK(logsumexp(x, 0).value().at({0}) ==
          doctest::Approx(static_cast<double>(v) + std::log(static_cast<double>(n))).epsilon(1e-6));
  }
  CHECK(sum(Tensor::ones({1}).expand({many})).item() == 2e7);
  // A broadcast operand's gradient is a sum too.
  CHECK(cumsum(equal, 0).value().at({n - 1}) == doctest::Approx(exact).epsilon(1e-7));
  CHECK(norm(equal).item() == doctest::Approx(exact / std::sqrt(static_cast<double>(n))).epsilon(1e-7));
  CHECK(var(equal).item() <= 1e-12);
  Tape tape;
  Var bias = tape.leaf(Tensor::zeros({1}));
  CHECK(tape.backward(sum(equal * (bias + Tensor::ones({n}))))[bias].item() == doctest::Approx(exact).epsilon(1e-7));
}

TEST_CASE("any number of ties shares a gradient evenly") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (bool largest : {true, false}) {
      Tape tape;
      Var x = tape.leaf(Tensor::full({70000}, 3, dtype));
      Array shares(tape.backward(largest ? max(x) : min(x))[x]);
      CHECK(*std::min_element(shares.data.begin(), shares.data.end()) == doctest::Approx(1.0 / 70000).epsilon(1e-6));
      CHECK(*std::max_element(shares.data.begin(), shares.data.end()) == doctest::Approx(1.0 / 70000).epsilon(1e-6));
    }
  }
}

TEST_CASE("no gradient reaches the pad row at any length") {
  for (int64_t n : {1, 768, 769, 5000}) {
    CAPTURE(n);
    Tape tape;
    Var weight = tape.leaf(uneven({4, 3}, DType::f32, 1));
    Tensor ids = Tensor::zeros({n + 1}, DType::i64);
    ids.set({n}, 2);
    Var y = embedding(weight, ids, 0);
    CHECK(distance(select(y, 0, 0).value(), weight.value().select(0, 0)) == 0);  // used as it is
    Tensor expected = Tensor::zeros({4, 3});
    expected.select(0, 2).fill_(1);
    CHECK(distance(tape.backward(sum(y))[weight], expected) == 0);
  }
}
}
