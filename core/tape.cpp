#include <tapedeck/core/kernels.h>
#include <tapedeck/core/study.h>
#include <tapedeck/core/tape.h>

#include <algorithm>
#include <mutex>
#include <set>

namespace tapedeck {
namespace {

std::atomic<uint64_t> next_serial{1};  // of tapes and parameters

// Per-thread state, touched only by Tape, NoGrad, Scope and UserSite.
constinit thread_local Tape* recording_tape = nullptr;
constinit thread_local Tape* innermost_tape = nullptr;  // head of this thread's live tapes
constinit thread_local Scope* current_scope = nullptr;
constinit thread_local Site user_site{};

struct ParameterRegistry {
  std::mutex mutex;
  std::set<uint64_t> ids;
};
ParameterRegistry& parameter_registry() {
  static ParameterRegistry* registry = new ParameterRegistry;
  return *registry;
}

// What records while a backward pass runs, and restores what did before.
class RecordingSwitch {
 public:
  explicit RecordingSwitch(Tape*& slot, Tape* tape) : slot_(slot), before_(std::exchange(slot, tape)) {}
  ~RecordingSwitch() { slot_ = before_; }

 private:
  Tape*& slot_;
  Tape* before_;
};

}  // namespace

constinit thread_local detail::OpHook detail::on_op = nullptr;
constinit thread_local std::vector<Tensor>* detail::copied_values = nullptr;

// ---- Var, Parameter, Operand ------------------------------------------------------------------------------------

Var::Var(Tensor value) : value_(std::move(value)), version_(value_.version()) {}

Var::Var(Tensor value, uint64_t tape, uint32_t id)
    : value_(std::move(value)), tape_(tape), id_(id), version_(value_.version()) {}

Var::Var(const Parameter& parameter) {
  Tape* tape = Tape::recording();
  *this = tape && is_floating(parameter.dtype()) ? tape->parameter_leaf(parameter) : Var(parameter.value());
}

void Var::note_copy() const {
  if (value_.defined()) detail::copied_values->push_back(value_);
}

void Var::changed_in_place() const {
  fail(
      "a value of shape {} was changed in place after it was recorded (expected version {}, found version {}): "
      "clone() it before the change, or make the change after the backward pass",
      value_.shape(), version_, value_.version());
}

Parameter::Parameter(Tensor value) {
  value.shape();  // throws if undefined
  state_ = new State{{1}, next_serial.fetch_add(1), std::move(value)};
  ParameterRegistry& registry = parameter_registry();
  std::lock_guard lock(registry.mutex);
  registry.ids.insert(state_->id);
}

Parameter::Parameter(const Parameter& other) : state_(other.state_) {
  if (state_) state_->refs.fetch_add(1, std::memory_order_relaxed);
}

Parameter::~Parameter() {
  if (!state_ || state_->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  {
    ParameterRegistry& registry = parameter_registry();
    std::lock_guard lock(registry.mutex);
    registry.ids.erase(state_->id);
  }
  delete state_;
}

void Parameter::absent() { fail("parameter: this parameter is absent (default-constructed, or switched off)"); }

std::vector<uint64_t> live_parameters() {
  ParameterRegistry& registry = parameter_registry();
  std::lock_guard lock(registry.mutex);
  return {registry.ids.begin(), registry.ids.end()};
}

void Operand::materialise(DType dtype) const {
  own_ = Var(Tensor::full({}, number_, dtype));
  var_ = &own_;
}

const Var& Operand::var_like(const char* op, DType dtype) const {
  if (!var_) {
    if (dtype == DType::i64) number_.to<int64_t>(op);  // throws for a fractional number
    materialise(dtype);
  }
  return *var_;
}

OperandPair same_dtype(const char* op, const Operand& a, const Operand& b) {
  if (a.is_number()) return {a.var_like(op, b.dtype()), b.var()};
  if (b.is_number()) return {a.var(), b.var_like(op, a.dtype())};
  if (a.dtype() != b.dtype()) {
    fail("{}: dtypes differ: {} of shape {} against {} of shape {}; convert one with .to()", op, a.dtype(), a.shape(),
         b.dtype(), b.shape());
  }
  return {a.var(), b.var()};
}

// ---- Vector-space ops -------------------------------------------------------------------------------------------

Var add(Operand a, Operand b) {
  auto [x, y] = same_dtype("add", a, b);
  Tensor sum = kernels::add(x.value(), y.value());
  return record("add", std::move(sum), Input{a, [](const Var& g) { return g; }},
                Input{b, [](const Var& g) { return g; }});
}

Var sum_to(Operand x, const Shape& shape) {
  if (x.shape() == shape) return x.var();
  if (!broadcasts_to(shape, x.shape())) fail("sum_to: {} does not broadcast to {}", shape, x.shape());
  return record("sum_to", kernels::sum_to(x.value(), shape),
                Input{x, [from = x.shape()](const Var& g) { return broadcast_to(g, from); }});
}

Var broadcast_to(Operand x, const Shape& shape) {
  if (x.shape() == shape) return x.var();
  if (!broadcasts_to(x.shape(), shape)) fail("broadcast_to: {} does not broadcast to {}", x.shape(), shape);
  return record("broadcast_to", x.value().expand(shape),
                Input{x, [from = x.shape()](const Var& g) { return sum_to(g, from); }});
}

// ---- Gradients --------------------------------------------------------------------------------------------------

const Tensor* Gradients::find(Key key) const {
  auto it = std::find(keys_.begin(), keys_.end(), key);
  return it == keys_.end() ? nullptr : &entries_[static_cast<size_t>(it - keys_.begin())].value;
}

const Tensor* Gradients::find(const Parameter& parameter) const { return find(Key{parameter.id(), ~0u}); }
const Tensor* Gradients::find(const Var& leaf) const { return find(Key{leaf.tape_, leaf.id_}); }
Tensor* Gradients::find(const Parameter& parameter) {
  return const_cast<Tensor*>(std::as_const(*this).find(parameter));
}

const Tensor& Gradients::operator[](const Parameter& parameter) const {
  if (const Tensor* g = find(parameter)) return *g;
  fail("gradients: none for this parameter of shape {}: the loss does not depend on it; find() tells absent from zero",
       parameter.shape());
}

const Tensor& Gradients::operator[](const Var& leaf) const {
  if (const Tensor* g = find(leaf)) return *g;
  if (!leaf.tracked())
    fail("gradients: none for a constant of shape {}: make it a leaf with tape.leaf()", leaf.shape());
  fail(
      "gradients: none for this value of shape {}: it is no leaf, or the loss does not depend on it; "
      "grad(loss, {{x}}) differentiates with respect to any value",
      leaf.shape());
}

void Gradients::insert(Key key, Parameter parameter, Tensor value) {
  keys_.push_back(key);
  entries_.push_back({std::move(parameter), std::move(value)});
}

Gradients::Gradients(const Gradients& other) : keys_(other.keys_) {
  for (const Entry& entry : other.entries_) entries_.push_back({entry.parameter, entry.value.clone()});
}

Gradients& Gradients::operator+=(const Gradients& other) {
  for (size_t i = 0; i < other.keys_.size(); ++i) {
    const Entry& entry = other.entries_[i];
    if (Tensor* mine = const_cast<Tensor*>(find(other.keys_[i]))) {
      if (!mine->unique()) *mine = mine->clone();  // whoever holds the tensor keeps its values
      mine->add_(entry.value);
    } else {
      insert(other.keys_[i], entry.parameter, entry.value.clone());
    }
  }
  return *this;
}

// ---- Tape: life and recording -----------------------------------------------------------------------------------

Tape::Arena::~Arena() {
  while (block_) cached_free(std::exchange(block_, block_->previous));
}

void* Tape::Arena::allocate(size_t bytes) {
  bytes = (bytes + 15) / 16 * 16;
  if (bytes > static_cast<size_t>(end_ - next_)) {
    size_t size = std::max<size_t>(bytes + 16, (size_t{1} << 16));
    auto* block = static_cast<Block*>(cached_allocate(size));
    block->previous = std::exchange(block_, block);
    next_ = reinterpret_cast<std::byte*>(block) + 16;
    end_ = reinterpret_cast<std::byte*>(block) + size;
  }
  return std::exchange(next_, next_ + bytes);
}

Tape::Tape(const TapeOptions& options)
    : serial_(next_serial.fetch_add(1)),
      fused_(options.fused),
      outer_(std::exchange(innermost_tape, this)),
      recording_before_(std::exchange(recording_tape, this)) {
  if (options.trace == Trace::on || options.anomaly == Anomaly::on || options.profile == Profile::on) {
    study_ = std::make_unique<Study>(options);
  }
}

Tape::~Tape() {
  for (uint32_t id = 0; id < nodes_.size(); ++id) drop_rules(id);
  // Usually the innermost; a tape kept in an object may end out of order.
  for (Tape** link = &innermost_tape; *link; link = &(*link)->outer_) {
    if ((*link)->recording_before_ == this) (*link)->recording_before_ = recording_before_;
    if (*link == this) {
      *link = outer_;
      break;
    }
  }
  if (recording_tape == this) recording_tape = recording_before_;
}

Tape* Tape::recording() { return recording_tape; }

int64_t live_nodes() {
  int64_t total = 0;
  for (const Tape* tape = innermost_tape; tape; tape = tape->outer_) total += static_cast<int64_t>(tape->size());
  return total;
}

void Tape::check_input(const char* op, const Var& x) const {
  if (x.tape_ == serial_ && !consumed_) return;
  if (x.tape_ == serial_) {
    fail(
        "{}: this tape was consumed by backward() and records no more; end it, pause it with NoGrad, or keep it with "
        "backward(loss, Keep::tape)",
        op);
  }
  for (const Tape* tape = outer_; tape; tape = tape->outer_) {
    if (tape->serial_ == x.tape_) {
      fail("{}: an input of shape {} is on the outer tape {}, but the inner tape {} records; detach() it", op,
           x.shape(), x.tape_, serial_);
    }
  }
  for (const Tape* tape = innermost_tape; tape; tape = tape->outer_) {
    if (tape->serial_ == x.tape_) {
      fail("{}: an input of shape {} is on tape {}, but tape {} records; detach() it", op, x.shape(), x.tape_, serial_);
    }
  }
  fail(
      "{}: an input of shape {} belongs to a tape that has ended (its graph is freed) or to another thread's; "
      "detach() what is carried from one tape to the next",
      op, x.shape());
}

uint32_t Tape::push_node(const char* op, const Tensor& y, bool keep_y, Site site, size_t edges) {
  if (consumed_) {
    fail(
        "{}: this tape was consumed by backward() and records no more; end it, pause it with NoGrad, or keep it with "
        "backward(loss, Keep::tape)",
        op);
  }
  if (nodes_.size() >= ~0u) fail("{}: the tape is full ({} nodes)", op, nodes_.size());
  nodes_.push_back({op, current_scope_record(), keep_y ? y : Tensor(), y.version(),
                    static_cast<uint32_t>(edges_.size()), static_cast<uint32_t>(edges), y.dtype(), site,
                    user_site.file ? user_site : site, nullptr, y.shape()});
  const uint32_t id = static_cast<uint32_t>(nodes_.size() - 1);
  if (study_) study_->note_value(id, y, keep_y, edges == 0);
  return id;
}

Var Tape::leaf(const Tensor& value, const char* file, int line) {
  if (!is_floating(value.dtype())) {
    fail("leaf: expected a floating tensor (f32 or f64), got {}: only real numbers have derivatives", value.dtype());
  }
  uint32_t id = push_node("leaf", value, false, {file, line}, 0);
  leaves_.push_back({id, {}});
  return place(Tensor(value), id);
}

Var Tape::parameter_leaf(const Parameter& parameter) {
  auto [it, fresh] = parameter_nodes_.try_emplace(parameter.id(), 0);
  if (fresh) {
    try {
      it->second = push_node("parameter", parameter.value(), false, {}, 0);
    } catch (...) {
      parameter_nodes_.erase(it);
      throw;
    }
    leaves_.push_back({it->second, parameter});
  }
  return place(Tensor(parameter.value()), it->second);
}

void Tape::drop_rules(uint32_t id) {
  Node& node = nodes_[id];
  node.y = Tensor();
  delete std::exchange(node.fused, nullptr);
  for (uint32_t e = node.first_edge; e < node.first_edge + node.edge_count; ++e) {
    if (detail::Rule* rule = std::exchange(edges_[e].rule, nullptr)) rule->~Rule();
  }
}

// ---- Tape: backward ---------------------------------------------------------------------------------------------

void Tape::check_own(const char* op, const Var& y) const {
  if (!y.defined()) fail("{}: the value is undefined", op);
  if (!y.tracked()) {
    fail(
        "{}: the value {} of shape {} is not on a tape: it was computed from constants only, under NoGrad, by an op "
        "without derivative, or before the tape began",
        op, y.dtype(), y.shape());
  }
  if (y.tape_ != serial_) fail("{}: the value of shape {} belongs to another tape than this one", op, y.shape());
  if (consumed_) {
    fail(
        "{}: this tape was consumed by an earlier backward pass (its graph is freed); pass Keep::tape to the first "
        "one to sweep it again",
        op);
  }
}

Var Tape::checked_seed(const char* op, const Var& y, const Var& seed) const {
  if (!seed.defined()) {
    if (y.numel() != 1) {
      fail("{}: expected a value with one element, got shape {}; reduce it (sum, mean) or pass a seed of that shape",
           op, y.shape());
    }
    return Var(Tensor::full(y.shape(), 1, y.dtype()));
  }
  if (seed.shape() != y.shape() || seed.dtype() != y.dtype()) {
    fail("{}: expected a seed {} of shape {}, got {} of shape {}", op, y.dtype(), y.shape(), seed.dtype(),
         seed.shape());
  }
  return seed;
}

std::string Tape::place_of(const Node& node) const {
  std::string text = node.op;
  if (node.user_site.file) text += fmt::format(" ({}:{})", node.user_site.file, node.user_site.line);
  return text;
}

namespace {

// Adds a term of a gradient, in place where nobody else can see it.
bool writable(const Tensor& sum) { return sum.unique() && sum.is_contiguous(); }

}  // namespace

// What a rule returned for the input of an edge: checked, and summed back to the input's shape.
Var Tape::checked_term(const Node& node, uint32_t id, uint32_t edge, const Var& g, const Var& gx) {
  const uint32_t to = edges_[edge].input;
  const Shape shape = nodes_[to].shape;
  if (gx.dtype() != nodes_[to].dtype || !broadcasts_to(shape, gx.shape())) {
    fail("the rule for an input {} of shape {} returned a gradient {} of shape {}", nodes_[to].dtype, shape, gx.dtype(),
         gx.shape());
  }
  Var term = sum_to(gx, shape);
  if (study_) note_contribution(node, id, edge, g, term);
  return term;
}

void Tape::pass_on(Sweep& pass, const Node& node, uint32_t id, uint32_t edge, const Var& g, const Var& gx) {
  Var term = checked_term(node, id, edge, g, gx);
  Var& sum = pass.of(edges_[edge].input);
  if (!sum.defined()) {
    sum = std::move(term);
  } else if (!pass.record && writable(sum.value_)) {
    sum.value_.add_(term.value());
    sum.version_ = sum.value_.version();
  } else {
    sum = add(sum, term);
  }
}

void Tape::run_rules(Sweep& pass, const Node& node, uint32_t id, const Var& g) {
  Var y;
  if (node.y.defined()) {
    y = Var(node.y, serial_, id);
    y.version_ = node.y_version;
  }
  for (uint32_t e = node.first_edge; e < node.first_edge + node.edge_count; ++e) {
    const Edge edge = edges_[e];
    if (!pass.record && edge.rule->has_short_cut()) {
      // A study sees the whole contribution; the sum is made the short way all the same, so that its bits agree.
      if (study_ && (study_->traces() || study_->watches())) checked_term(node, id, e, g, edge.rule->apply(g, y));
      Var& sum = pass.of(edge.input);
      if (!sum.defined())
        sum = Var(Tensor::zeros(nodes_[edge.input].shape, nodes_[edge.input].dtype));
      else if (!writable(sum.value_))
        sum = Var(sum.value().clone());
      edge.rule->add_to(sum.value_, g);
      sum.version_ = sum.value_.version();
    } else {
      pass_on(pass, node, id, e, g, edge.rule->apply(g, y));
    }
    if (pass.consume) std::exchange(edges_[e].rule, nullptr)->~Rule();
  }
}

void Tape::run_fused(Sweep& pass, const Node& node, uint32_t id, const Var& g) {
  if (pass.record) return run_definition(pass, node, id, g);
  detail::FusedRule& rule = *node.fused;
  CachedVector<Tensor> inputs, saved;
  for (const Var& x : rule.inputs) inputs.push_back(x.value());
  for (const Var& v : rule.saved) saved.push_back(v.value());
  const Tensor dense = g.value().contiguous();
  CachedVector<Tensor> gx = rule.vjp({dense, rule.y.value(), saved, inputs, rule.needs});
  if (gx.size() != inputs.size())
    fail("the backward kernel returned {} gradients for {} inputs", gx.size(), inputs.size());
  uint32_t e = node.first_edge;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!rule.needs[k]) continue;
    if (gx[k].defined()) pass_on(pass, node, id, e, g, gx[k]);
    ++e;
  }
}

