// Steps through a tape: a small attention model forward and backward, one node at a time, with what each computed, what
// it keeps, and what it adds to whose gradient.
#include <tapedeck/core/export.h>
#include <tapedeck/core/version.h>
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/models/terminal.h>
#include <tapedeck/ops/ops.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>

using namespace tapedeck;

namespace {

struct Settings {
  std::string attention = "additive", plant = "none", steps_of, dot, json;
  int64_t seed = 1;
  int fold = 0;
  bool all = false, profile = false;
};

// ---- What is stepped through ------------------------------------------------------------------------------------

// The model's own loss, or one with a fault that is met in practice.
Var planted_loss(const Seq2SeqAttention& model, const Batch& batch, const std::string& plant) {
  const CrossEntropyOptions ignore_pads{.ignore_index = pad_id};
  if (plant == "zero") {  // a unit that is off for every input passes nothing on
    Var logits = model.forward(batch.source, batch.target_in).logits;
    Scope scope("planted");
    return cross_entropy(relu(logits - 100), batch.target_out, ignore_pads);
  }
  if (plant == "nan") {  // masked weights are exactly 0, and there the slope of the root is infinite
    auto [logits, attention] = model.forward(batch.source, batch.target_in);
    Var loss = cross_entropy(logits, batch.target_out, ignore_pads);
    Scope scope("planted");
    return loss + sum(sqrt(attention));
  }
  if (plant == "absent") {  // detached: the encoder learns nothing
    auto [memory, state] = model.encode(batch.source);
    memory.values = memory.values.detach(), memory.keys = memory.keys.detach(), state = state.detach();
    std::vector<Var> logits;
    for (int64_t t = 0; t < batch.target_in.size(1); ++t) {
      Scope scope("decoder.step", t);
      Seq2SeqAttention::Step step = model.decode_step(batch.target_in.select(1, t), state, memory);
      state = step.state;
      logits.push_back(step.logits);
    }
    return cross_entropy(stack(logits, 1), batch.target_out, ignore_pads);
  }
  return model.loss(batch);
}

// What the rules of the ops compute, in words. g is the incoming gradient, y the op's value; the engine sums every
// result back to its input's shape.
std::string rule_of(const std::string& op) {
  static const std::map<std::string, std::string> rules = {
      {"add", "g to both"},
      {"sub", "g to the first, -g to the second"},
      {"mul", "g times the other input"},
      {"div", "g / b to the first, -g y / b to the second"},
      {"neg", "-g"},
      {"tanh", "g (1 - y^2)"},
      {"sigmoid", "g y (1 - y)"},
      {"relu", "g where y > 0, else 0"},
      {"sqrt", "g / (2 y)"},
      {"exp", "g y"},
      {"log", "g / x"},
      {"softmax", "y (g - sum(g y)) along the axis"},
      {"masked_softmax", "y (g - sum(g y)) along the axis; 0 where masked"},
      {"log_softmax", "g - exp(y) sum(g) along the axis"},
      {"matmul", "g b^T to the first, a^T g to the second: transposed so that the shapes fit"},
      {"bmm", "g b^T to the first, a^T g to the second: transposed so that the shapes fit"},
      {"linear", "g W to x, g^T x to W, g to the bias"},
      {"sum", "g, repeated along the summed axes"},
      {"mean", "g / n, repeated along the averaged axes"},
      {"cat", "to each part its piece of g"},
      {"slice", "g put back where it was cut out, 0 elsewhere"},
      {"select", "g put back where it was taken out, 0 elsewhere"},
      {"embedding", "g's rows, added up by id"},
      {"gather", "g's elements, added up by index"},
      {"transpose", "g, transposed back"},
      {"permute", "g, permuted back"},
      {"reshape", "g in the input's shape"},
      {"unsqueeze", "g without the new axis"},
      {"squeeze", "g with the axis again"},
      {"expand", "g, summed over what was repeated"},
      {"broadcast_to", "g, summed over what was repeated"},
      {"sum_to", "g, repeated"},
      {"where", "g where the input was chosen, 0 elsewhere"},
      {"masked_fill", "g where not masked, 0 elsewhere"},
      {"cross_entropy", "(softmax - target) g / number of targets"}};
  const auto found = rules.find(op);
  return found == rules.end() ? op + "'s own" : op + ": " + found->second;
}

// ---- Text -----------------------------------------------------------------------------------------------------------

std::string plural(int64_t n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

// "nn/gru.cpp:53": without the folders outside the library.
std::string place(Site site) {
  std::string file = site.file;
  for (const char* folder : {"/core/", "/ops/", "/nn/", "/models/", "/examples/"}) {
    const size_t at = file.rfind(folder);
    if (at != std::string::npos) file = file.substr(at + 1);
  }
  return fmt::format("{}:{}", file, site.line);
}

// A tensor as NumPy prints it, long ones without their middle, indented like the column it stands in.
std::string printed(const Tensor& x) {
  constexpr size_t head = 6, tail = 3;
  std::vector<std::string> lines;
  std::istringstream in(to_string(x));
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines.size() > head + tail + 1 && i == head) {
      text += fmt::format("\n{:13}... {} more lines ...", "", lines.size() - head - tail);
      i = lines.size() - tail;
    }
    text += (i == 0 ? "" : lines[i].empty() ? "\n" : "\n" + std::string(13, ' ')) + lines[i];
  }
  return text;
}

