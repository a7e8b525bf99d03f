// Saving and loading a module's parameters, under the names and in the layouts of PyTorch's state_dict.
//
//   save("model.safetensors", model, {{"hidden", "32"}});
//   load("model.safetensors", model).metadata.at("hidden");
#pragma once

#include <tapedeck/nn/module.h>
#include <tapedeck/nn/safetensors.h>

#include <map>
#include <string>
#include <vector>

namespace tapedeck {

// Text by name, kept beside the tensors.
using Metadata = std::map<std::string, std::string>;

// Settings of load.
struct LoadOptions {
  bool convert = false;  // let an f32 file fill an f64 module and the reverse
};

// What a file holds beside the parameters.
struct LoadedFile {
  Metadata metadata;     // as given to save()
  bool has_crc = false;  // false: not written by this library, so that flipped bits would go unnoticed
};

// The parameters in listing order, as save() stores them: tied ones once, under their first path. Shares memory.
NamedTensors named_tensors(const std::vector<NamedParameter>& parameters);

// Copies stored tensors into parameters. `paths` lists every path of every parameter (see all_paths); a tied parameter
// may be stored under any of its paths, or under several if the values agree bit for bit. Throws one error that lists
// every missing, unknown, mis-shaped and mis-typed name; then nothing was changed. `source` begins the message.
void load_parameters(std::string_view source, const NamedTensors& stored, const std::vector<NamedParameter>& paths,
                     const LoadOptions& options = {});

// Writes the module's parameters to a safetensors file (see write_safetensors for errors and crashes).
template <Module M>
void save(const std::string& path, const M& module, const Metadata& metadata = {}) {
  write_safetensors(path, {named_tensors(named_parameters(module)), metadata});
}

// Fills the module's parameters from a safetensors file of this library or of PyTorch. All or nothing: throws, as
// read_safetensors and load_parameters do, with the module unchanged.
template <Module M>
LoadedFile load(const std::string& path, M& module, const LoadOptions& options = {}) {
  TensorFile file = read_safetensors(path);
  load_parameters("load: " + path, file.tensors, all_paths(module), options);
  return {std::move(file.metadata), file.has_crc};
}

namespace detail {

// Where a stored tensor goes: into the memory of `value`, from whichever of the names is stored.
struct Target {
  std::vector<std::string> names;
  Tensor value;
};

// Checks everything, then copies (see load_parameters). Without options nothing can be converted.
void restore(std::string_view source, const NamedTensors& stored, const std::vector<Target>& targets,
             const LoadOptions* options = nullptr);

}  // namespace detail

}  // namespace tapedeck
