// THE table of ops. One row for every public op, and for every variant that takes another way through its code:
//
//   {.op = "softmax", .f = [](In x) { return softmax(x[0]); }, .inputs = {real({3, 5})}, .expect = along(-1,
//   softmax_of)},
//
// op_test.cpp runs every row through every property an op must have; the program gradcheck checks every row's
// derivatives, and those of the modules and models below. An op without a row fails a test.
#pragma once

#include "op_samples_reference.h"

#include <tapedeck/core/gradcheck.h>
#include <tapedeck/core/random.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tapedeck::samples {

using In = std::span<const Var>;
using Function = std::function<Var(In)>;

// How an input is drawn. Floating inputs are drawn in f64 and differentiated; the others are constants.
struct Draw {
  Shape shape;
  DType dtype;
  std::function<double(int64_t i, int64_t n, Rng&)> element;  // the i-th of n

  Tensor make(const Shape& extents, Rng& rng) const;  // in any shape
};

Draw real(const Shape& shape, double low = -2, double high = 2);
Draw positive(const Shape& shape);  // 0.5 to 2.5
Draw apart(const Shape& shape);     // for functions with kinks: no two elements, and none and 0, nearer than 0.05
Draw whole(const Shape& shape);     // -2, -1, 0, 1 or 2, in f64: many ties
Draw integers(const Shape& shape);  // -5 to 5, in i64
Draw ids(const Shape& shape, int64_t bound);  // 0 to bound - 1, in i64
Draw mask(const Shape& shape);                // boolean; two of three are true

// Chosen values and what must come of them, in f64 and, rounded, in f32.
struct Special {
  std::vector<Tensor> in;  // floating ones in f64
  Tensor out;
  std::vector<Tensor> gradients = {};  // of the floating inputs; not compared where there are none
  Tensor seed = {};                    // the incoming gradient; ones if undefined
};
Tensor f64(const NestedList& values);

// What must be refused with an Error that contains the op's name, all shapes, and `says`.
struct Bad {
  std::vector<Shape> shapes;
  std::vector<DType> dtypes = {};      // of the inputs, where not the row's
  std::vector<std::string> says = {};  // further parts of the message
  Function f = {};                     // where not the row's
  bool names_shapes = true;            // false: what is wrong is an argument, and `says` has it
};

struct Sample {
  std::string op;            // the public function
  std::string variant = "";  // what this row has that the op's others have not
  Function f;
  std::vector<Draw> inputs;
  Reference expect;
  int order = 2;                               // derivatives checked up to; 0: declared non-differentiable
  std::vector<std::vector<Shape>> empty = {};  // shapes of the inputs with an extent of 0 for which f has an answer
  std::vector<Special> specials = {};
  std::vector<Bad> bad = {};
  std::vector<Excluded> excluded = {};  // from the comparison with differences
  bool composed = false;                // made of other ops: records nothing under its own name
  std::vector<std::string> also = {};   // further names that it records, which have no public function

  std::string name() const { return variant.empty() ? op : op + " (" + variant + ")"; }
};
const std::vector<Sample>& op_samples();

// The inputs of a row: always the same ones for one name.
std::vector<Tensor> draw(const std::vector<Draw>& inputs, std::string_view name);

// Gradcheck of the floating inputs, which the report calls x0, x1, ... by their place; the others are constants.
GradcheckReport check(const Function& f, const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

// ---- Planted wrong rules: gradcheck must catch every one ----------------------------------------------------------

struct Mutant {
  std::string name;
  Function wrong, right;  // equal in value; only a rule of `wrong` is at fault
  std::vector<Draw> inputs;
  int order = 1;               // the first order at which it shows
  bool hidden_by_sum = false;  // a check of L = sum(y) alone lets it pass
};
const std::vector<Mutant>& op_mutants();

// ---- Modules and models -------------------------------------------------------------------------------------------

struct ModuleCase {
  std::function<std::vector<Var>(In)> f;
  std::vector<NamedTensor> inputs;  // f64
  std::vector<NamedParameter> parameters;
  GradcheckOptions options = {};  // directions for what is too big to be checked element by element; exclusions
};

struct ModuleSample {
  std::string name;
  std::function<ModuleCase()> make;
};
const std::vector<ModuleSample>& module_samples();

}  // namespace tapedeck::samples
