// The engine: a tape of nodes in creation order (a topological order), and one reverse loop over it.
//
//   Tape tape;                                // records on this thread until it dies; no tape, no recording
//   Var loss = model.loss(batch);
//   Gradients grads = tape.backward(loss);    // returned, not hidden in the parameters
//   optimizer.step(grads);
//
// An op is its forward value and one rule per input, written with differentiable ops (see record below). The engine
// sums each gradient back to its input's shape, so rules ignore broadcasting.
#pragma once

#include <tapedeck/core/var.h>

#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace tapedeck {

// ---- Gradients ------------------------------------------------------------------------------------------------

// The gradients of one backward pass, by parameter identity or leaf. "Absent" (the loss does not depend on it) and
// "zero" are different answers. Every gradient has its leaf's shape and dtype, is row-major and shares no memory.
class Gradients {
 public:
  // One gradient.
  struct Entry {
    Parameter parameter;  // absent for a leaf made by tape.leaf()
    Tensor value;         // the gradient
  };

  Gradients() = default;
  Gradients(const Gradients& other);  // copies the tensors too: clipping the copy leaves the original alone
  Gradients(Gradients&&) noexcept = default;
  Gradients& operator=(Gradients other) noexcept {
    keys_.swap(other.keys_);
    entries_.swap(other.entries_);
    return *this;
  }
  ~Gradients() = default;

  // Null where absent.
  const Tensor* find(const Parameter& parameter) const;
  const Tensor* find(const Var& leaf) const;
  Tensor* find(const Parameter& parameter);

  // Throws where absent.
  const Tensor& operator[](const Parameter& parameter) const;
  const Tensor& operator[](const Var& leaf) const;

  // Adds; a gradient absent on one side is taken from the other.
  Gradients& operator+=(const Gradients& other);

  size_t size() const { return entries_.size(); }  // gradients that are not absent

  // The entries in the order in which their leaves came onto the tape.
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  friend class Tape;
  using Key = std::pair<uint64_t, uint32_t>;  // parameter identity and ~0, or tape serial and node
  const Tensor* find(Key key) const;
  void insert(Key key, Parameter parameter, Tensor value);

  CachedVector<Key> keys_;
  CachedVector<Entry> entries_;
};

// ---- Rules ----------------------------------------------------------------------------------------------------

namespace detail {

struct Rule {
  virtual Var apply(const Var& g, const Var& y) = 0;
  virtual bool add_to(Tensor&, const Var&) { return false; }  // false: there is no short cut
  virtual bool has_short_cut() const { return false; }
  virtual ~Rule() = default;
};

struct NoShortCut {};

template <class F, class Add>
struct RuleOf final : Rule {
  static constexpr bool with_output = std::is_invocable_v<F&, const Var&, const Var&>;
  static constexpr bool with_short_cut = !std::is_same_v<Add, NoShortCut>;
  [[no_unique_address]] F f;
  [[no_unique_address]] Add add;
  RuleOf(F&& vjp, Add&& short_cut) : f(std::move(vjp)), add(std::move(short_cut)) {}
  Var apply(const Var& g, const Var& y) override {
    if constexpr (with_output)
      return f(g, y);
    else
      return f(g);
  }
  bool add_to(Tensor& sum, const Var& g) override {
    if constexpr (with_short_cut) add(sum, g.value());
    return with_short_cut;
  }
  bool has_short_cut() const override { return with_short_cut; }
};

}  // namespace detail

// An input of an op and its vector-Jacobian product: vjp(g) or vjp(g, y) returns the gradient that reaches x, of x's
// shape or of the broadcast shape. Rules capture inputs as Var only (a Tensor would escape the check for in-place
// changes) and never the output, which the engine hands in.
//
// A rule whose result is mostly zeros can bring a short cut: add(sum, g) adds vjp(g) to the dense tensor `sum` of x's
// shape. The engine takes it where nothing records, so T slices of one tensor cost one buffer and not T.
template <class F, class Add = detail::NoShortCut>
struct Input {
  const Var* x;  // lives until record() returns
  Site site;     // where it was written down, if known
  F vjp;         // the rule
  Add add;       // the short cut, or NoShortCut

