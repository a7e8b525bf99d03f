#include <tapedeck/core/export.h>
#include <tapedeck/core/study.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

namespace tapedeck {
namespace {

using Text = std::back_insert_iterator<std::string>;

// A string literal of JSON and of Graphviz alike.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 0x20)
      fmt::format_to(Text(out), "\\u{:04x}", static_cast<int>(c));
    else
      out += c;
  }
  return out + '"';
}

std::string first_part(const std::string& path, int depth) {
  size_t end = 0;
  for (int i = 0; i < depth; ++i) {
    size_t next = path.find('/', end);
    if (next == std::string::npos) return path;
    end = next + 1;
  }
  return path.substr(0, end - 1);
}

int depth_of(const std::string& path) {
  return path.empty() ? 0 : 1 + static_cast<int>(std::count(path.begin(), path.end(), '/'));
}

bool is_leaf(const NodeInfo& node) { return node.op == "leaf" || node.op == "parameter"; }

// A Graphviz label of two lines.
std::string lines(const std::string& first, const auto& second) {
  std::string text = quoted(first);
  text.pop_back();
  return text + fmt::format("\\n{}\"", second);
}

// Opens and closes Graphviz clusters so that `path` is the open one.
void move_cluster(std::string& out, std::string& open, const std::string& path, int& clusters) {
  auto inside = [](const std::string& inner, const std::string& outer) {
    return outer.empty() || inner == outer || inner.starts_with(outer + '/');
  };
  while (!inside(path, open)) {
    out += "}\n";
    size_t slash = open.rfind('/');
    open = slash == std::string::npos ? "" : open.substr(0, slash);
  }
  while (open != path) {
    open = first_part(path, depth_of(open) + 1);
    size_t slash = open.rfind('/');
    fmt::format_to(Text(out), "subgraph cluster{} {{\nlabel={}\n", clusters++,
                   quoted(slash == std::string::npos ? open : open.substr(slash + 1)));
  }
}

void append_number(std::string& out, double v) {
  if (std::isnan(v))
    out += "\"nan\"";
  else if (std::isinf(v))
    out += v > 0 ? "\"inf\"" : "\"-inf\"";
  else if (v == 0 && std::signbit(v))
    out += "-0.0";  // "-0" reads as an integer, without its sign
  else
    fmt::format_to(Text(out), "{}", v);
}

template <class Items, class Append>
void append_list(std::string& out, const Items& items, Append append) {
  out += '[';
  bool first = true;
  for (const auto& item : items) {
    if (!std::exchange(first, false)) out += ',';
    append(item);
  }
  out += ']';
}

void append_integers(std::string& out, const auto& items) {
  append_list(out, items, [&](auto v) { fmt::format_to(Text(out), "{}", v); });
}

void append_tensor(std::string& out, const Tensor& x) {
  if (!x.defined()) {
    out += "null";
    return;
  }
  if (x.dtype() == DType::f32) {  // the shortest digits that read back as the same float
    append_list(out, x.to_vector<float>(), [&](float v) {
      if (std::isfinite(v) && v != 0)
        fmt::format_to(Text(out), "{}", v);
      else
        append_number(out, static_cast<double>(v));
    });
  } else {
    append_list(out, x.to(DType::f64).to_vector<double>(), [&](double v) { append_number(out, v); });
  }
}

void append_site(std::string& out, Site site) {
  if (!site.file)
    out += "null";
  else
    fmt::format_to(Text(out), "{{\"file\":{},\"line\":{}}}", quoted(site.file), site.line);
}

// What a gradient holds.
enum class Content { absent, zero, bad, plain };

int64_t zeros_in(const Tensor& x) {
  const std::vector<double> values = x.to(DType::f64).to_vector<double>();
  return std::count(values.begin(), values.end(), 0.0);
}

Content content(const Tensor& g) {
  if (!g.defined()) return Content::absent;
  if (!ValueRange(g).finite()) return Content::bad;
  return zeros_in(g) == g.numel() ? Content::zero : Content::plain;
}

// A reader of a node: what reached the reader, and what its rule passed on to the node.
struct Use {
  uint32_t reader;
  Content gradient, passed;
};

std::vector<std::vector<Use>> uses_of_all(const Tape& tape) {
  std::vector<std::vector<Use>> uses(tape.size());
  for (uint32_t reader = 0; reader < tape.size(); ++reader) {
    const std::vector<uint32_t> inputs = tape.node(reader).inputs;
    const TracedNode& traced = tape.traced(reader);
    const Content gradient = content(traced.gradient);
    for (size_t e = 0; e < inputs.size(); ++e) {
      const Content passed = e < traced.contributions.size() ? content(traced.contributions[e]) : Content::absent;
      uses[inputs[e]].push_back({reader, gradient, passed});
    }
  }
  return uses;
}

