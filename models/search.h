// Decoding: greedy, beam search, sampling, and exhaustive search for toys, over any model that can take a step.
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/core/tensor.h>
#include <tapedeck/models/text.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>

namespace tapedeck {

// One batch on its way through a decoder. Rows are hypotheses; at the start there is one for each sentence. Nothing
// here records or drops out.
class Decoding {
 public:
  // What one step gives.
  struct Step {
    Tensor logits;     // (N, V), floating: of the token after `tokens`
    Tensor weights;    // attention (N, S); undefined for models without
    Tensor mask = {};  // boolean (N, S): what may be attended to, and so has to be covered; undefined: everything
  };

  virtual ~Decoding() = default;
  virtual int64_t rows() const = 0;             // N
  virtual Step step(const Tensor& tokens) = 0;  // tokens: i64 (N,), the last of each row
  virtual void select(const Tensor& rows) = 0;  // i64 (M,): row i goes on as a copy of the old row rows[i]
};

// How a hypothesis of L generated tokens (eos counted) and log probability log p is ranked: log p / lp(L) + coverage.
enum class LengthPenalty {
  gnmt,   // lp = ((5 + L) / 6)^alpha (Wu et al. 2016, arXiv:1609.08144)
  power,  // lp = L^alpha
};

// Settings of all searches; each reads what concerns it.
struct SearchOptions {
  int64_t max_length = 100;  // generated tokens, eos counted
  int64_t min_length = 0;    // eos is not chosen before
  Sequence prefix = {};      // every hypothesis begins with these tokens

  int64_t beam = 5;                                    // live hypotheses a sentence
  int64_t n_best = 1;                                  // results a sentence
  LengthPenalty length_penalty = LengthPenalty::gnmt;  // the form of lp
  double alpha = 0;                                    // 0: no length penalty
  double coverage = 0;  // beta of GNMT's coverage penalty, beta sum_s log min(1, sum_t weights[t][s]); needs attention

  double repetition_penalty = 1;  // logits of tokens already generated are divided (positive) or multiplied by it
  int64_t no_repeat_ngram = 0;    // no n-gram of this length occurs twice; 0: off

  // Sampling:
  double temperature = 1;  // divides the logits, > 0
  int64_t top_k = 0;       // only the k likeliest tokens; 0: all
  double top_p = 1;  // only the likeliest tokens that together have at least this probability (Holtzman et al. 2019)

  // Masks the logits of one row, of `length` V, before anything is chosen: sets what may not come next to -inf.
  std::function<void(int64_t sentence, const Sequence& generated, std::span<double> logits)> constraint = {};
};

// One result.
struct Hypothesis {
  Sequence tokens;                           // generated, without bos, with eos if finished
  double score = 0;                          // what it is ranked by
  double log_p = 0;                          // the model's own log probability of the tokens, before all rules
  bool finished = false;                     // ends in eos; else cut at max_length
  std::vector<std::vector<double>> weights;  // attention, one row a token; empty for models without
};

// One expansion of a beam search, for study.
struct SearchEvent {
  enum class Fate { live, finished, dropped };    // what became of it
  int64_t sentence, step;                         // numbers from 0
  Sequence tokens;                                // with the new one
  double log_p, length_penalty, coverage, score;  // score = log_p / length_penalty + coverage
  Fate fate;                                      // kept, moved to the finished ones, or given up
};

// The likeliest token at every step; ties take the lowest id. One hypothesis a sentence.
std::vector<Hypothesis> greedy_search(Decoding& decoding, const SearchOptions& options = {});

// What greedy decoding gives for every row, as tensors.
struct Decoded {
  Tensor tokens;                 // i64 (B, L): up to and with eos, then pads; L is the longest row's length
  std::vector<int64_t> lengths;  // tokens of each row, eos counted
  std::vector<bool> finished;    // false where the limit came before eos
  Tensor attention;              // f64 (B, L, S); rows after eos are 0; undefined for models without
};

// greedy_search without rules: feeds back the argmax until every row has given eos, at most max_length steps.
Decoded greedy_decode(Decoding& decoding, int64_t max_length);

// Keeps the `beam` best unfinished hypotheses of each sentence beside a list of finished ones, and stops when no live
// one can still win. Results are sorted, best first; ties by ids. Where fewer than n_best finished, the best unfinished
// ones follow, flagged. `trace` receives every expansion that was looked at. Throws on NaN logits, and on options
// outside their range, naming the option.
std::vector<std::vector<Hypothesis>> beam_search(Decoding& decoding, const SearchOptions& options = {},
                                                 std::vector<SearchEvent>* trace = nullptr);

// Draws every token. Row b draws from rng.split(b), so that a sentence alone draws the same as in a batch.
std::vector<Hypothesis> sample_search(Decoding& decoding, const Rng& rng, const SearchOptions& options = {});

// Scores every sequence of at most max_length tokens: the oracle of beam search. For one sentence and toys only: throws
// where more than a million prefixes would have to be looked at.
std::vector<Hypothesis> exhaustive_search(Decoding& decoding, const SearchOptions& options = {});

}  // namespace tapedeck