// The backward pass is being recorded: the op is recorded again as its definition, on an alias of each input (the same
// Var given twice must stay two inputs), and that piece of tape is swept.
void Tape::run_definition(Sweep& pass, const Node& node, uint32_t id, const Var& g) {
  const auto inputs = node.fused->inputs;
  const uint32_t first_alias = static_cast<uint32_t>(nodes_.size());
  CachedVector<Var> aliases, tracked;
  for (const Var& x : inputs) {
    aliases.push_back(x.tracked() ? tapedeck::record("alias", x.value(), Input{x, [](const Var& h) { return h; }}) : x);
    if (x.tracked()) tracked.push_back(aliases.back());
  }
  const uint32_t first = static_cast<uint32_t>(nodes_.size());
  Var y = node.fused->definition(aliases);
  if (y.shape() != node.shape) fail("the definition has shape {}, the fused op {}", y.shape(), node.shape);
  for (uint32_t n = first; n < nodes_.size(); ++n) {
    for (uint32_t e = nodes_[n].first_edge; e < nodes_[n].first_edge + nodes_[n].edge_count; ++e) {
      if (edges_[e].input < first_alias || nodes_[n].op == std::string_view("parameter")) {
        fail("its definition reaches a tracked value that is not one of its inputs (by {}); hand it in as an input",
             nodes_[n].op);
      }
    }
  }
  for (const auto& [identity, leaf] : parameter_nodes_) {
    if (leaf >= first) fail("its definition captures a Parameter; hand it in as an input");
  }
  if (!y.tracked()) return;  // constant: no gradient
  if (y.tape_ != serial_ || y.id_ < first_alias) {
    fail("its definition returns a tracked value that is not one of its inputs; hand it in as an input");
  }
  Sweep inner = sweep(y, g, tracked, true, false, first_alias, first);
  uint32_t e = node.first_edge;
  for (const Var& alias : tracked) {
    Var gx = alias.id_ <= y.id_ ? inner.of(alias.id_) : Var();  // y may be an alias itself
    if (gx.defined()) pass_on(pass, node, id, e, g, gx);
    ++e;
  }
}