// ---- The stepper ----------------------------------------------------------------------------------------------------

// A position in the forward pass (nodes in the order they were made) or the backward pass (the reverse), and the
// commands that move it.
class Stepper {
 public:
  // Steps through the nodes whose scope begins with `steps_of`.
  Stepper(const Tape& tape, std::map<uint32_t, std::string> names, const std::string& steps_of)
      : tape_(tape), names_(std::move(names)), readers_(tape.size()) {
    for (uint32_t id = 0; id < tape.size(); ++id) {
      const std::vector<uint32_t> inputs = tape.node(id).inputs;
      for (size_t e = 0; e < inputs.size(); ++e) readers_[inputs[e]].push_back({id, e});
      if (tape.node(id).scope.starts_with(steps_of)) steps_.push_back({id, false});
    }
    forward_ = steps_.size();
    for (size_t i = forward_; i-- > 0;) {
      if (tape.traced(steps_[i].id).gradient.defined()) steps_.push_back({steps_[i].id, true});
    }
  }

  bool empty() const { return steps_.empty(); }

  // False when there is nothing more to do.
  bool command(const std::string& line) {
    const std::string word = line.substr(0, 1), rest = line.size() > 1 ? CLI::detail::trim_copy(line.substr(1)) : "";
    if (word == "q") return false;
    if (word.empty() || word == "n") {
      move(at_ + 1, "this was the last step; p goes back, q ends");
    } else if (word == "p") {
      move(at_ - 1, "this is the first step");
    } else if (word == "f") {
      move(0, "");
    } else if (word == "b") {
      move(forward_, "no node here has a gradient: e explains why");
    } else if (word == "v") {
      values_ = !values_;
      show();
    } else if (word == "s") {
      summarise();
    } else if (word == "/") {
      search(rest);
    } else if (word == "g" || word == "e") {
      uint32_t id = steps_[at_].id;
      const bool given = !rest.empty();
      if (given && (!CLI::detail::lexical_cast(rest, id) || id >= tape_.size())) {
        fmt::print("expected a node below {}, got '{}'\n", tape_.size(), rest);
      } else if (word == "e") {
        fmt::print("{}", explain_gradient(tape_, id));
      } else {
        go_to(id);
      }
    } else if (word == "?" || word == "h") {
      help();
    } else {
      fmt::print("unknown command '{}'; ? lists them\n", line);
    }
    return true;
  }

  void show() const { steps_[at_].backward ? show_backward(steps_[at_].id) : show_forward(steps_[at_].id); }

  void show_all() {
    for (at_ = 0; at_ < steps_.size(); ++at_) show();
    at_ = 0;
    summarise();
  }

