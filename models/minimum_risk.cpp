#include <tapedeck/models/minimum_risk.h>
#include <tapedeck/ops/ops.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace tapedeck {

namespace {

int64_t count(const Candidates& candidates) {
  int64_t n = 0;
  for (const auto& of_sentence : candidates) n += static_cast<int64_t>(of_sentence.size());
  return n;
}

}  // namespace

Var expected_cost(Operand log_p, const Candidates& candidates, double alpha) {
  UserSite here(log_p);
  if (!(alpha > 0)) fail("minimum risk: expected alpha > 0, got {}", alpha);
  const int64_t B = static_cast<int64_t>(candidates.size()), N = count(candidates);
  if (log_p.shape() != Shape{N}) {
    fail("minimum risk: expected log probabilities ({},) of as many candidates, got {}", N, log_p.shape());
  }
  if (B == 0) fail("minimum risk: expected at least one sentence, got none");
  size_t K = 0;
  for (const auto& of_sentence : candidates) K = std::max(K, of_sentence.size());
  const Shape table{B, static_cast<int64_t>(K)};
  Tensor place = Tensor::zeros(table, DType::i64), there = Tensor::full(table, false, DType::boolean),
         costs = Tensor::zeros(table, log_p.dtype());
  int64_t n = 0;
  for (int64_t b = 0; b < B; ++b) {
    const auto& of_sentence = candidates[static_cast<size_t>(b)];
    if (of_sentence.empty()) fail("minimum risk: sentence {} has no candidate", b);
    int64_t k = 0;
    for (const Candidate& c : of_sentence) {
      if (!std::isfinite(c.cost)) fail("minimum risk: candidate {} of sentence {} costs {}", k, b, c.cost);
      place.set({b, k}, n++), there.set({b, k}, true), costs.set({b, k}, c.cost);
      ++k;
    }
  }
  Var by_sentence = reshape(index_select(log_p, 0, place.reshape({-1})), table);
  Var q = masked_softmax(by_sentence * alpha, there);
  return sum(q * costs) * (1 / static_cast<double>(B));
}

namespace detail {

CandidateBatch batch_of(const Candidates& candidates, int64_t sentences) {
  if (static_cast<int64_t>(candidates.size()) != sentences) {
    fail("minimum risk: expected candidates for {} sentences, got {}", sentences, candidates.size());
  }
  int64_t T = 1;
  for (const auto& of_sentence : candidates) {
    for (const Candidate& c : of_sentence) T = std::max(T, static_cast<int64_t>(c.tokens.size()));
  }
  const int64_t N = count(candidates);
  CandidateBatch result{Tensor::empty({N}, DType::i64), Tensor::full({N, T}, pad_id, DType::i64),
                        Tensor::full({N, T}, pad_id, DType::i64)};
  int64_t n = 0;
  for (size_t b = 0; b < candidates.size(); ++b) {
    for (const Candidate& c : candidates[b]) {
      if (c.tokens.empty() || std::find(c.tokens.begin(), c.tokens.end(), pad_id) != c.tokens.end()) {
        fail("minimum risk: a candidate of sentence {} {}", b, c.tokens.empty() ? "is empty" : "contains a pad");
      }
      result.rows.set({n}, static_cast<int64_t>(b));
      int64_t previous = bos_id;
      for (size_t t = 0; t < c.tokens.size(); ++t) {
        const int64_t step = static_cast<int64_t>(t);
        result.target_in.set({n, step}, std::exchange(previous, c.tokens[t]));
        result.target_out.set({n, step}, c.tokens[t]);
      }
      ++n;
    }
  }
  return result;
}

Var log_p_of_targets(Operand logits, const Tensor& target_out) {
  return -sum(cross_entropy(logits, target_out, {.ignore_index = pad_id, .reduction = Reduction::none}), 1);
}

Tensor repeat_rows(const Tensor& x, int64_t times) {
  Tensor rows = Tensor::empty({x.size(0) * times}, DType::i64);
  for (int64_t i = 0; i < rows.numel(); ++i) rows.set({i}, i / times);
  return index_select(x, 0, rows).value();
}

Candidates distinct(std::span<const Hypothesis> outputs, const Batch& batch, const Cost& cost,
                    const CandidateOptions& options) {
  Candidates result;
  const size_t samples = static_cast<size_t>(options.samples);
  for (int64_t b = 0; b < batch.source.size(0); ++b) {
    Sequence reference = batch.target_out.select(0, b).to_vector<int64_t>();
    reference.erase(std::find(reference.begin(), reference.end(), pad_id), reference.end());
    std::set<Sequence> seen;
    std::vector<Candidate>& of_sentence = result.emplace_back();
    auto add = [&](const Sequence& tokens) {
      if (seen.insert(tokens).second) of_sentence.push_back({tokens, cost(tokens, reference)});
    };
    if (options.with_reference) add(reference);
    for (size_t i = 0; i < samples; ++i) add(outputs[static_cast<size_t>(b) * samples + i].tokens);
  }
  return result;
}

void check(const CandidateOptions& options) {
  if (options.samples < 1 || options.max_length < 1) {
    fail("minimum risk: expected samples >= 1 and max_length >= 1, got {} and {}", options.samples, options.max_length);
  }
}

}  // namespace detail

}  // namespace tapedeck
