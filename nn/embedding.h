// Rows of a matrix, looked up by id.
#pragma once

#include <tapedeck/nn/init.h>
#include <tapedeck/ops/index.h>

#include <optional>

namespace tapedeck {

// Settings of Embedding.
struct EmbeddingOptions {
  std::optional<int64_t> padding_idx = std::nullopt;  // this row starts at 0 and gets no gradient through the lookup
  DType dtype = DType::f32;                           // of the weight
};

// y = weight[ids]: i64 ids (...) -> (..., dim). The weight (count, dim) starts as N(0, 1).
struct Embedding {
  Parameter weight;                    // (count, dim)
  std::optional<int64_t> padding_idx;  // the row that stays as it is; none by default

  Embedding(int64_t count, int64_t dim, Rng& rng, EmbeddingOptions options = {});
  Var operator()(Operand ids) const;
  static void fields(auto& self, auto&& f) { f("weight", self.weight); }
};

}  // namespace tapedeck