// One reverse loop over nodes first..y. Gradients of `wanted` stay; those of leaves always do.
Tape::Sweep Tape::sweep(const Var& y, Var seed, std::span<const Var> wanted, bool record, bool consume, uint32_t base,
                        uint32_t first) {
  RecordingSwitch recording(recording_tape, record ? this : nullptr);
  const size_t count = y.id_ + 1 - base;
  Sweep pass{record, consume, base, CachedVector<Var>(count), CachedVector<bool>(count, false)};
  for (const Var& x : wanted) {
    if (x.tape_ == serial_ && x.id_ >= base && x.id_ <= y.id_) pass.keep[x.id_ - base] = true;
  }
  if (consume) consumed_ = true;
  pass.of(y.id_) = std::move(seed);
  for (uint32_t id = y.id_ + 1; id-- > first;) {
    if (pass.of(id).defined()) {
      const Node node = nodes_[id];  // a copy: recording may move the nodes
      UserSite site(node.user_site);
      try {
        if (study_) pass.of(id) = note_gradient(node, id, pass.of(id));
        if (node.edge_count > 0) {
          const Var g = pass.keep[id - base] ? pass.of(id) : std::exchange(pass.of(id), Var());
          Stopwatch watch(study_ ? study_->backward_seconds(node.op, record) : nullptr);
          if (node.fused)
            run_fused(pass, node, id, g);
          else
            run_rules(pass, node, id, g);
        }
      } catch (const Error& error) {
        throw Error(fmt::format("backward of {}: {}", place_of(node), error.what()));
      }
    }
    if (consume) drop_rules(id);
  }
  return pass;
}

