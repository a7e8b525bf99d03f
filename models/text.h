// Token ids, and batches of padded sequences.
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/core/tensor.h>

#include <span>
#include <vector>

namespace tapedeck {

// The special ids; tokens of a text come after them.
inline constexpr int64_t pad_id = 0, bos_id = 1, eos_id = 2;

// Token ids.
using Sequence = std::vector<int64_t>;

// Pairs of sequences, padded at the end. B rows, S and T: the longest source, and target with its end token.
struct Batch {
  Tensor source;       // i64 (B, S)
  Tensor target_in;    // i64 (B, T): bos y_1 ... y_n
  Tensor target_out;   // i64 (B, T): y_1 ... y_n eos
  int64_t tokens = 0;  // targets that are not pads
};

// Throws where a sequence is empty or contains a special id, naming the row, or where the numbers of rows differ.
Batch make_batch(std::span<const Sequence> sources, std::span<const Sequence> targets);

// Lengths of rows padded at the end with `pad`. Throws on an empty row, or on a pad before a token, naming the row.
CachedVector<int64_t> row_lengths(const Tensor& ids, int64_t pad = pad_id);

// The toy task: the target is the source reversed. Symbols are 3 ... 3 + symbols - 1.
struct ReversalTask {
  int64_t min_length = 5, max_length = 10;  // both included
  int64_t symbols = 17;                     // different ones

  int64_t vocabulary() const { return 3 + symbols; }  // with the special ids
  // `rows` examples with lengths and symbols drawn evenly. Throws on a range that is empty or holds no symbol.
  Batch batch(int64_t rows, Rng& rng) const;
};

}  // namespace tapedeck