  std::string prompt() const { return fmt::format("[{} {}/{}] > ", phase(), at_ - phase_start() + 1, phase_size()); }

  static void help() {
    fmt::print(
        "  n, enter  next step              g N    go to node N\n"
        "  p         previous step          /text  next step whose op, parameter or scope has this text\n"
        "  f         start of forward       v      show values, or not\n"
        "  b         start of backward      s      summary by scope, with the bytes kept for backward\n"
        "  e, e N    why is the gradient of this node (or node N) zero, NaN or absent\n"
        "  ?         this list              q      quit\n");
  }

 private:
  struct Step {
    uint32_t id;
    bool backward;
  };
  struct Reader {
    uint32_t id;
    size_t edge;  // the node is this input of it
  };

  bool backward() const { return at_ >= forward_; }
  const char* phase() const { return backward() ? "backward" : "forward"; }
  size_t phase_start() const { return backward() ? forward_ : 0; }
  size_t phase_size() const { return backward() ? steps_.size() - forward_ : forward_; }

  void move(size_t to, const char* refusal) {
    if (to >= steps_.size()) {
      fmt::print("{}\n", refusal);
      return;
    }
    at_ = to;
    show();
  }

  // In the phase that is shown, if the node is a step of it.
  void go_to(uint32_t id) {
    const size_t first = phase_start(), last = first + phase_size();
    for (size_t i = first; i < last; ++i) {
      if (steps_[i].id == id) return move(i, "");
    }
    fmt::print("node {} is no step of the {} pass{}\n", id, phase(), backward() ? "; e explains why" : "");
  }

  void search(const std::string& text) {
    for (size_t k = 1; k <= steps_.size(); ++k) {
      const size_t i = (at_ + k) % steps_.size();
      const NodeInfo node = tape_.node(steps_[i].id);
      if ((node.op + '\n' + node.scope + '\n' + name_of(steps_[i].id)).find(text) != std::string::npos) {
        return move(i, "");
      }
    }
    fmt::print("no step has '{}'\n", text);
  }

  std::string name_of(uint32_t id) const {
    const auto name = names_.find(id);
    return name == names_.end() ? "" : name->second;
  }

  // "node 12 tanh (2, 4)"
  std::string described(uint32_t id) const {
    const NodeInfo node = tape_.node(id);
    return fmt::format("node {} {} {}", id, names_.contains(id) ? name_of(id) : node.op, node.shape);
  }

  void head(uint32_t id) const {
    const NodeInfo node = tape_.node(id);
    const std::string name = names_.contains(id) ? ' ' + name_of(id) : "";
    const std::string scope = node.scope.empty() ? "" : (name.empty() ? " in " : ", first used in ") + node.scope;
    fmt::print("\n-- {} step {} of {}: node {} {}{}{}\n", phase(), at_ - phase_start() + 1, phase_size(), id, node.op,
               name, scope);
  }

  void show_forward(uint32_t id) const {
    const NodeInfo node = tape_.node(id);
    const TracedNode& traced = tape_.traced(id);
    head(id);
    for (size_t e = 0; e < node.inputs.size(); ++e) {
      fmt::print("  {:10} {}\n", e == 0 ? "inputs" : "", described(node.inputs[e]));
    }
    fmt::print("  {:10} {} of shape {}, strides {}\n", "result", node.dtype, node.shape, traced.value.strides());
    if (values_) fmt::print("  {:10} {}\n", "value", printed(traced.value));
    int64_t bytes = 0;
    std::string kept;
    for (const SavedValue& saved : traced.saved) {
      bytes += saved.bytes;
      kept += fmt::format("{} {} {}", kept.empty() ? ":" : ",", saved.output ? "its result" : "an input", saved.shape);
    }
    fmt::print("  {:10} {} for backward{}\n", "keeps", plural(bytes, "byte"), kept);
    if (!node.site.file) return;
    fmt::print("  {:10} {}", "code", place(node.site));
    const bool inner = node.user_site.file && place(node.user_site) != place(node.site);
    fmt::print("{}\n", inner ? ", called from " + place(node.user_site) : "");
  }