Gradients Tape::backward(const Var& loss, Keep keep) { return backward(loss, Tensor(), keep); }

Gradients Tape::backward(const Var& loss, const Tensor& seed, Keep keep) {
  check_own("backward", loss);
  Var start = checked_seed("backward", loss, seed.defined() ? Var(seed) : Var());
  if (study_) study_->begin_pass(loss.id_);
  static const std::vector<Var> none;
  const std::vector<Var>& retained = study_ ? study_->retained : none;
  Sweep pass = sweep(loss, std::move(start), retained, false, keep == Keep::nothing);
  if (study_) study_->end_pass();
  Gradients result;
  auto take = [&](uint32_t id, Gradients::Key key, const Parameter& parameter) {
    if (id > loss.id_ || !pass.of(id).defined() || result.find(key)) return;
    Tensor value = std::exchange(pass.of(id), Var()).value();
    if (!writable(value)) value = value.clone();
    result.insert(key, parameter, std::move(value));
  };
  for (const LeafRecord& leaf : leaves_) {
    const bool named = leaf.parameter.defined();
    take(leaf.node, named ? Gradients::Key{leaf.parameter.id(), ~0u} : Gradients::Key{serial_, leaf.node},
         leaf.parameter);
  }
  for (const Var& value : retained) take(value.id_, {serial_, value.id_}, {});
  return result;
}