  Input(const Operand& operand, F rule, Add short_cut = {})
      : x(&operand.var()), site(operand.site()), vjp(std::move(rule)), add(std::move(short_cut)) {}
  Input(const Var& var, F rule, Add short_cut = {})
      : x(&var), site{}, vjp(std::move(rule)), add(std::move(short_cut)) {}
};
template <class F>
Input(const Operand&, F) -> Input<F>;
template <class F>
Input(const Var&, F) -> Input<F>;

// ---- Fused ops ------------------------------------------------------------------------------------------------

// The forward value of a fused op, and what its backward kernel wants to see again.
struct FusedValue {
  Tensor y;                         // the value
  CachedVector<Tensor> saved = {};  // comes back as FusedPass::saved
};

// What a fused op's backward kernel is given. It returns one gradient an input, in order, in a std::array or any other
// container; undefined where not needed.
struct FusedPass {
  const Tensor& g;                 // the incoming gradient, dense
  const Tensor& y;                 // the value
  std::span<const Tensor> saved;   // FusedValue::saved
  std::span<const Tensor> inputs;  // their values
  std::span<const bool> needs;     // which inputs want a gradient
};

namespace detail {

struct FusedRule {
  CachedVector<Var> inputs, saved;  // inputs: all of them, tracked or not
  std::span<bool> needs;            // which inputs are tracked; in the tape's arena
  Var y;                            // a constant
  virtual CachedVector<Tensor> vjp(const FusedPass& pass) = 0;
  virtual Var definition(std::span<const Var> inputs) = 0;
  virtual ~FusedRule() = default;
  static void* operator new(size_t bytes) { return cached_allocate(bytes); }
  static void operator delete(void* rule) { cached_free(rule); }
};

template <class Vjp, class Definition>
struct FusedRuleOf final : FusedRule {
  Vjp kernel;
  Definition composed;
  FusedRuleOf(Vjp&& v, Definition&& d) : kernel(std::move(v)), composed(std::move(d)) {}
  CachedVector<Tensor> vjp(const FusedPass& pass) override {
    auto gx = kernel(pass);
    return CachedVector<Tensor>(std::move_iterator(gx.begin()), std::move_iterator(gx.end()));
  }
  Var definition(std::span<const Var> x) override { return composed(x); }
};

}  // namespace detail

// ---- Tape -----------------------------------------------------------------------------------------------------

// What a backward pass leaves behind.
enum class Keep { nothing, tape };

struct GradOptions;

enum class Trace { off, on };    // keep every value and gradient, to be printed, exported and stepped through
enum class Anomaly { off, on };  // stop at the first op that makes a NaN or an Inf, forward or backward
enum class Profile { off, on };  // count calls, time and bytes by op

// definitions: a fused op is recorded as the small ops that define it, to be looked into
enum class Fused { kernels, definitions };

// What a tape watches beside its work; nothing by default.
struct TapeOptions {
  Trace trace = Trace::off;        // values and gradients
  Anomaly anomaly = Anomaly::off;  // NaN and Inf
  Profile profile = Profile::off;  // calls, time and bytes
  Fused fused = Fused::kernels;    // how fused ops are recorded
};

// A value kept for the backward pass of a node.
struct SavedValue {
  bool output;    // the node's own result; else an input that a rule captured
  Shape shape;    // of the value
  int64_t bytes;  // of its elements
};

// With Trace::on: what a node computed and received. A row-major leaf's value is a copy: steps of
// an optimiser leave it alone.
struct TracedNode {
  Tensor value;                       // the op's result
  Tensor gradient;                    // in the last backward pass; undefined: none came
  std::vector<Tensor> contributions;  // what it passed on to each of NodeInfo::inputs; empty: it was not swept
  std::vector<SavedValue> saved;      // what its rules kept
};

// One op in a profile.
struct ProfileRow {
  std::string op;                // its name
  int64_t calls = 0, bytes = 0;  // bytes: of results
  // Forward: since the op recorded before, or the backward pass. Backward: in the op's rules; the ops of a backward
  // pass that is recorded itself count for themselves.
  double forward_seconds = 0, backward_seconds = 0;
};

