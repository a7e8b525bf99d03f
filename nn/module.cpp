#include <tapedeck/nn/module.h>

#include <unordered_map>
#include <unordered_set>

namespace tapedeck::detail {

std::vector<NamedParameter> first_paths(std::vector<NamedParameter> all) {
  std::unordered_map<std::string_view, const Parameter*> at;
  std::unordered_set<uint64_t> seen;
  std::vector<bool> first;
  for (const auto& [path, parameter] : all) {
    const Parameter& holder = *at.try_emplace(path, &parameter).first->second;
    if (holder.id() != parameter.id()) {
      fail("named_parameters: two parameters have the path \"{}\": {} and {}; every field needs a name of its own",
           path, holder.shape(), parameter.shape());
    }
    first.push_back(seen.insert(parameter.id()).second);
  }
  std::vector<NamedParameter> result;
  result.reserve(seen.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (first[i]) result.push_back(std::move(all[i]));
  }
  return result;
}

Parameter Copies::of(const Parameter& parameter) {
  for (const auto& [id, copy] : made_) {
    if (id == parameter.id()) return copy;
  }
  const Tensor& value = parameter.value();
  bool converts = dtype_ && *dtype_ != value.dtype();
  return made_.emplace_back(parameter.id(), Parameter(converts ? value.to(*dtype_) : value.clone())).second;
}

}  // namespace tapedeck::detail