std::string named(const Tape& tape, uint32_t id) {
  const NodeInfo node = tape.node(id);
  std::string text = fmt::format("node {} ({} {}", id, node.op, node.shape);
  if (node.user_site.file) text += fmt::format(", {}:{}", node.user_site.file, node.user_site.line);
  return text + ")";
}

}  // namespace

std::string to_dot(const Tape& tape, int fold) {
  std::string out = "digraph tape {\nrankdir=LR\nnode [shape=box, fontname=\"monospace\", fontsize=10]\n";
  // Nodes by scope, so that a scope entered twice is one cluster. The key sorts a scope right before those inside it.
  std::map<std::string, std::vector<uint32_t>> by_scope;
  std::map<std::string, int> folded_count;    // folded scope -> nodes inside
  std::vector<std::string> box(tape.size());  // the name of the box that stands for a node
  std::vector<bool> read(tape.size(), false);
  for (uint32_t id = 0; id < tape.size(); ++id) {
    const NodeInfo node = tape.node(id);
    for (uint32_t input : node.inputs) read[input] = true;
    box[id] = fmt::format("n{}", id);
    if (is_leaf(node)) continue;
    if (fold > 0 && depth_of(node.scope) >= fold) {
      const std::string scope = first_part(node.scope, fold);
      ++folded_count[scope];
      box[id] = quoted(scope);
    } else {
      std::string key = node.scope;
      std::replace(key.begin(), key.end(), '/', '\1');
      by_scope[key].push_back(id);
    }
  }
  std::string open;
  int clusters = 0;
  for (const auto& [key, ids] : by_scope) {
    move_cluster(out, open, tape.node(ids[0]).scope, clusters);
    for (uint32_t id : ids) {
      const NodeInfo node = tape.node(id);
      fmt::format_to(Text(out), "{} [label={}]\n", box[id], lines(node.op, node.shape));
    }
  }
  move_cluster(out, open, "", clusters);
  std::map<std::string, int> folded_number;
  for (const auto& [scope, count] : folded_count) {
    folded_number.emplace(quoted(scope), static_cast<int>(folded_number.size()));
    fmt::format_to(Text(out), "{} [style=rounded, label={}]\n", quoted(scope),
                   lines(scope, fmt::format("{} nodes", count)));
  }
  // Edges once each; leaves are chips beside each reader, so that a weight used at every step draws no web.
  std::set<std::pair<std::string, std::string>> drawn;
  auto chip = [&](const std::string& name, uint32_t id) {
    const NodeInfo leaf = tape.node(id);
    fmt::format_to(Text(out), "{} [shape=note, fontsize=8, label={}]\n", name,
                   lines(fmt::format("{} {}", leaf.op, id), leaf.shape));
  };
  for (uint32_t id = 0; id < tape.size(); ++id) {
    const NodeInfo node = tape.node(id);
    if (is_leaf(node) && !read[id]) chip(fmt::format("chip{}", id), id);
    const auto folded = folded_number.find(box[id]);
    for (uint32_t input : node.inputs) {
      const bool leaf = is_leaf(tape.node(input));
      std::string name = box[input];
      if (leaf && folded == folded_number.end()) name = fmt::format("chip{}_{}", input, box[id]);
      if (leaf && folded != folded_number.end()) name = fmt::format("chip{}_f{}", input, folded->second);
      if (name == box[id] || !drawn.emplace(name, box[id]).second) continue;
      if (leaf) chip(name, input);
      fmt::format_to(Text(out), "{} -> {}\n", name, box[id]);
    }
  }
  return out + "}\n";
}

std::string to_json(const Tape& tape) {
  std::string out = "{\"schema\":\"tapedeck-tape/1\",\"nodes\":[";
  for (uint32_t id = 0; id < tape.size(); ++id) {
    const NodeInfo node = tape.node(id);
    fmt::format_to(Text(out), "{}\n{{\"id\":{},\"op\":{},\"scope\":{},\"inputs\":", id > 0 ? "," : "", id,
                   quoted(node.op), quoted(node.scope));
    append_integers(out, node.inputs);
    fmt::format_to(Text(out), ",\"dtype\":{},\"shape\":", quoted(name(node.dtype)));
    append_integers(out, node.shape);
    out += ",\"site\":";
    append_site(out, node.site);
    out += ",\"user_site\":";
    append_site(out, node.user_site);
    if (tape.traces()) {
      const TracedNode& traced = tape.traced(id);
      out += ",\"strides\":";
      append_integers(out, traced.value.strides());
      out += ",\"value\":";
      append_tensor(out, traced.value);
      out += ",\"gradient\":";
      append_tensor(out, traced.gradient);
      out += ",\"saved\":";
      append_list(out, traced.saved, [&](const SavedValue& saved) {
        fmt::format_to(Text(out), "{{\"what\":\"{}\",\"shape\":", saved.output ? "output" : "input");
        append_integers(out, saved.shape);
        fmt::format_to(Text(out), ",\"bytes\":{}}}", saved.bytes);
      });
      out += ",\"contributions\":";
      append_list(out, traced.contributions, [&](const Tensor& term) { append_tensor(out, term); });
    }
    out += '}';
  }
  return out + "\n]}\n";
}

