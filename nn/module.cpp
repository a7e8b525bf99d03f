#include <tapedeck/nn/module.h>

#include <unordered_map>

namespace tapedeck::detail {

std::vector<NamedParameter> first_paths(std::vector<NamedParameter> all) {
  std::unordered_map<std::string_view, uint64_t> identity_of;
  std::unordered_map<uint64_t, std::string_view> path_of;
  std::vector<bool> first(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [path, parameter] = all[i];
    auto [place, is_new] = identity_of.try_emplace(path, parameter.id());
    if (!is_new && place->second != parameter.id()) {
      fail("named_parameters: two parameters have the path \"{}\": {} and {}; every field needs a name of its own", path,
           parameter.shape(), [&] {
             for (const NamedParameter& other : all) {
               if (other.parameter.id() == place->second) return other.parameter.shape();
             }
             return Shape();
           }());
    }
    first[i] = path_of.try_emplace(parameter.id(), path).second;
  }
  std::vector<NamedParameter> result;
  result.reserve(path_of.size());
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
