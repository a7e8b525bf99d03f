#include <tapedeck/models/metrics.h>
#include <tapedeck/ops/reduce.h>

#include <algorithm>
#include <cmath>

namespace tapedeck {

void Perplexity::add(double summed_loss, int64_t tokens) {
  if (tokens < 0 || std::isnan(summed_loss)) {
    fail("perplexity: expected a number and tokens >= 0, got loss {} over {} tokens", summed_loss, tokens);
  }
  loss_ += summed_loss;
  tokens_ += tokens;
}

double Perplexity::log_value() const {
  if (tokens_ == 0) fail("perplexity: no tokens were added");
  return loss_ / static_cast<double>(tokens_);
}

double Perplexity::value() const { return std::exp(log_value()); }

ReversalScore evaluate_reversal(const std::function<std::unique_ptr<Decoding>(const Tensor&)>& begin,
                                const Batch& batch) {
  const int64_t B = batch.source.size(0), T = batch.target_out.size(1);
  if (B == 0) fail("evaluate: the batch is empty");
  const CachedVector<int64_t> lengths = row_lengths(batch.source), target_lengths = row_lengths(batch.target_out);
  if (target_lengths.size() != lengths.size()) {
    fail("evaluate: expected as many targets as sources, got {} and {}", target_lengths.size(), lengths.size());
  }
  for (size_t b = 0; b < lengths.size(); ++b) {
    if (target_lengths[b] != lengths[b] + 1) {
      fail("evaluate: row {} has {} targets for a source of {}; expected its symbols and the end token", b,
           target_lengths[b], lengths[b]);
    }
  }
  const Decoded decoded = greedy_decode(*begin(batch.source), T);
  const int64_t L = decoded.tokens.size(1);
  const Tensor target = batch.target_out.contiguous();
  const Tensor looked_at =  // (B, L)
      decoded.attention.defined() ? argmax(decoded.attention).value() : Tensor::full({B, L}, -1, DType::i64);
  const int64_t *want = target.data<int64_t>(), *got = decoded.tokens.data<int64_t>(), *at = looked_at.data<int64_t>();

  int64_t exact = 0, right = 0, tokens = 0, aligned = 0, symbols = 0;
  for (int64_t b = 0; b < B; ++b, want += T, got += L, at += L) {
    const int64_t n = lengths[static_cast<size_t>(b)];  // symbols; the end token follows
    const int64_t written = decoded.lengths[static_cast<size_t>(b)];
    int64_t right_here = 0;
    for (int64_t t = 0; t < std::min(written, n + 1); ++t) right_here += got[t] == want[t];
    for (int64_t t = 0; t < std::min(written, n); ++t) aligned += at[t] == n - 1 - t;
    right += right_here;
    tokens += n + 1;
    symbols += n;
    exact += right_here == n + 1 && written == n + 1;
  }
  auto share = [](int64_t part, int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); };
  return {share(exact, B), share(right, tokens), share(aligned, symbols)};
}

}  // namespace tapedeck
