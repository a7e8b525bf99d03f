#include <tapedeck/nn/embedding.h>

namespace tapedeck {

Embedding::Embedding(int64_t count, int64_t dim, Rng& rng, EmbeddingOptions options)
    : weight(embedding_init(count, dim, options.padding_idx, options.dtype, rng)), padding_idx(options.padding_idx) {}

Var Embedding::operator()(Operand ids) const {
  UserSite here(ids);
  return embedding(weight, ids, padding_idx);
}

}  // namespace tapedeck