// A table: op, calls, time forward and backward, share, bytes.
std::string to_string(const std::vector<ProfileRow>& rows);

// Called with the gradient of a value when it is complete, before its rules run; returns what to go on with.
using GradientHook = std::function<Var(const Var& g)>;

// What is known about a node, for study and for error messages.
struct NodeInfo {
  std::string op;                // its name; "leaf" and "parameter" for these
  Shape shape;                   // of the value
  DType dtype;                   // of the value
  std::vector<uint32_t> inputs;  // nodes, tracked inputs only
  Site site;                     // the innermost line
  Site user_site;                // the line outside the library that called in
  std::string scope;             // "decoder.step[3]/attention"; empty outside all scopes
};

// The record of one computation, made by the thread that runs it: no two threads use one tape.
class Tape {
 public:
  Tape() : Tape(TapeOptions{}) {}
  explicit Tape(const TapeOptions& options);
  explicit Tape(Trace trace) : Tape(TapeOptions{.trace = trace}) {}
  explicit Tape(Anomaly anomaly) : Tape(TapeOptions{.anomaly = anomaly}) {}
  explicit Tape(Profile profile) : Tape(TapeOptions{.profile = profile}) {}
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // A floating tensor to differentiate with respect to.
  Var leaf(const Tensor& value, const char* file = __builtin_FILE(), int line = __builtin_LINE());

  // Gradients of `loss` with respect to all leaves and parameters it depends on. One element needs no seed; otherwise
  // the seed has the loss's shape and dtype. Consumes the tape: rules and saved values die as soon as they have run;
  // with Keep::tape it can be swept again, and each pass returns the same gradients.
  // Throws: loss not on this tape, no seed, wrong seed, tape consumed, a recorded value changed in place since.
  Gradients backward(const Var& loss, Keep keep = Keep::nothing);
  Gradients backward(const Var& loss, const Tensor& seed, Keep keep = Keep::nothing);

  size_t size() const { return nodes_.size(); }  // nodes; they are numbered 0..size()-1
  bool consumed() const { return consumed_; }    // a backward pass has freed the rules
  NodeInfo node(uint32_t id) const;              // throws for an id that is not in 0..size()-1
  NodeInfo node(const Var& var) const;           // throws for a Var of another tape
  uint32_t id(const Var& var) const;             // its node; throws for a Var of another tape

  // Gradients of intermediate values. Hooks run in the order they were added, in every pass.
  void add_hook(const Var& value, GradientHook hook);
  void retain_gradient(const Var& value);  // backward() then also returns the gradient of this value

  // For study; traced() and profile() throw unless the tape was made for it.
  bool traces() const;
  const TracedNode& traced(uint32_t id) const;
  std::vector<ProfileRow> profile() const;  // the most expensive first

  // Engine side: used by record(), grad() and Operand.
  static Tape* recording();                        // the tape that records on this thread, or null
  Var parameter_leaf(const Parameter& parameter);  // its leaf on this tape, made at first use

  // Enter a computed value with its rules; record() and record_fused() call these where a tape records.
  template <class... F, class... Add>
  Var add_node(const char* op, Tensor&& y, Input<F, Add>&... inputs);
  template <class F, class Add>
  Var add_node(const char* op, Tensor&& y, std::span<Input<F, Add>> inputs);
  Var add_fused_node(const char* op, FusedValue&& value, std::span<const Operand> inputs,
                     std::unique_ptr<detail::FusedRule> rule);

  // True with Trace, Anomaly or Profile on, or hooks.
  bool studies() const { return study_ != nullptr; }

  // True with Fused::definitions.
  bool records_definitions() const { return fused_ == Fused::definitions; }

  // Profiles the op that has just computed y, and checks y for NaN and Inf.
  void observe(const char* op, const Tensor& y, std::span<const Var* const> inputs, Site site);

 private:
  friend class NoGrad;
  friend class Scope;
  friend std::vector<Var> grad(const Var&, std::span<const Var>, const GradOptions&);
  friend int64_t live_nodes();