Tape* Tape::tape_of(const char* op, const Var& y) {
  for (Tape* tape = innermost_tape; tape; tape = tape->outer_) {
    if (tape->serial_ == y.tape_) return tape;
  }
  if (y.tracked()) {
    fail("{}: the value of shape {} belongs to a tape that has ended or to another thread's", op, y.shape());
  }
  fail(
      "{}: the value is not on a tape: it was computed from constants only, under NoGrad, by an op without derivative, "
      "or before the tape began",
      op);
}

std::vector<Var> Tape::gradients(const Var& y, std::span<const Var> xs, const GradOptions& options) {
  check_own("grad", y);
  Var seed = checked_seed("grad", y, options.seed);
  if (study_) study_->begin_pass(y.id_);
  Sweep pass = sweep(y, std::move(seed), xs, options.create_graph, false);
  if (study_) study_->end_pass();
  std::vector<Var> result;
  for (size_t i = 0; i < xs.size(); ++i) {
    const Var& x = xs[i];
    bool reached = x.tape_ == serial_ && x.id_ <= y.id_ && pass.of(x.id_).defined();
    if (!reached && !options.allow_unused) {
      fail("grad: y does not depend on input {} (shape {}{}); with .allow_unused its gradient is undefined", i,
           x.shape(), x.tracked() ? "" : ", a constant: make it a leaf with tape.leaf()");
    }
    result.push_back(reached ? pass.of(x.id_) : Var());
  }
  return result;
}

