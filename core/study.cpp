#include <tapedeck/core/study.h>

#include <algorithm>
#include <cmath>

namespace tapedeck {
namespace {

// The first NaN or Inf in row-major order, as "NaN at [1, 0]"; empty if there is none.
std::string first_bad(const Tensor& x) {
  if (!is_floating(x.dtype())) return {};
  const std::vector<double> values = x.to(DType::f64).to_vector<double>();
  auto bad = std::find_if(values.begin(), values.end(), [](double v) { return !std::isfinite(v); });
  if (bad == values.end()) return {};
  int64_t flat = bad - values.begin();
  std::string index;
  for (int i = x.rank() - 1; i >= 0; --i) {
    index = fmt::format("{}{}{}", flat % x.shape()[i], index.empty() ? "" : ", ", index);
    flat /= x.shape()[i];
  }
  return fmt::format("{} at [{}]", std::isnan(*bad) ? "NaN" : "Inf", index);
}

std::string site_text(Site inner, Site outer) {
  std::string text;
  if (inner.file) text += fmt::format(" at {}:{}", inner.file, inner.line);
  if (outer.file && (outer.file != inner.file || outer.line != inner.line)) {
    text += fmt::format(", called from {}:{}", outer.file, outer.line);
  }
  return text;
}

std::string in_scope(const std::string& path) { return path.empty() ? "" : " in " + path; }

std::string range_text(const Tensor& x) { return to_string(ValueRange(x)); }

int64_t bytes_of(const Tensor& x) { return x.numel() * size_of(x.dtype()); }

}  // namespace

ValueRange::ValueRange(const Tensor& x) : dtype(x.dtype()), shape(x.shape()) {
  for (double v : x.to(DType::f64).to_vector<double>()) {
    if (std::isnan(v)) {
      ++nans;
    } else if (std::isinf(v)) {
      ++infs;
    } else {
      low = std::min(low, v);
      high = std::max(high, v);
    }
  }
}

std::string to_string(const ValueRange& range) {
  std::string text = fmt::format("{} {}", range.dtype, range.shape);
  if (range.low <= range.high) text += fmt::format(" in [{:.4g}, {:.4g}]", range.low, range.high);
  if (range.nans > 0) text += fmt::format(" with {} NaN", range.nans);
  if (range.infs > 0) text += fmt::format("{} {} Inf", range.nans > 0 ? "," : " with", range.infs);
  return text;
}

Tape::Study& Tape::study() {
  if (!study_) study_ = std::make_unique<Study>(TapeOptions{});
  return *study_;
}

const Tape::Study& Tape::study_for(const char* what, bool made_for) const {
  if (!made_for) fail("{}: this tape was not made for it; begin it with Tape tape({{.{} = ...::on}})", what, what);
  return *study_;
}

// ---- While recording ----

void Tape::observe(const char* op, const Tensor& y, std::span<const Var* const> inputs, Site site) {
  const auto now = StudyClock::now();
  if (study_->options.profile == Profile::on) {
    ProfileRow& row = study_->rows[op];
    ++row.calls;
    row.bytes += bytes_of(y);
    row.forward_seconds += std::chrono::duration<double>(now - study_->last_op).count();
  }
  if (study_->watches()) {
    if (const std::string bad = first_bad(y); !bad.empty()) {
      std::string text =
          fmt::format("anomaly: {} made {}{}{}: result {}", op, bad, site_text(site, current_user_site()),
                      in_scope(path_of(current_scope_record())), range_text(y));
      for (size_t k = 0; k < inputs.size(); ++k)
        text += fmt::format("; input {} {}", k, range_text(inputs[k]->value()));
      throw Error(text);
    }
  }
  study_->last_op = StudyClock::now();
}

void Tape::Study::note_value(uint32_t id, const Tensor& y, bool kept, bool is_leaf) {
  if (watches()) ranges.emplace_back(y);
  if (!traces()) return;
  nodes.resize(id + 1);
  // An optimiser's step must not change what a trace shows. (A copy has other strides where y is no row-major tensor.)
  nodes[id].value = is_leaf && y.is_contiguous() ? y.clone() : y;
  if (kept) nodes[id].saved.push_back({true, y.shape(), bytes_of(y)});
  copied.clear();
  noted = 0;
}

void Tape::begin_noting() {
  if (study_->traces()) detail::copied_values = &study_->copied;
}

// A value that several rules of a node hold is kept once.
void Tape::end_noting() {
  detail::copied_values = nullptr;
  if (!study_->traces()) return;
  std::vector<Tensor>& copied = study_->copied;
  for (size_t k = study_->noted; k < copied.size();) {
    const auto same = [&](const Tensor& x) {
      return x.shares_storage(copied[k]) && x.shape() == copied[k].shape() && x.strides() == copied[k].strides();
    };
    if (std::none_of(copied.begin(), copied.begin() + static_cast<std::ptrdiff_t>(k), same)) {
      study_->nodes.back().saved.push_back({false, copied[k].shape(), bytes_of(copied[k])});
      ++k;
    } else {
      copied.erase(copied.begin() + static_cast<std::ptrdiff_t>(k));
    }
  }
  study_->noted = copied.size();
}

void Tape::Study::note_fused(uint32_t id, const detail::FusedRule& rule) {
  if (!traces()) return;
  auto add = [&](const Var& v, bool output) { nodes[id].saved.push_back({output, v.shape(), bytes_of(v.value())}); };
  add(rule.y, true);
  for (const Var& v : rule.inputs) add(v, false);
  for (const Var& v : rule.saved) add(v, false);
}

// ---- In the backward pass ----

void Tape::Study::begin_pass(uint32_t last) {
  swept = last;
  for (TracedNode& node : nodes) {
    node.gradient = Tensor();
    node.contributions.clear();
  }
}

double* Tape::Study::backward_seconds(const char* op, bool recorded) {
  return options.profile == Profile::on && !recorded ? &rows[op].backward_seconds : nullptr;
}

Var Tape::note_gradient(const Node& node, uint32_t id, const Var& g) {
  if (study_->watches()) {
    if (const std::string bad = first_bad(g.value()); !bad.empty()) {
      fail("anomaly: {} in {}{}{}: gradient {}", bad,
           id == study_->swept ? "the seed" : "the sum of its readers' finite contributions",
           site_text(node.site, node.user_site), in_scope(path_of(node.scope)), range_text(g.value()));
    }
  }
  Var result = g;
  auto [begin, end] = study_->hooks.equal_range(id);
  for (auto hook = begin; hook != end; ++hook) {
    result = hook->second(result);
    if (!result.defined() || result.shape() != node.shape || result.dtype() != node.dtype) {
      fail("a hook returned {} for the gradient of a value {} {}",
           result.defined() ? fmt::format("{} {}", result.dtype(), result.shape()) : "an undefined value", node.dtype,
           node.shape);
    }
    if (!study_->watches()) continue;
    if (const std::string bad = first_bad(result.value()); !bad.empty()) {
      fail("anomaly: a hook made {}{}{}: gradient {}", bad, site_text(node.site, node.user_site),
           in_scope(path_of(node.scope)), range_text(result.value()));
    }
  }
  // A recorded pass sweeps definitions of fused ops behind the node it began with: no part of what is studied.
  if (study_->traces() && id <= study_->swept) {
    study_->nodes[id].gradient = result.value();
    study_->nodes[id].contributions.assign(node.edge_count, Tensor());
  }
  return result;
}

void Tape::note_contribution(const Node& node, uint32_t id, uint32_t edge, const Var& g, const Var& term) {
  if (study_->traces() && id <= study_->swept) study_->nodes[id].contributions[edge - node.first_edge] = term.value();
  if (!study_->watches()) return;
  if (const std::string bad = first_bad(term.value()); !bad.empty()) {
    std::string text =
        fmt::format("anomaly: its rule for input {} made {}{}{}: gradient {}; incoming {}; result {}",
                    edge - node.first_edge, bad, site_text(node.site, node.user_site), in_scope(path_of(node.scope)),
                    range_text(term.value()), range_text(g.value()), to_string(study_->ranges[id]));
    for (uint32_t k = 0; k < node.edge_count; ++k) {
      text += fmt::format("; input {} {}", k, to_string(study_->ranges[edges_[node.first_edge + k].input]));
    }
    throw Error(text);
  }
}

// ---- Questions ----

void Tape::add_hook(const Var& value, GradientHook hook) { study().hooks.emplace(id(value), std::move(hook)); }

void Tape::retain_gradient(const Var& value) {
  id(value);
  study().retained.push_back(value);
}

bool Tape::traces() const { return study_ && study_->traces(); }

const TracedNode& Tape::traced(uint32_t id) const {
  const Study& studied = study_for("trace", traces());
  if (id >= studied.nodes.size()) fail("traced: expected a node below {}, got {}", studied.nodes.size(), id);
  return studied.nodes[id];
}

std::vector<ProfileRow> Tape::profile() const {
  const Study& studied = study_for("profile", study_ && study_->options.profile == Profile::on);
  std::vector<ProfileRow> rows;
  for (const auto& [op, row] : studied.rows) {
    rows.push_back(row);
    rows.back().op = op;
  }
  std::stable_sort(rows.begin(), rows.end(), [](const ProfileRow& a, const ProfileRow& b) {
    return a.forward_seconds + a.backward_seconds > b.forward_seconds + b.backward_seconds;
  });
  return rows;
}

std::string to_string(const std::vector<ProfileRow>& rows) {
  double total = 0;
  for (const ProfileRow& row : rows) total += row.forward_seconds + row.backward_seconds;
  std::string text = fmt::format("{:18} {:>7} {:>12} {:>12} {:>7} {:>12}\n", "op", "calls", "forward us", "backward us",
                                 "share", "bytes");
  for (const ProfileRow& row : rows) {
    text += fmt::format("{:18} {:7} {:12.1f} {:12.1f} {:6.1f}% {:12}\n", row.op, row.calls, 1e6 * row.forward_seconds,
                        1e6 * row.backward_seconds,
                        total > 0 ? 100 * (row.forward_seconds + row.backward_seconds) / total : 0, row.bytes);
  }
  return text;
}

}  // namespace tapedeck
