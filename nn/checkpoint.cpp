#include <tapedeck/nn/checkpoint.h>

#include <cstring>
#include <unordered_map>

namespace tapedeck {

namespace {

bool bitwise_equal(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  Tensor x = a.contiguous(), y = b.contiguous();
  return dispatch(a.dtype(), [&]<class T> {
    return std::memcmp(x.data<T>(), y.data<T>(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) == 0;
  });
}

std::string listed(const std::vector<std::string>& names) {
  std::string text = names[0];
  for (size_t i = 1; i < names.size(); ++i) text += fmt::format("{}{}", i == 1 ? " (tied to " : ", ", names[i]);
  return names.size() > 1 ? text + ")" : text;
}

}  // namespace

NamedTensors named_tensors(const std::vector<NamedParameter>& parameters) {
  NamedTensors result;
  for (const auto& [name, parameter] : parameters) result.emplace_back(name, parameter.value());
  return result;
}

void load_parameters(std::string_view source, const NamedTensors& stored, const std::vector<NamedParameter>& paths,
                     const LoadOptions& options) {
  std::unordered_map<uint64_t, size_t> place;
  std::vector<detail::Target> targets;
  for (const auto& [name, parameter] : paths) {
    auto [it, is_new] = place.try_emplace(parameter.id(), targets.size());
    if (is_new) targets.push_back({{}, parameter.value()});
    targets[it->second].names.push_back(name);
  }
  detail::restore(source, stored, targets, &options);
}

void detail::restore(std::string_view source, const NamedTensors& stored, const std::vector<Target>& targets,
                     const LoadOptions* options) {
  std::vector<std::string> complaints;
  std::unordered_map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, value] : stored) {
    if (!by_name.try_emplace(name, &value).second) complaints.push_back(fmt::format("{} comes twice", name));
  }
  std::vector<const Tensor*> chosen;
  bool convertible = false;
  for (const Target& target : targets) {
    const Tensor* value = nullptr;
    std::string_view name;
    for (const std::string& path : target.names) {
      auto found = by_name.find(path);
      if (found == by_name.end()) continue;
      if (!value) {
        value = found->second;
        name = path;
      } else if (!bitwise_equal(*value, *found->second)) {
        complaints.push_back(fmt::format("{} and {} are tied here, but differ there", name, path));
      }
      by_name.erase(found);
    }
    chosen.push_back(value);
    if (!value) {
      complaints.push_back(
          fmt::format("{} {} {} is missing", listed(target.names), target.value.dtype(), target.value.shape()));
      continue;
    }
    if (value->shape() != target.value.shape()) {
      complaints.push_back(fmt::format("{} has shape {}, expected {}", name, value->shape(), target.value.shape()));
    }
    if (target.value.overlaps_itself()) {
      complaints.push_back(fmt::format("elements of {} share memory here (it was expanded)", name));
    }
    if (value->dtype() != target.value.dtype()) {
      bool converts = options && is_floating(value->dtype()) && is_floating(target.value.dtype());
      if (converts && options->convert) continue;
      convertible |= converts;
      complaints.push_back(fmt::format("{} is {}, expected {}", name, value->dtype(), target.value.dtype()));
    }
  }
  for (const auto& [name, value] : stored) {
    auto left = by_name.find(name);
    if (left != by_name.end() && left->second == &value) {
      complaints.push_back(fmt::format("{} {} {} is unknown", name, value.dtype(), value.shape()));
    }
  }
  if (!complaints.empty()) {
    std::string text = fmt::format("{} does not fit, nothing was loaded: ", source);
    for (size_t i = 0; i < complaints.size(); ++i) text += (i == 0 ? "" : "; ") + complaints[i];
    if (convertible) text += "; to change the dtype on the way, say LoadOptions{.convert = true}";
    fail("{}", text);
  }
  std::vector<Tensor> converted;
  for (size_t i = 0; i < targets.size(); ++i) converted.push_back(chosen[i]->to(targets[i].value.dtype()));
  for (size_t i = 0; i < targets.size(); ++i) Tensor(targets[i].value).copy_(converted[i]);
}

}  // namespace tapedeck