  struct Edge {
    uint32_t input;
    detail::Rule* rule;
  };
  struct ScopeRecord {
    const char* name;
    int64_t index;
    const ScopeRecord* parent;
  };
  struct Node {
    const char* op;
    const ScopeRecord* scope;
    Tensor y;  // kept only if a rule wants it
    uint32_t y_version;
    uint32_t first_edge, edge_count;
    DType dtype;
    Site site, user_site;
    detail::FusedRule* fused;  // stands for the rules of all edges
    Shape shape;
  };
  // Bump allocation for rules and scope records; everything goes at once.
  class Arena {
   public:
    ~Arena();
    void* allocate(size_t bytes);

   private:
    struct Block {
      Block* previous;
    };
    Block* block_ = nullptr;
    std::byte* next_ = nullptr;
    std::byte* end_ = nullptr;
  };

  void check_input(const char* op, const Var& x) const;
  uint32_t push_node(const char* op, const Tensor& y, bool keep_y, Site site, size_t edges);
  template <class F, class Add>
  void push_edge(Input<F, Add>& input);
  template <class F>
  void note_saved(const F& rule);
  void begin_noting();
  void end_noting();
  Var place(Tensor&& y, uint32_t id) const { return Var(std::move(y), serial_, id); }
  const ScopeRecord* scope_record();

  // One backward pass over nodes first..y, and the gradients it has gathered for nodes base..y.
  struct Sweep {
    bool record, consume;
    uint32_t base;
    CachedVector<Var> g;
    CachedVector<bool> keep;

    Var& of(uint32_t id) { return g[id - base]; }
  };
  Sweep sweep(const Var& y, Var seed, std::span<const Var> wanted, bool record, bool consume, uint32_t base = 0,
              uint32_t first = 0);
  void run_rules(Sweep& pass, const Node& node, uint32_t id, const Var& g);
  void run_fused(Sweep& pass, const Node& node, uint32_t id, const Var& g);
  void run_definition(Sweep& pass, const Node& node, uint32_t id, const Var& g);
  void pass_on(Sweep& pass, const Node& node, uint32_t id, uint32_t edge, const Var& g, const Var& gx);
  Var checked_term(const Node& node, uint32_t id, uint32_t edge, const Var& g, const Var& gx);
  static Tape* tape_of(const char* op, const Var& y);
  std::vector<Var> gradients(const Var& y, std::span<const Var> xs, const GradOptions& options);
  Var checked_seed(const char* op, const Var& y, const Var& seed) const;
  void check_own(const char* op, const Var& y) const;
  void drop_rules(uint32_t id);
  std::string place_of(const Node& node) const;
  static std::string path_of(const ScopeRecord* scope);
  static Site current_user_site();
  const ScopeRecord* current_scope_record();

  struct Study;
  Study& study();
  const Study& study_for(const char* what, bool made_for) const;
  void note_contribution(const Node& node, uint32_t id, uint32_t edge, const Var& g, const Var& term);
  Var note_gradient(const Node& node, uint32_t id, const Var& g);

  struct LeafRecord {
    uint32_t node;
    Parameter parameter;
  };

  uint64_t serial_;
  bool consumed_ = false;
  Fused fused_;
  Tape* outer_;             // next of this thread's live tapes
  Tape* recording_before_;  // what recorded before this tape did
  CachedVector<Node> nodes_;
  CachedVector<Edge> edges_;
  CachedVector<LeafRecord> leaves_;
  std::unordered_map<uint64_t, uint32_t, std::hash<uint64_t>, std::equal_to<>,
                     CachingAllocator<std::pair<const uint64_t, uint32_t>>>
      parameter_nodes_;  // identity -> leaf
  Arena arena_;
  std::unique_ptr<Study> study_;  // only where something is studied
};

// Nodes on this thread's live tapes.
int64_t live_nodes();

// ---- Recording ------------------------------------------------------------------------------------------------

namespace detail {
// Test hook: called with every op's name on this thread; null: off.
using OpHook = void (*)(const char* op);
extern constinit thread_local OpHook on_op;
}  // namespace detail