namespace {

constexpr int most_lines = 5;

// Why nothing came: every path from the node ends before the node that was differentiated.
std::string explain_absent(const Tape& tape, uint32_t id, uint32_t swept, const std::vector<std::vector<Use>>& uses) {
  if (id > swept) return "  it was recorded after " + named(tape, swept) + ", which was differentiated\n";
  const std::string elsewhere = "what is detached, made under NoGrad or by an op without derivative leaves no path";
  if (uses[id].empty()) return fmt::format("  nothing on the tape uses it ({})\n", elsewhere);
  std::string text;
  std::vector<uint32_t> open{id};
  std::vector<bool> seen(tape.size(), false);
  int shown = 0;
  while (!open.empty()) {
    const uint32_t at = open.back();
    open.pop_back();
    if (seen[at]) continue;
    seen[at] = true;
    if (uses[at].empty() && ++shown <= most_lines) {
      text += fmt::format("  a path ends in {}: nothing on the tape uses that ({})\n", named(tape, at), elsewhere);
    }
    for (const Use& use : uses[at]) {
      if (use.gradient != Content::absent) {
        if (++shown <= most_lines) text += fmt::format("  {} passed nothing on\n", named(tape, use.reader));
      } else if (use.reader > swept) {
        if (++shown <= most_lines)
          text += fmt::format("  {} came after what was differentiated\n", named(tape, use.reader));
      } else {
        open.push_back(use.reader);
      }
    }
  }
  if (shown > most_lines) text += fmt::format("  ... and {} more\n", shown - most_lines);
  return text + "  differentiated was " + named(tape, swept) + '\n';
}

// Follows the offending gradient towards the loss, to the rules that made it out of good ones.
std::string explain_bad(const Tape& tape, uint32_t id, uint32_t swept, Content mine, const char* what,
                        const std::vector<std::vector<Use>>& uses) {
  std::string text;
  std::vector<uint32_t> open{id};
  std::vector<bool> seen(tape.size(), false);
  int shown = 0;
  while (!open.empty()) {
    const uint32_t at = open.back();
    open.pop_back();
    if (seen[at]) continue;
    seen[at] = true;
    bool passed = false;
    for (const Use& use : uses[at]) {
      if (use.passed != mine) continue;
      passed = true;
      if (use.gradient == mine) {
        open.push_back(use.reader);
      } else if (++shown <= most_lines) {
        const Tensor own = tape.traced(use.reader).gradient;
        text +=
            fmt::format("  {} got a good gradient and passed {} on to {}: input {}, result {}", named(tape, use.reader),
                        what, named(tape, at), to_string(ValueRange(tape.traced(at).value)),
                        to_string(ValueRange(tape.traced(use.reader).value)));
        if (const int64_t zeros = zeros_in(own); zeros > 0 && mine == Content::zero)
          text += fmt::format("; {} of {} elements of its own gradient are 0", zeros, own.numel());
        text += '\n';
      }
    }
    if (passed) continue;
    ++shown;
    if (at == swept) {
      text += fmt::format("  {} was differentiated: its seed is {}\n", named(tape, at), what);
    } else if (mine == Content::zero) {
      text += fmt::format("  in {} contributions cancelled, or a hook made it zero\n", named(tape, at));
    } else {
      text += fmt::format("  in {} finite contributions overflowed when added, or a hook made it\n", named(tape, at));
    }
  }
  if (shown > most_lines) text += fmt::format("  ... and {} more\n", shown - most_lines);
  return text;
}

}  // namespace

std::string explain_gradient(const Tape& tape, uint32_t id) {
  const Tensor g = tape.traced(id).gradient;
  const Content mine = content(g);
  std::string text = named(tape, id);
  if (mine == Content::plain) {
    text += fmt::format(": its gradient is finite and not zero: {}", to_string(ValueRange(g)));
    if (const int64_t zeros = zeros_in(g)) text += fmt::format("; {} of {} elements are 0", zeros, g.numel());
    return text + '\n';
  }
  const auto uses = uses_of_all(tape);
  uint32_t swept = static_cast<uint32_t>(tape.size());  // the last node with a gradient is the one differentiated
  while (swept > 0 && !tape.traced(swept - 1).gradient.defined()) --swept;
  if (mine == Content::absent) {
    if (swept == 0) return text + ": no gradient: no backward pass has run on this tape\n";
    return text + ": no gradient:\n" + explain_absent(tape, id, swept - 1, uses);
  }
  const char* what = mine == Content::zero ? "zero" : "NaN or Inf";
  return text + fmt::format(": its gradient is {}\n", what) + explain_bad(tape, id, swept - 1, mine, what, uses);
}

}  // namespace tapedeck
