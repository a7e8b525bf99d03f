// The generic test of a module's field list.
#pragma once

#include <tapedeck/nn/module.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace tapedeck {

// What is wrong with the modules that factory() makes; empty if nothing: the parameters that the constructor left alive
// are those that fields visits (counting alone would let a field named twice hide a forgotten one), in const and
// non-const walks alike, no two under one path. Nothing else may make parameters meanwhile.
//
//   CHECK(audit_module([] { Rng rng(1); return GRUCell(3, 4, rng); }) == "");
template <class Factory>
std::string audit_module(Factory factory) {
  std::vector<uint64_t> before = live_parameters();
  auto module = factory();
  std::vector<uint64_t> after = live_parameters(), made;
  std::set_difference(after.begin(), after.end(), before.begin(), before.end(), std::back_inserter(made));

  std::string complaints;
  std::set<uint64_t> visited;
  std::vector<std::string> paths, again;
  std::set<std::string> unique;
  for_each_parameter(std::as_const(module), [&](std::string_view path, const Parameter& parameter) {
    visited.insert(parameter.id());
    paths.emplace_back(path);
    if (path.empty()) complaints += "a parameter without a path; ";
    if (!unique.insert(paths.back()).second) complaints += "two parameters at " + paths.back() + "; ";
    if (!std::binary_search(made.begin(), made.end(), parameter.id())) {
      complaints += paths.back() + " is older than the module; ";
    }
  });
  for_each_parameter(module, [&](std::string_view path, Parameter&) { again.emplace_back(path); });
  if (paths != again) complaints += "const and non-const walks differ; ";
  for (uint64_t id : made) {
    if (!visited.contains(id)) complaints += fmt::format("parameter {} was made but is not listed; ", id);
  }
  return complaints;
}

}  // namespace tapedeck
