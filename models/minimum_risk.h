// Minimum risk training: a model is trained on what its own outputs cost, whatever the cost is (Shen et al. 2016,
// arXiv:1512.02433).
//
//   risk = mean over sentences of sum_i q_i cost_i,   q = softmax(alpha log p) over a sentence's distinct candidates
//
//   const auto candidates = sample_candidates(model, batch, cost, rng.split(step), {.samples = 20});
//   Var loss = risk_loss(model, batch.source, candidates, alpha);
//
// A model is anything with forward(source, target_in), whose result has `logits` (N, T, V), and begin(source).
// B sentences, N candidates of all of them, K of one sentence, T target time, V vocabulary.
#pragma once

#include <tapedeck/models/search.h>
#include <tapedeck/ops/index.h>

namespace tapedeck {

// An output of the model, as a Hypothesis has it (no bos; eos at the end, unless it was cut), and what it costs.
struct Candidate {
  Sequence tokens;  // generated, eos counted
  double cost = 0;  // the lower, the better
};
using Candidates = std::vector<std::vector<Candidate>>;  // by sentence

// What `output` costs where `reference` would be right; both without bos, with eos. For a reward, its negative.
using Cost = std::function<double(const Sequence& output, const Sequence& reference)>;

// Expected cost of candidates with the log probabilities log_p (N,), in the order of the sentences:
//   1/B sum_b sum_i q_bi cost_bi,   q_b = softmax(alpha log_p_b)
// Small alphas make q flat. Throws on a sentence without candidates, on costs that are not finite, and unless log_p is
// (N,) and alpha > 0.
Var expected_cost(Operand log_p, const Candidates& candidates, double alpha);

// How candidates are drawn.
struct CandidateOptions {
  int64_t samples = 20;        // draws a sentence; equal ones count once
  int64_t max_length = 100;    // tokens, eos counted; longer outputs are cut
  bool with_reference = true;  // the right output is a candidate too
};

namespace detail {

// Candidates as padded batches, and the row of the source that each belongs to.
struct CandidateBatch {
  Tensor rows;                   // i64 (N,)
  Tensor target_in, target_out;  // i64 (N, T)
};
CandidateBatch batch_of(const Candidates& candidates, int64_t sentences);

// log p of each row of target_out (N, T), pads left out: (N,).
Var log_p_of_targets(Operand logits, const Tensor& target_out);

// Every row of x, `times` times one after the other.
Tensor repeat_rows(const Tensor& x, int64_t times);

// Distinct outputs, and the references, with their costs; outputs[b * samples ...] belong to sentence b.
Candidates distinct(std::span<const Hypothesis> outputs, const Batch& batch, const Cost& cost,
                    const CandidateOptions& options);

void check(const CandidateOptions& options);

}  // namespace detail

// log p of every candidate, (N,), by teacher forcing: the sum over its tokens, eos counted. `pass`: what else forward()
// is to be given, such as a TrainingPass with dropout. Throws on a candidate that is empty or contains a pad, and where
// the numbers of sentences differ.
template <class Model>
Var candidate_log_p(const Model& model, const Tensor& source, const Candidates& candidates, const auto&... pass) {
  const detail::CandidateBatch all = detail::batch_of(candidates, source.size(0));
  Tensor sources = index_select(source, 0, all.rows).value();
  return detail::log_p_of_targets(model.forward(sources, all.target_in, pass...).logits, all.target_out);
}

// The risk, to be differentiated: candidates and costs are constants.
template <class Model>
Var risk_loss(const Model& model, const Tensor& source, const Candidates& candidates, double alpha = 5e-3,
              const auto&... pass) {
  return expected_cost(candidate_log_p(model, source, candidates, pass...), candidates, alpha);
}

// Draws outputs for every sentence of the batch, all at once, and asks for their costs. No pad is drawn. What a
// sentence draws depends on `rng`, its place in the batch and the options, and not on the other sentences.
template <class Model>
Candidates sample_candidates(const Model& model, const Batch& batch, const Cost& cost, const Rng& rng,
                             const CandidateOptions& options = {}) {
  detail::check(options);
  auto no_pads = [](int64_t, const Sequence&, std::span<double> logits) {
    logits[pad_id] = -std::numeric_limits<double>::infinity();
  };
  auto decoding = model.begin(detail::repeat_rows(batch.source, options.samples));
  return detail::distinct(sample_search(*decoding, rng, {.max_length = options.max_length, .constraint = no_pads}),
                          batch, cost, options);
}

}  // namespace tapedeck
