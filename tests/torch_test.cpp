// Safetensors files traded with PyTorch: the translation study's model gives the same logits on both sides, in f32.
// torch/check.sh runs this against a fresh file of PyTorch's; where PyTorch is missing, a stored one stands in.
#include <tapedeck/models/translation_study.h>
#include <tapedeck/nn/checkpoint.h>

#include <cstdlib>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

struct Traded {
  NamedTensors parameters;
  Tensor source, target_in, logits;
};

Traded read(const std::string& path) {
  Traded file;
  for (const auto& [name, tensor] : read_safetensors(path).tensors) {
    if (name == "in.source") {
      file.source = tensor;
    } else if (name == "in.target_in") {
      file.target_in = tensor;
    } else if (name == "out.logits") {
      file.logits = tensor;
    } else {
      file.parameters.emplace_back(name, tensor);
    }
  }
  return file;
}

int64_t extent(const Traded& file, std::string_view name, int dim) {
  for (const auto& [stored, tensor] : file.parameters) {
    if (stored == name) return tensor.size(dim);
  }
  FAIL("no " << std::string(name));
  return 0;
}

TranslationStudy model_for(const Traded& file, Rng& rng) {
  return TranslationStudy({.source_vocabulary = extent(file, "src_emb.weight", 0),
                           .target_vocabulary = extent(file, "tgt_emb.weight", 0),
                           .embedding_size = extent(file, "src_emb.weight", 1),
                           .encoder_size = extent(file, "encoder.weight_hh_l0", 1),
                           .decoder_size = extent(file, "decoder.weight_hh_l0", 1),
                           .attention_size = extent(file, "attention.W_k.weight", 0)},
                          rng);
}

double error(const TranslationStudy& model, const Traded& file) {
  const std::vector<double> ours = values(model.forward(file.source, file.target_in).logits.value());
  const std::vector<double> theirs = values(file.logits);
  REQUIRE(ours.size() == theirs.size());
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i) worst = std::max(worst, std::abs(ours[i] - theirs[i]));
  return worst;
}

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

}  // namespace

TEST_SUITE("torch") {
TEST_CASE("a file of PyTorch's gives its logits and one of ours is written for it") {
  const std::string given = variable("TAPEDECK_TORCH_FILE"), out = variable("TAPEDECK_TORCH_OUT");
  const Traded file = read(given.empty() ? TAPEDECK_SOURCE_DIR "/tests/torch/study_f32.safetensors" : given);
  Rng rng(3);
  TranslationStudy model = model_for(file, rng);
  CHECK(error(model, file) > 1e-2);  // other weights
  load_parameters("the file", file.parameters, all_paths(model));
  CHECK(error(model, file) <= 1e-5);
  if (out.empty()) return;

  const TranslationStudy fresh = model_for(file, rng);
  NamedTensors all = named_tensors(named_parameters(fresh));
  all.emplace_back("in.source", file.source);
  all.emplace_back("in.target_in", file.target_in);
  all.emplace_back("out.logits", fresh.forward(file.source, file.target_in).logits.value());
  write_safetensors(out, {all, {}});
}
}