  // What has been added to the gradient of node `to` once edge `last` of node `id` has given its part: readers run from
  // the last to the first.
  struct Sum {
    Tensor value;
    int64_t terms = 0, all = 0;
  };
  Sum sum_after(uint32_t to, uint32_t id, size_t last) const {
    Sum sum;
    for (size_t i = readers_[to].size(); i-- > 0;) {
      const uint32_t reader = readers_[to][i].id;
      if (i + 1 < readers_[to].size() && readers_[to][i + 1].id == reader) continue;  // edges of one reader: below
      for (const Reader& r : readers_[to]) {
        const std::vector<Tensor>& passed = tape_.traced(reader).contributions;
        if (r.id != reader || passed.empty() || !passed[r.edge].defined()) continue;
        ++sum.all;
        if (reader < id || (reader == id && r.edge > last)) continue;
        ++sum.terms;
        sum.value = sum.value.defined() ? add(sum.value, passed[r.edge]).value() : passed[r.edge];
      }
    }
    return sum;
  }

  void show_backward(uint32_t id) const {
    const NodeInfo node = tape_.node(id);
    const TracedNode& traced = tape_.traced(id);
    head(id);
    const Sum incoming = sum_after(id, 0, ~size_t{0});
    std::string from;
    for (const Reader& r : readers_[id]) {
      if (tape_.traced(r.id).gradient.defined())
        from += fmt::format("{} {} {}", from.empty() ? ":" : ",", "node", r.id);
    }
    fmt::print(
        "  {:10} {} of shape {}, complete: {}\n", "gradient", node.dtype, node.shape,
        incoming.all == 0 ? "it is the seed" : fmt::format("{} of {} came in{}", incoming.terms, incoming.all, from));
    if (values_) fmt::print("  {:10} {}\n", "", printed(traced.gradient));
    if (node.inputs.empty()) {
      fmt::print("  {:10} nothing: this is a leaf, and the gradient is an answer of backward()\n", "passes on");
      return;
    }
    fmt::print("  {:10} {}\n", "rule", rule_of(node.op));
    for (size_t e = 0; e < node.inputs.size(); ++e) {
      const uint32_t to = node.inputs[e];
      if (!traced.contributions[e].defined()) {
        fmt::print("  {:10} nothing to {}\n", "adds", described(to));
        continue;
      }
      const Sum sum = sum_after(to, id, e);
      fmt::print("  {:10} to {}, as part {} of {}\n", "adds", described(to), sum.terms, sum.all);
      if (!values_) continue;
      fmt::print("  {:10} {}\n", "", printed(traced.contributions[e]));
      if (sum.terms > 1) fmt::print("  {:10} {}\n", "sum so far", printed(sum.value));
    }
  }

  void summarise() const {
    struct Row {
      int64_t nodes = 0, value = 0, saved = 0;
    };
    std::map<std::string, Row> rows;
    Row total;
    for (uint32_t id = 0; id < tape_.size(); ++id) {
      std::string scope = tape_.node(id).scope;
      if (tape_.node(id).op == "parameter") scope = "(parameters)";
      const size_t slash = scope.find('/');
      const size_t second = slash == std::string::npos ? slash : scope.find('/', slash + 1);
      const Tensor& value = tape_.traced(id).value;
      Row added{1, value.numel() * size_of(value.dtype())};
      for (const SavedValue& saved : tape_.traced(id).saved) added.saved += saved.bytes;
      for (Row* row : {&rows[scope.substr(0, second)], &total}) {
        row->nodes += added.nodes, row->value += added.value, row->saved += added.saved;
      }
    }
    fmt::print("\n{:36} {:>7} {:>12} {:>20}\n", "scope", "nodes", "value bytes", "kept for backward");
    for (const auto& [scope, row] : rows) {
      fmt::print("{:36} {:7} {:12} {:20}\n", scope.empty() ? "(outside)" : scope, row.nodes, row.value, row.saved);
    }
    fmt::print("{:36} {:7} {:12} {:20}\n(a value that two nodes keep counts twice; it is in memory once)\n", "all",
               total.nodes, total.value, total.saved);
  }