// The one way an op enters the tape:
//
//   return record("mul", y, Input{a, [b](const Var& g) { return g * b; }}, Input{b, [a](const Var& g) { return g * a;
//   }});
//
// Without a recording tape, or where no input is tracked, nothing is stored and y comes back as a constant. Rules of
// untracked inputs, and all they captured, are dropped.
template <class... F, class... Add>
Var record(const char* op, Tensor y, Input<F, Add>... inputs) {
  if (detail::on_op) detail::on_op(op);
  Tape* tape = Tape::recording();
  if (tape && tape->studies()) [[unlikely]] {
    const Var* all[] = {inputs.x...};
    Site site{};
    ((site.file ? void() : void(site = inputs.site)), ...);
    tape->observe(op, y, all, site);
  }
  if (!tape || !(inputs.x->tracked() || ...)) return Var(std::move(y));
  return tape->add_node(op, std::move(y), inputs...);
}

// The same for any number of inputs (cat).
template <class F, class Add>
Var record(const char* op, Tensor y, std::span<Input<F, Add>> inputs) {
  if (detail::on_op) detail::on_op(op);
  Tape* tape = Tape::recording();
  bool tracked = false;
  for (const Input<F, Add>& input : inputs) tracked = tracked || input.x->tracked();
  if (tape && tape->studies()) [[unlikely]] {
    std::vector<const Var*> all;
    for (const Input<F, Add>& input : inputs) all.push_back(input.x);
    tape->observe(op, y, all, inputs.empty() ? Site{} : inputs[0].site);
  }
  if (!tape || !tracked) return Var(std::move(y));
  return tape->add_node(op, std::move(y), inputs);
}

// For ops declared non-differentiable (comparisons, argmax): the result is a constant.
inline Var record_constant(const char* op, Tensor y) {
  if (detail::on_op) detail::on_op(op);
  if (Tape* tape = Tape::recording(); tape && tape->studies()) [[unlikely]]
    tape->observe(op, y, {}, {});
  return Var(std::move(y));
}

template <class F, class Add>
void Tape::push_edge(Input<F, Add>& input) {
  if (!input.x->tracked()) return;
  using Rule = detail::RuleOf<F, Add>;
  static_assert(alignof(Rule) <= 16);
  if (studies()) [[unlikely]]
    note_saved(input.vjp);
  void* memory = arena_.allocate(sizeof(Rule));
  edges_.push_back({input.x->id_, new (memory) Rule(std::move(input.vjp), std::move(input.add))});
}

// Copies the rule to see which Vars it holds.
template <class F>
void Tape::note_saved(const F& rule) {
  begin_noting();
  { [[maybe_unused]] F copy = rule; }  // NOLINT(performance-unnecessary-copy-initialization): the Vars in it take note
  end_noting();
}

template <class... F, class... Add>
Var Tape::add_node(const char* op, Tensor&& y, Input<F, Add>&... inputs) {
  ((inputs.x->tracked() ? check_input(op, *inputs.x) : void()), ...);
  Site site{};
  ((site.file ? void() : void(site = inputs.site)), ...);
  bool keep_y = ((inputs.x->tracked() && detail::RuleOf<F, Add>::with_output) || ...);
  uint32_t id = push_node(op, y, keep_y, site, (static_cast<size_t>(inputs.x->tracked()) + ...));
  (push_edge(inputs), ...);
  return place(std::move(y), id);
}

template <class F, class Add>
Var Tape::add_node(const char* op, Tensor&& y, std::span<Input<F, Add>> inputs) {
  size_t tracked = 0;
  Site site{};
  for (const Input<F, Add>& input : inputs) {
    if (!site.file) site = input.site;
    if (!input.x->tracked()) continue;
    check_input(op, *input.x);
    ++tracked;
  }
  uint32_t id = push_node(op, y, detail::RuleOf<F, Add>::with_output, site, tracked);
  for (Input<F, Add>& input : inputs) push_edge(input);
  return place(std::move(y), id);
}

