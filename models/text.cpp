#include <tapedeck/models/text.h>

#include <algorithm>

namespace tapedeck {
namespace {

void check_sequences(const char* side, std::span<const Sequence> rows) {
  for (size_t b = 0; b < rows.size(); ++b) {
    if (rows[b].empty()) fail("batch: {} row {} is empty", side, b);
    for (int64_t id : rows[b]) {
      if (id == pad_id || id == bos_id || id == eos_id || id < 0) {
        fail("batch: {} row {} contains the id {}; pads and the tokens of begin and end are added here", side, b, id);
      }
    }
  }
}

int64_t longest(std::span<const Sequence> rows) {
  size_t n = 0;
  for (const Sequence& row : rows) n = std::max(n, row.size());
  return static_cast<int64_t>(n);
}

}  // namespace

Batch make_batch(std::span<const Sequence> sources, std::span<const Sequence> targets) {
  if (sources.size() != targets.size()) {
    fail("batch: {} sources against {} targets", sources.size(), targets.size());
  }
  check_sequences("source", sources);
  check_sequences("target", targets);
  const int64_t B = static_cast<int64_t>(sources.size()), S = longest(sources), T = longest(targets) + 1;
  Batch batch{Tensor::full({B, S}, pad_id, DType::i64), Tensor::full({B, T}, pad_id, DType::i64),
              Tensor::full({B, T}, pad_id, DType::i64), 0};
  int64_t* src = batch.source.mutable_data<int64_t>();
  int64_t* in = batch.target_in.mutable_data<int64_t>();
  int64_t* out = batch.target_out.mutable_data<int64_t>();
  for (size_t b = 0; b < sources.size(); ++b, src += S, in += T, out += T) {
    std::copy(sources[b].begin(), sources[b].end(), src);
    in[0] = bos_id;
    std::copy(targets[b].begin(), targets[b].end(), in + 1);
    std::copy(targets[b].begin(), targets[b].end(), out);
    out[targets[b].size()] = eos_id;
    batch.tokens += static_cast<int64_t>(targets[b].size()) + 1;
  }
  return batch;
}

CachedVector<int64_t> row_lengths(const Tensor& ids, int64_t pad) {
  if (ids.rank() != 2 || ids.dtype() != DType::i64) {
    fail("row lengths: expected i64 ids (B, T), got {} {}", ids.dtype(), ids.shape());
  }
  Tensor dense = ids.contiguous();
  const int64_t* p = dense.data<int64_t>();
  const int64_t T = ids.size(1);
  CachedVector<int64_t> lengths;
  for (int64_t b = 0; b < ids.size(0); ++b, p += T) {
    int64_t n = std::find(p, p + T, pad) - p;
    if (n == 0) fail("row lengths: row {} is empty", b);
    for (int64_t t = n; t < T; ++t) {
      if (p[t] != pad) fail("row lengths: row {} has a pad at position {}, before the token at {}", b, n, t);
    }
    lengths.push_back(n);
  }
  return lengths;
}

Batch ReversalTask::batch(int64_t rows, Rng& rng) const {
  if (min_length < 1 || max_length < min_length || symbols < 1 || rows < 0) {
    fail(
        "reversal: expected 1 <= min length <= max length, symbols >= 1 and rows >= 0, got lengths {}-{}, {} symbols, "
        "{} rows",
        min_length, max_length, symbols, rows);
  }
  std::vector<Sequence> sources, targets;
  for (int64_t b = 0; b < rows; ++b) {
    Sequence source(static_cast<size_t>(min_length + rng.below(max_length - min_length + 1)));
    for (int64_t& id : source) id = 3 + rng.below(symbols);
    targets.emplace_back(source.rbegin(), source.rend());
    sources.push_back(std::move(source));
  }
  return make_batch(sources, targets);
}

}  // namespace tapedeck