Var Tape::add_fused_node(const char* op, FusedValue&& value, std::span<const Operand> inputs,
                         std::unique_ptr<detail::FusedRule> rule) {
  size_t edges = 0;
  for (const Operand& x : inputs) {
    if (x.var().tracked()) check_input(op, x.var()), ++edges;
  }
  const uint32_t id = push_node(op, value.y, false, inputs[0].site(), edges);
  rule->y = Var(value.y);
  for (Tensor& saved : value.saved) rule->saved.emplace_back(std::move(saved));
  rule->needs = {static_cast<bool*>(arena_.allocate(inputs.size())), inputs.size()};
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Var& x = inputs[k].var();
    rule->inputs.push_back(x);
    rule->needs[k] = x.tracked();
    if (x.tracked()) edges_.push_back({x.id_, nullptr});
  }
  if (study_) study_->note_fused(id, *rule);
  nodes_[id].fused = rule.release();
  return place(std::move(value.y), id);
}

Tensor detail::run_constant(FunctionRef f, std::span<const Operand> inputs) {
  CachedVector<Var> constants;
  bool tracked = false;
  for (const Operand& x : inputs) {
    constants.push_back(x.var().detach());
    tracked = tracked || x.var().tracked();
  }
  // Where no input is tracked f is recorded: what it captures is noticed, and not left without a gradient.
  std::optional<NoGrad> pause;
  if (tracked) pause.emplace();
  const Var value = f(constants);
  if (value.tracked()) fail("checkpoint: f captures a Parameter or a tracked value; hand it in as an input");
  return value.value();
}