  const Tape& tape_;
  std::map<uint32_t, std::string> names_;  // of parameters
  std::vector<std::vector<Reader>> readers_;
  std::vector<Step> steps_;  // forward, then backward
  size_t forward_ = 0;       // how many of them are forward
  size_t at_ = 0;
  bool values_ = true;
};

// ---- The program ------------------------------------------------------------------------------------------------

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) fail("cannot write to {}", path);
}

void run(const Settings& s) {
  Rng rng(static_cast<uint64_t>(s.seed));
  const Seq2SeqAttention model({.vocabulary = 8,
                                .d_model = 4,
                                .attention = s.attention == "dot" ? AttentionKind::dot : AttentionKind::additive,
                                .dtype = DType::f64},
                               rng);
  // a b c -> c b a, and d e -> e d with a pad behind it
  const Batch batch = make_batch(std::vector<Sequence>{{3, 4, 5}, {6, 7}}, std::vector<Sequence>{{5, 4, 3}, {7, 6}});
  Tape tape(
      TapeOptions{.trace = Trace::on, .profile = s.profile ? Profile::on : Profile::off, .fused = Fused::definitions});
  const Var loss = planted_loss(model, batch, s.plant);
  std::map<uint32_t, std::string> names;
  for (const NamedParameter& p : named_parameters(model)) names.emplace(tape.id(Var(p.parameter)), p.name);
  tape.backward(loss);

  if (!s.dot.empty()) write_file(s.dot, to_dot(tape, s.fold));
  if (!s.json.empty()) write_file(s.json, to_json(tape));
  if (s.profile) fmt::print("{}", to_string(tape.profile()));
  if ((!s.dot.empty() || !s.json.empty() || s.profile) && !s.all) return;

  Stepper stepper(tape, names, s.steps_of);
  if (stepper.empty()) fail("no node is in a scope that begins with '{}'", s.steps_of);
  fmt::print("{} attention, two sentences, seed {}: {} nodes, loss {:.6g}{}\n", s.attention, s.seed, tape.size(),
             loss.item(), s.plant == "none" ? "" : fmt::format("; planted: a gradient that is {}", s.plant));
  if (s.all) return stepper.show_all();
  const bool asks = is_terminal(stdin) && is_terminal(stdout);
  if (asks) fmt::print("? lists the commands\n");
  stepper.show();
  for (std::string line;;) {
    if (asks) fmt::print("{}", stepper.prompt());
    std::fflush(stdout);
    if (!std::getline(std::cin, line) || !stepper.command(CLI::detail::trim(line))) break;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  CLI::App app{
      "Steps through a small attention model, forward and backward, one node of its tape at a time.\n"
      "Commands come from the terminal or, line by line, from a pipe; ? lists them.\n"
      "Exit status: 0, or 2 on wrong usage.",
      "tape"};
  app.set_version_flag("--version", fmt::format("tape (Tapedeck {})", version()));
  app.add_option("--attention", s.attention, "score function: additive or dot")
      ->check(CLI::IsMember({"additive", "dot"}))
      ->capture_default_str();
  app.add_option("--seed", s.seed, "of the weights")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  app.add_option("--plant", s.plant, "a gradient that is zero, nan or absent, to be found and explained (e)")
      ->check(CLI::IsMember({"none", "zero", "nan", "absent"}))
      ->capture_default_str();
  app.add_option("--steps-of", s.steps_of, "step through the nodes of this scope only, such as decoder.step[1]");
  app.add_flag("--all", s.all, "print all steps and the summary");
  app.add_option("--dot", s.dot, "write the tape for Graphviz here, and end");
  app.add_option("--fold", s.fold, "with --dot: draw scopes at this depth as one box each; 0: none")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  app.add_option("--json", s.json, "write the tape with its values and gradients here, and end");
  app.add_flag("--profile", s.profile, "print calls, time and bytes by op, and end");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "tape: {} (--help explains the options)\n", error.what());
    return 2;
  }
  try {
    run(s);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "tape: {}\n", error.what());
    return 2;
  }
}