// An op with hand-written kernels, and the composition of small ops that defines it:
//
//   record_fused("name", {a, b}, FusedValue{y, {saved}},
//                [](const FusedPass& pass) { return std::array{grad_a, grad_b}; },   // kernels on tensors
//                [](std::span<const Var> x) { return ...; });                        // the same function of x, by ops
//
// The definition is the oracle of its tests, the text that a student reads, and the way to higher order: where the
// backward pass is recorded, the engine records the definition on an alias of each input and sweeps that. Both lambdas
// may capture settings but no Var: a tracked value that is not an input is an error. No randomness inside.
template <class Vjp, class Definition>
Var record_fused(const char* op, std::initializer_list<Operand> inputs, FusedValue value, Vjp vjp,
                 Definition definition) {
  if (detail::on_op) detail::on_op(op);
  Tape* tape = Tape::recording();
  bool tracked = false;
  for (const Operand& x : inputs) tracked = tracked || x.var().tracked();
  if (tape && tracked && tape->records_definitions()) [[unlikely]] {
    CachedVector<Var> all;
    for (const Operand& x : inputs) all.push_back(x.var());
    return definition(all);
  }
  if (tape && tape->studies()) [[unlikely]] {
    std::vector<const Var*> all;
    for (const Operand& x : inputs) all.push_back(&x.var());
    tape->observe(op, value.y, all, inputs.size() ? inputs.begin()->site() : Site{});
  }
  if (!tape || !tracked) return Var(std::move(value.y));
  return tape->add_fused_node(
      op, std::move(value), std::span(inputs.begin(), inputs.size()),
      std::make_unique<detail::FusedRuleOf<Vjp, Definition>>(std::move(vjp), std::move(definition)));
}

namespace detail {
// A function of Vars that somebody else owns.
struct FunctionRef {
  const void* object;
  Var (*call)(const void*, std::span<const Var>);
  template <class F>
  FunctionRef(const F& f)
      : object(&f), call([](const void* o, std::span<const Var> x) -> Var { return (*static_cast<const F*>(o))(x); }) {}
  Var operator()(std::span<const Var> x) const { return call(object, x); }
};
// checkpoint's forward pass, which records nothing, and its backward pass on a tape of its own.
Tensor run_constant(FunctionRef f, std::span<const Operand> inputs);
CachedVector<Tensor> run_again(FunctionRef f, const FusedPass& pass);
}  // namespace detail

// f(inputs), whose intermediate values are not kept: the backward pass computes them again. f reaches tracked values
// and parameters through its inputs only. (Chen et al. 2016, arXiv:1604.06174)
template <class F>
Var checkpoint(F f, std::initializer_list<Operand> inputs) {
  Tensor y = detail::run_constant(f, inputs);
  return record_fused(
      "checkpoint", inputs, {std::move(y)}, [f](const FusedPass& pass) { return detail::run_again(f, pass); }, f);
}

// Nothing records on this thread while one lives. Restores what was, also when an exception passes.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  Tape* paused_;
};

// Names the part of a model that nodes are made in. `name` must outlive the tape (a string literal); nothing is
// formatted unless asked for.
class Scope {
 public:
  explicit Scope(const char* name, int64_t index = -1);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  friend class Tape;
  const char* name_;
  int64_t index_;
  Scope* outer_;
  uint64_t tape_ = 0;  // the record below belongs to this tape
  const Tape::ScopeRecord* record_ = nullptr;
};

// Opened by every call of a layer or model: the first one on the way in names the line outside the library.
class UserSite {
 public:
  explicit UserSite(const Operand& argument) : UserSite(argument.site()) {}
  explicit UserSite(Site site);
  ~UserSite();
  UserSite(const UserSite&) = delete;
  UserSite& operator=(const UserSite&) = delete;

 private:
  bool set_;
};

// ---- Derivatives of any values --------------------------------------------------------------------------------

// Settings of grad.
struct GradOptions {
  bool create_graph = false;  // record the backward pass behind the old nodes, so that it can be differentiated again
  bool allow_unused = false;  // an x that y does not depend on gives an undefined Var instead of an error
  Var seed = {};              // y's shape; needed unless y has one element
};

// Gradients of y with respect to xs: leaves, parameters or any values on the tape. Keeps the tape.
std::vector<Var> grad(const Var& y, std::span<const Var> xs, const GradOptions& options = {});
inline std::vector<Var> grad(const Var& y, std::initializer_list<Var> xs, const GradOptions& options = {}) {
  return grad(y, std::span(xs.begin(), xs.size()), options);
}

}  // namespace tapedeck
