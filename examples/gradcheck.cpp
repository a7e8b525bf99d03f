// Checks derivatives by the tape against differences, in f64, at first and second order: every op of the table of ops,
// every module, the whole model. Then shows that the check can fail: planted wrong rules must all be caught.
//
//   gradcheck                     everything
//   gradcheck --filter softmax    what has "softmax" in its name
#include "op_samples.h"

#include <tapedeck/core/version.h>

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

using namespace tapedeck;
using namespace tapedeck::samples;

namespace {

struct Options {
  std::string filter, json;
  int order = 2;
};

// One line of the table.
struct Line {
  std::string kind, name, inputs;
  int64_t elements = 0;
  double worst = 0;
  std::string orders[2] = {"-", "-"};
  std::string verdict{tapedeck::name(Verdict::match)};
  bool ok = true;
  std::string details = {};  // the report, where something is wrong
};

void add(Line& line, int order, const GradcheckReport& report) {
  line.elements += report.elements;
  line.worst = std::max(line.worst, report.worst);
  line.orders[order - 1] = name(report.verdict);
  if (report.ok()) return;
  if (line.ok) line.verdict = name(report.verdict);
  line.ok = false;
  line.details += fmt::format("\n{}, order {}: {}", line.name, order, to_string(report));
}

// "(3, 5), i64 (3,)"
std::string text_of(const std::vector<Tensor>& inputs) {
  std::string text;
  for (const Tensor& x : inputs) {
    if (!text.empty()) text += ", ";
    if (x.dtype() != DType::f64) text += std::string(name(x.dtype())) + ' ';
    text += to_string(x.shape());
  }
  return text;
}

Line check_op(const Sample& row, const Options& options) {
  std::vector<Tensor> inputs = draw(row.inputs, row.name());
  Line line{.kind = "op", .name = row.name(), .inputs = text_of(inputs)};
  if (row.order == 0) {  // declared: whatever goes in, a constant comes out
    Tape tape;
    std::vector<Var> xs;
    for (const Tensor& x : inputs) xs.push_back(is_floating(x.dtype()) ? tape.leaf(x) : Var(x));
    line.ok = !row.f(xs).tracked();
    line.verdict = line.ok ? "no derivative" : "undeclared derivative";
    return line;
  }
  for (int order = 1; order <= std::min(row.order, options.order); ++order) {
    add(line, order, check(row.f, inputs, {.order = order, .excluded = row.excluded}));
  }
  return line;
}

Line check_module(const ModuleSample& sample, const Options& options) {
  ModuleCase given = sample.make();
  std::vector<Tensor> inputs;
  for (const NamedTensor& input : given.inputs) inputs.push_back(input.value);
  std::string text = text_of(inputs);
  if (!given.parameters.empty()) {
    text += fmt::format("{}{} parameter{}", text.empty() ? "" : " + ", given.parameters.size(),
                        given.parameters.size() == 1 ? "" : "s");
  }
  Line line{.kind = "module", .name = sample.name, .inputs = text};
  for (int order = 1; order <= options.order; ++order) {
    given.options.order = order;
    add(line, order, gradcheck(given.f, given.inputs, given.parameters, given.options));
  }
  return line;
}

Line check_planted(const Mutant& mutant, const Options& options) {
  std::vector<Tensor> inputs = draw(mutant.inputs, mutant.name);
  Line line{.kind = "planted", .name = mutant.name, .inputs = text_of(inputs)};
  for (int order = 1; order <= options.order; ++order) {
    add(line, order, check(mutant.wrong, inputs, {.order = order}));
  }
  line.ok = line.verdict == name(Verdict::mismatch);
  line.verdict = line.ok ? "caught" : "NOT CAUGHT";
  line.details = line.ok ? "" : fmt::format("\n{}: the wrong rule passes\n", line.name);
  return line;
}

using Json = nlohmann::ordered_json;

Json json_of(const Line& line) {
  Json worst = line.worst;
  if (!std::isfinite(line.worst)) worst = nullptr;  // the backward pass threw: no number to give
  return {{"kind", line.kind}, {"name", line.name},        {"inputs", line.inputs},    {"elements", line.elements},
          {"worst", worst},    {"order1", line.orders[0]}, {"order2", line.orders[1]}, {"verdict", line.verdict}};
}

const char* title_of(const std::string& kind) {
  if (kind == "op") return "Ops";
  if (kind == "module") return "Modules and models";
  return "Planted wrong rules, to be caught (order 2 differentiates the rule as it is: what is wrong may be "
         "consistent)";
}

int run(const Options& options) {
  // What to check, in order, by name.
  struct Job {
    std::string name;
    std::function<Line()> run;
  };
  std::vector<Job> jobs;
  auto add_job = [&](const std::string& name, std::function<Line()> job) {
    if (name.find(options.filter) != std::string::npos) jobs.push_back({name, std::move(job)});
  };
  for (const Sample& row : op_samples()) add_job(row.name(), [&] { return check_op(row, options); });
  for (const ModuleSample& sample : module_samples()) {
    add_job(sample.name, [&] { return check_module(sample, options); });
  }
  for (const Mutant& mutant : op_mutants()) {
    if (mutant.order <= options.order) add_job(mutant.name, [&] { return check_planted(mutant, options); });
  }
  if (jobs.empty()) {
    fmt::print(stderr, "gradcheck: nothing to check has \"{}\" in its name\n", options.filter);
    return 2;
  }

  std::ofstream file;  // opened first: not to find out at the end that it cannot be written
  if (!options.json.empty()) {
    file.open(options.json);
    if (!file) {
      fmt::print(stderr, "gradcheck: cannot write {}: {}\n", options.json, std::strerror(errno));
      return 2;
    }
  }

  size_t width = 0;
  for (const Job& job : jobs) width = std::max(width, job.name.size());
  auto print_line = [width](const auto& name, const auto& inputs, const auto& elements, const auto& worst,
                            const auto& first, const auto& second, const auto& verdict) {
    fmt::print("{:{}}  {:30}  {:>8}  {:>8}  {:11}  {:11}  {}\n", name, width, inputs, elements, worst, first, second,
               verdict);
  };

  const auto start = std::chrono::steady_clock::now();
  std::vector<Line> lines;
  std::string section;
  for (const Job& job : jobs) {
    Line line = job.run();
    if (line.kind != section) {
      section = line.kind;
      fmt::print("{}{}\n\n", lines.empty() ? "" : "\n", title_of(section));
      print_line("name", "inputs", "elements", "worst", "order 1", "order 2", "verdict");
    }
    print_line(line.name, line.inputs, line.elements, line.elements > 0 ? fmt::format("{:.1e}", line.worst) : "-",
               line.orders[0], line.orders[1], line.verdict);
    std::fflush(stdout);
    lines.push_back(std::move(line));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  int64_t checked = 0, right = 0, constant = 0, planted = 0, caught = 0, elements = 0;
  double worst = 0;
  Json checks = Json::array();
  for (const Line& line : lines) {
    fmt::print("{}", line.details);
    checks.push_back(json_of(line));
    if (line.kind == "planted") {
      ++planted;
      caught += line.ok;
      continue;
    }
    constant += line.verdict == "no derivative";
    ++checked;
    right += line.ok;
    elements += line.elements;
    worst = std::max(worst, line.worst);
  }
  const bool ok = right == checked && caught == planted;
  fmt::print(
      "\n{} of {} right ({} without derivative), {} derivatives compared, worst relative error {:.1e}; "
      "{} of {} planted wrong rules caught; {:.1f} s\n",
      right, checked, constant, elements, worst, caught, planted, seconds);

  if (file.is_open()) {
    Json summary = {{"checked", checked},
                    {"right", right},
                    {"without_derivative", constant},
                    {"elements", elements},
                    {"planted", planted},
                    {"caught", caught},
                    {"seconds", seconds},
                    {"ok", ok}};
    summary["worst"] = std::isfinite(worst) ? Json(worst) : Json(nullptr);
    file << Json{{"checks", checks}, {"summary", summary}}.dump(2) << '\n';
    if (!file.flush()) {
      fmt::print(stderr, "gradcheck: writing {} failed: {}\n", options.json, std::strerror(errno));
      return 2;
    }
  }
  return ok ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Checks derivatives by the tape against differences, in f64: every op, every module,\n"
      "the whole model; then that planted wrong rules are caught.\n"
      "Exit code 0: all right; 1: a mismatch, or a wrong rule not caught; 2: bad usage.\n",
      "gradcheck");
  app.set_version_flag("--version", fmt::format("gradcheck (Tapedeck {})", version()));
  app.add_option("--filter", options.filter, "check only what has this text in its name")->type_name("TEXT");
  app.add_option("--order", options.order, "1: first derivatives only; 2: second ones too")
      ->check(CLI::Range(1, 2))
      ->type_name("1|2")
      ->capture_default_str();
  app.add_option("--json", options.json, "also write the table and the summary to this file")->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "gradcheck: {} (--help lists the options)\n", error.what());
    return 2;
  }

  try {
    return run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gradcheck: {}\n", error.what());
    return 1;
  }
}
