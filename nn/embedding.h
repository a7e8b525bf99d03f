#pragma once

#include <tapedeck/nn/init.h>
#include <tapedeck/ops/index.h>

#include <optional>

namespace tapedeck {

struct EmbeddingOptions {
  std::optional<int64_t> padding_idx = std::nullopt;  // this row starts at 0 and gets no gradient through the lookup
  DType dtype = DType::f32;
};

// y = weight[ids]: i64 ids (...) -> (..., dim). The weight (count, dim) starts as N(0, 1).
struct Embedding {
  Parameter weight;
  std::optional<int64_t> padding_idx;

  Embedding(int64_t count, int64_t dim, Rng& rng, EmbeddingOptions options = {});
  Var operator()(Operand ids) const;
  static void fields(auto& self, auto&& f) { f("weight", self.weight); }
};

}  // namespace tapedeck