CachedVector<Tensor> detail::run_again(FunctionRef f, const FusedPass& pass) {
  Tape inner;
  CachedVector<Var> xs;
  for (size_t k = 0; k < pass.inputs.size(); ++k) {
    xs.push_back(pass.needs[k] ? inner.leaf(pass.inputs[k]) : Var(pass.inputs[k]));
  }
  Var again = f(xs);
  CachedVector<Tensor> result(xs.size());
  if (!again.tracked()) return result;
  const Gradients grads = inner.backward(again, pass.g);
  for (const Gradients::Entry& entry : grads) {
    if (entry.parameter.defined()) fail("checkpoint: f captures a Parameter; hand it in as an input");
  }
  for (size_t k = 0; k < xs.size(); ++k) {
    if (const Tensor* g = pass.needs[k] ? grads.find(xs[k]) : nullptr) result[k] = *g;  // else absent
  }
  return result;
}

std::vector<Var> grad(const Var& y, std::span<const Var> xs, const GradOptions& options) {
  return Tape::tape_of("grad", y)->gradients(y, xs, options);
}

// ---- NoGrad, Scope, UserSite, study -----------------------------------------------------------------------------

NoGrad::NoGrad() : paused_(std::exchange(recording_tape, nullptr)) {}
NoGrad::~NoGrad() {
  // The paused tape may have ended meanwhile; then the innermost one that lives goes on.
  Tape* tape = innermost_tape;
  while (tape && tape != paused_) tape = tape->outer_;
  recording_tape = tape || !paused_ ? tape : innermost_tape;
}

Scope::Scope(const char* name, int64_t index)
    : name_(name), index_(index), outer_(std::exchange(current_scope, this)) {}
Scope::~Scope() { current_scope = outer_; }

const Tape::ScopeRecord* Tape::scope_record() {
  // Records missing on this tape, from the innermost scope outwards, then made from the outside in.
  if (current_scope->tape_ == serial_) return current_scope->record_;
  Scope* missing = nullptr;
  for (Scope* scope = current_scope; scope && scope->tape_ != serial_; scope = scope->outer_) missing = scope;
  while (true) {
    const ScopeRecord* parent = missing->outer_ ? missing->outer_->record_ : nullptr;
    if (missing->outer_ && missing->outer_->tape_ != serial_) parent = nullptr;
    missing->record_ = new (arena_.allocate(sizeof(ScopeRecord))) ScopeRecord{missing->name_, missing->index_, parent};
    missing->tape_ = serial_;
    if (missing == current_scope) return missing->record_;
    Scope* next = current_scope;
    while (next->outer_ != missing) next = next->outer_;
    missing = next;
  }
}

UserSite::UserSite(Site site) : set_(!user_site.file && site.file) {
  if (set_) user_site = site;
}
UserSite::~UserSite() {
  if (set_) user_site = {};
}

NodeInfo Tape::node(uint32_t id) const {
  if (id >= nodes_.size()) fail("node: expected a node below {}, got {}", nodes_.size(), id);
  const Node& node = nodes_[id];
  NodeInfo info{node.op, node.shape, node.dtype, {}, node.site, node.user_site, {}};
  for (uint32_t e = node.first_edge; e < node.first_edge + node.edge_count; ++e) info.inputs.push_back(edges_[e].input);
  info.scope = path_of(node.scope);
  return info;
}

Site Tape::current_user_site() { return user_site; }
const Tape::ScopeRecord* Tape::current_scope_record() { return current_scope ? scope_record() : nullptr; }

std::string Tape::path_of(const ScopeRecord* scope) {
  std::string path;
  for (; scope; scope = scope->parent) {
    std::string part = scope->index < 0 ? std::string(scope->name) : fmt::format("{}[{}]", scope->name, scope->index);
    if (!path.empty()) part.append("/").append(path);
    path = std::move(part);
  }
  return path;
}

uint32_t Tape::id(const Var& var) const {
  if (!var.tracked() || var.tape_ != serial_)
    fail("tape: the value of shape {} has no node: it is not on this tape", var.shape());
  return var.id_;
}

NodeInfo Tape::node(const Var& var) const { return node(id(var)); }

}  // namespace tapedeck
