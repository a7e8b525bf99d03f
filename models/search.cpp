#include <tapedeck/core/tape.h>
#include <tapedeck/models/search.h>
#include <tapedeck/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tapedeck {
namespace {

constexpr double minus_inf = -std::numeric_limits<double>::infinity();

void check(const SearchOptions& o) {
  if (o.max_length < 1) fail("search: expected max_length >= 1, got {}", o.max_length);
  if (o.min_length > o.max_length) fail("search: min_length {} is above max_length {}", o.min_length, o.max_length);
  if (static_cast<int64_t>(o.prefix.size()) > o.max_length) {
    fail("search: a prefix of {} tokens is longer than max_length {}", o.prefix.size(), o.max_length);
  }
  if (o.beam < 1 || o.n_best < 1) fail("search: expected beam >= 1 and n_best >= 1, got {} and {}", o.beam, o.n_best);
  if (!(o.alpha >= 0) || !(o.coverage >= 0)) {
    fail("search: expected alpha >= 0 and coverage >= 0, got {} and {}", o.alpha, o.coverage);
  }
  if (!(o.repetition_penalty > 0)) fail("search: expected repetition_penalty > 0, got {}", o.repetition_penalty);
  if (o.no_repeat_ngram < 0) fail("search: expected no_repeat_ngram >= 0, got {}", o.no_repeat_ngram);
  if (!(o.temperature > 0) || o.top_k < 0 || !(o.top_p > 0 && o.top_p <= 1)) {
    fail("search: expected temperature > 0, top_k >= 0 and 0 < top_p <= 1, got {}, {} and {}", o.temperature, o.top_k,
         o.top_p);
  }
}

double length_penalty(const SearchOptions& o, int64_t length) {
  const double L = static_cast<double>(length);
  return std::pow(o.length_penalty == LengthPenalty::gnmt ? (5 + L) / 6 : L, o.alpha);
}

// A hypothesis under way: `row` is its place in the Decoding.
struct Partial {
  Hypothesis h;
  int64_t sentence, row;
  std::vector<double> covered;  // sum of weights by source position

  double coverage(const SearchOptions& o) const {
    if (o.coverage == 0) return 0;
    double total = 0;
    for (double c : covered) total += std::log(std::min(1.0, c));
    return o.coverage * total;
  }
};

// What one step offers a row: the model's log probabilities, and the same after all rules.
struct Offer {
  std::vector<double> log_p, ruled;
  std::vector<double> weights;
  std::vector<bool> hidden;  // positions that need no attention; empty: none
};

std::vector<double> log_probabilities(std::vector<double> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  if (top == minus_inf) return logits;  // nothing may come next
  double total = 0;
  for (double v : logits) total += std::exp(v - top);
  const double log_total = std::log(total);
  for (double& v : logits) v = (v - top) - log_total;
  return logits;
}

bool repeats_ngram(const Sequence& tokens, int64_t next, int64_t n) {
  const int64_t size = static_cast<int64_t>(tokens.size());
  if (n < 1 || size < n) return false;
  for (int64_t start = 0; start + n <= size; ++start) {
    bool same = tokens[static_cast<size_t>(start + n - 1)] == next;
    for (int64_t i = 0; same && i + 1 < n; ++i) {
      same = tokens[static_cast<size_t>(start + i)] == tokens[static_cast<size_t>(size - n + 1 + i)];
    }
    if (same) return true;
  }
  return false;
}

// Log probabilities after prefix, minimum length, constraint and repetition rules; -inf: may not come next.
std::vector<double> rule(const SearchOptions& o, const Partial& p, std::vector<double> logits) {
  const size_t V = logits.size(), done = p.h.tokens.size();
  if (done < o.prefix.size()) {
    const int64_t forced = o.prefix[done];
    if (forced < 0 || forced >= static_cast<int64_t>(V))
      fail("search: the prefix contains {}, no token of {}", forced, V);
    std::vector<double> only(V, minus_inf);
    only[static_cast<size_t>(forced)] = 0;
    return only;
  }
  if (o.repetition_penalty != 1) {
    std::vector<bool> seen(V, false);
    for (int64_t token : p.h.tokens) seen[static_cast<size_t>(token)] = true;
    for (size_t v = 0; v < V; ++v) {
      if (seen[v]) logits[v] = logits[v] > 0 ? logits[v] / o.repetition_penalty : logits[v] * o.repetition_penalty;
    }
  }
  if (o.no_repeat_ngram > 0) {
    for (size_t v = 0; v < V; ++v) {
      if (repeats_ngram(p.h.tokens, static_cast<int64_t>(v), o.no_repeat_ngram)) logits[v] = minus_inf;
    }
  }
  if (static_cast<int64_t>(done) + 1 < o.min_length) logits[eos_id] = minus_inf;
  if (o.constraint) o.constraint(p.sentence, p.h.tokens, logits);
  return log_probabilities(std::move(logits));
}

// The next step of all live hypotheses, in their order.
std::vector<Offer> offers(Decoding& decoding, const SearchOptions& o, const std::vector<Partial>& live) {
  Tensor tokens = Tensor::empty({static_cast<int64_t>(live.size())}, DType::i64);
  int64_t* t = tokens.mutable_data<int64_t>();
  for (const Partial& p : live) *t++ = p.h.tokens.empty() ? bos_id : p.h.tokens.back();
  NoGrad pause;
  const Decoding::Step step = decoding.step(tokens);
  const Tensor logits = step.logits.to(DType::f64).contiguous();
  if (logits.rank() != 2 || logits.size(0) != tokens.numel() || logits.size(1) <= eos_id) {
    fail("search: expected logits ({}, V) with V > {}, got {}", tokens.numel(), eos_id, logits.shape());
  }
  const Tensor weights = step.weights.defined() ? step.weights.to(DType::f64).contiguous() : Tensor();
  const int64_t V = logits.size(1), S = weights.defined() ? weights.size(1) : 0;
  if (o.coverage > 0 && !weights.defined()) fail("search: the coverage penalty needs a model with attention");
  const Tensor mask = o.coverage > 0 ? step.mask : Tensor();
  if (mask.defined() && (mask.dtype() != DType::boolean || mask.shape() != weights.shape())) {
    fail("search: expected a boolean mask {}, got {} {}", weights.shape(), mask.dtype(), mask.shape());
  }
  std::vector<Offer> result;
  for (size_t i = 0; i < live.size(); ++i) {
    const double* row = logits.data<double>() + static_cast<int64_t>(i) * V;
    std::vector<double> x(row, row + V);
    for (int64_t v = 0; v < V; ++v) {
      if (std::isnan(row[v])) fail("search: the logit of token {} is NaN at step {}", v, live[i].h.tokens.size() + 1);
    }
    Offer offer{log_probabilities(x), rule(o, live[i], x), {}, {}};
    if (weights.defined()) {
      const double* w = weights.data<double>() + static_cast<int64_t>(i) * S;
      offer.weights.assign(w, w + S);
      for (int64_t s = 0; mask.defined() && s < S; ++s)
        offer.hidden.push_back(mask.at({static_cast<int64_t>(i), s}) == 0);
    }
    result.push_back(std::move(offer));
  }
  return result;
}

Partial extended(Partial next, const Offer& offer, int64_t token) {
  next.h.tokens.push_back(token);
  next.h.log_p += offer.log_p[static_cast<size_t>(token)];
  next.h.finished = token == eos_id;
  if (!offer.weights.empty()) {
    next.h.weights.push_back(offer.weights);
    next.covered.resize(offer.weights.size());
    for (size_t s = 0; s < offer.weights.size(); ++s) {
      next.covered[s] = !offer.hidden.empty() && offer.hidden[s] ? 1 : next.covered[s] + offer.weights[s];
    }
  }
  return next;
}

void set_score(const SearchOptions& o, Partial& p, double ruled_log_p) {
  p.h.score = ruled_log_p / length_penalty(o, static_cast<int64_t>(p.h.tokens.size())) + p.coverage(o);
}

// Best first; ties by ids.
bool better(const Hypothesis& a, const Hypothesis& b) {
  return a.score != b.score ? a.score > b.score : a.tokens < b.tokens;
}

std::vector<Partial> starts(const Decoding& decoding) {
  std::vector<Partial> live;
  for (int64_t b = 0; b < decoding.rows(); ++b) live.push_back({{}, b, b, {}});
  return live;
}

void keep_rows(Decoding& decoding, std::vector<Partial>& live) {
  Tensor rows = Tensor::empty({static_cast<int64_t>(live.size())}, DType::i64);
  int64_t* p = rows.mutable_data<int64_t>();
  for (size_t i = 0; i < live.size(); ++i) p[i] = std::exchange(live[i].row, static_cast<int64_t>(i));
  decoding.select(rows);
}

int64_t first_largest(const std::vector<double>& x) {
  return std::max_element(x.begin(), x.end()) - x.begin();  // the first one of equals
}

// One hypothesis a sentence, each step's token chosen by choose(hypothesis, ruled log probabilities).
template <class Choose>
std::vector<Hypothesis> single_search(Decoding& decoding, const SearchOptions& o, const Choose& choose) {
  check(o);
  std::vector<Partial> live = starts(decoding);
  std::vector<Hypothesis> result(live.size());
  while (!live.empty()) {
    const std::vector<Offer> offered = offers(decoding, o, live);
    std::vector<Partial> going_on;
    for (size_t i = 0; i < live.size(); ++i) {
      const std::vector<double>& ruled = offered[i].ruled;
      if (*std::max_element(ruled.begin(), ruled.end()) == minus_inf) {
        fail("search: no token is allowed after {} tokens of sentence {}", live[i].h.tokens.size(), live[i].sentence);
      }
      const int64_t token = choose(live[i], ruled);
      Partial next = extended(std::move(live[i]), offered[i], token);
      set_score(o, next, next.h.log_p);
      const bool ends = next.h.finished || static_cast<int64_t>(next.h.tokens.size()) == o.max_length;
      if (ends)
        result[static_cast<size_t>(next.sentence)] = std::move(next.h);
      else
        going_on.push_back(std::move(next));
    }
    const bool changed = going_on.size() != live.size();
    live = std::move(going_on);
    if (changed && !live.empty()) keep_rows(decoding, live);
  }
  return result;
}

}  // namespace

std::vector<Hypothesis> greedy_search(Decoding& decoding, const SearchOptions& options) {
  return single_search(decoding, options,
                       [](const Partial&, const std::vector<double>& log_p) { return first_largest(log_p); });
}

Decoded greedy_decode(Decoding& decoding, int64_t max_length) {
  if (max_length < 1) fail("greedy decode: expected max length >= 1, got {}", max_length);
  NoGrad pause;
  const int64_t B = decoding.rows();
  if (B == 0) {  // a step tells the width of its attention
    const Tensor weights = decoding.step(Tensor::empty({0}, DType::i64)).weights;
    return {Tensor::empty({0, 0}, DType::i64),
            {},
            {},
            weights.defined() ? Tensor::empty({0, 0, weights.size(1)}, DType::f64) : Tensor()};
  }
  const std::vector<Hypothesis> rows = greedy_search(decoding, {.max_length = max_length});
  Decoded result;
  size_t L = 0;
  for (const Hypothesis& h : rows) L = std::max(L, h.tokens.size());
  result.tokens = Tensor::full({B, static_cast<int64_t>(L)}, pad_id, DType::i64);
  int64_t* tokens = result.tokens.mutable_data<int64_t>();
  double* weights = nullptr;
  const size_t S = rows[0].weights.empty() ? 0 : rows[0].weights[0].size();
  if (S > 0) {
    result.attention = Tensor::zeros({B, static_cast<int64_t>(L), static_cast<int64_t>(S)}, DType::f64);
    weights = result.attention.mutable_data<double>();
  }
  for (const Hypothesis& h : rows) {
    std::copy(h.tokens.begin(), h.tokens.end(), tokens);
    tokens += L;
    result.lengths.push_back(static_cast<int64_t>(h.tokens.size()));
    result.finished.push_back(h.finished);
    if (!weights) continue;
    for (size_t t = 0; t < h.weights.size(); ++t) std::copy(h.weights[t].begin(), h.weights[t].end(), weights + t * S);
    weights += L * S;
  }
  return result;
}

std::vector<Hypothesis> sample_search(Decoding& decoding, const Rng& rng, const SearchOptions& options) {
  std::vector<Rng> coins;
  for (int64_t b = 0; b < decoding.rows(); ++b) coins.push_back(rng.split(static_cast<uint64_t>(b)));
  return single_search(decoding, options, [&](const Partial& p, const std::vector<double>& log_p) {
    std::vector<double> x = log_p;
    for (double& v : x) v /= options.temperature;
    x = log_probabilities(std::move(x));
    std::vector<int64_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)]; });
    size_t kept = order.size();
    if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
    double mass = 0;
    for (size_t i = 0; i < kept; ++i) {
      mass += std::exp(x[static_cast<size_t>(order[i])]);
      if (mass >= options.top_p) kept = i + 1;
    }
    double at = coins[static_cast<size_t>(p.sentence)].uniform() * mass;
    for (size_t i = 0; i + 1 < kept; ++i) {
      at -= std::exp(x[static_cast<size_t>(order[i])]);
      if (at < 0) return order[i];
    }
    return order[kept - 1];
  });
}

std::vector<std::vector<Hypothesis>> beam_search(Decoding& decoding, const SearchOptions& o,
                                                 std::vector<SearchEvent>* trace) {
  check(o);
  std::vector<Partial> live = starts(decoding);
  // The log probability after rules is what hypotheses compete by; it equals log_p where no rule took part.
  std::vector<double> ruled_log_p(live.size(), 0);
  std::vector<std::vector<Hypothesis>> finished(live.size()), cut(live.size());
  const double longest = length_penalty(o, o.max_length);

  for (int64_t step = 1; !live.empty(); ++step) {
    const std::vector<Offer> offered = offers(decoding, o, live);
    struct Candidate {
      size_t from;
      int64_t token;
      double ruled, rank;
    };
    std::vector<std::vector<Candidate>> by_sentence(finished.size());
    for (size_t i = 0; i < live.size(); ++i) {
      const double coverage = extended(live[i], offered[i], eos_id).coverage(o);  // the same for every token
      for (size_t v = 0; v < offered[i].ruled.size(); ++v) {
        const double ruled = ruled_log_p[i] + offered[i].ruled[v];
        if (ruled == minus_inf) continue;
        by_sentence[static_cast<size_t>(live[i].sentence)].push_back(
            {i, static_cast<int64_t>(v), ruled, ruled / length_penalty(o, step) + coverage});
      }
    }
    std::vector<Partial> going_on;
    std::vector<double> going_on_log_p;
    for (size_t b = 0; b < by_sentence.size(); ++b) {
      std::vector<Candidate>& candidates = by_sentence[b];
      std::stable_sort(candidates.begin(), candidates.end(), [&](const Candidate& x, const Candidate& y) {
        if (x.rank != y.rank) return x.rank > y.rank;
        const Sequence &s = live[x.from].h.tokens, &t = live[y.from].h.tokens;
        return s != t ? s < t : x.token < y.token;
      });
      std::vector<Hypothesis>& done = finished[b];
      int64_t kept = 0;
      for (const Candidate& c : candidates) {
        const bool ends = c.token == eos_id;
        const bool stays = !ends && kept < o.beam;
        if (!ends && !stays && !trace) continue;
        Partial next = extended(live[c.from], offered[c.from], c.token);
        set_score(o, next, c.ruled);
        if (trace) {
          trace->push_back({static_cast<int64_t>(b), step, next.h.tokens, next.h.log_p, length_penalty(o, step),
                            next.coverage(o), next.h.score,
                            ends    ? SearchEvent::Fate::finished
                            : stays ? SearchEvent::Fate::live
                                    : SearchEvent::Fate::dropped});
        }
        if (ends) {
          done.insert(std::upper_bound(done.begin(), done.end(), next.h, better), next.h);
          if (static_cast<int64_t>(done.size()) > o.n_best) done.pop_back();
        } else if (stays) {
          ++kept;
          if (step == o.max_length) {
            cut[b].push_back(std::move(next.h));
          } else {
            going_on.push_back(std::move(next));
            going_on_log_p.push_back(c.ruled);
          }
        }
      }
    }
    // A sentence stops when its worst result beats the best that a live hypothesis can still become: no further loss of
    // log probability, the longest length, full coverage.
    std::vector<Partial> still;
    std::vector<double> still_log_p;
    for (size_t i = 0; i < going_on.size(); ++i) {
      const std::vector<Hypothesis>& done = finished[static_cast<size_t>(going_on[i].sentence)];
      const double bound = going_on_log_p[i] / longest;
      if (static_cast<int64_t>(done.size()) == o.n_best && done.back().score > bound) continue;
      still.push_back(std::move(going_on[i]));
      still_log_p.push_back(going_on_log_p[i]);
    }
    live = std::move(still);
    ruled_log_p = std::move(still_log_p);
    if (!live.empty()) keep_rows(decoding, live);
  }
  for (size_t b = 0; b < finished.size(); ++b) {
    std::sort(cut[b].begin(), cut[b].end(), better);
    for (Hypothesis& h : cut[b]) {
      if (static_cast<int64_t>(finished[b].size()) < o.n_best) finished[b].push_back(std::move(h));
    }
    if (finished[b].empty()) fail("search: the rules allow no sequence for sentence {}", b);
  }
  return finished;
}

std::vector<Hypothesis> exhaustive_search(Decoding& decoding, const SearchOptions& options) {
  if (decoding.rows() != 1) fail("exhaustive search: expected one sentence, got {}", decoding.rows());
  check(options);
  std::vector<Partial> live = starts(decoding);
  std::vector<double> ruled_log_p{0};
  std::vector<Hypothesis> all;
  for (int64_t step = 1; !live.empty(); ++step) {
    const std::vector<Offer> offered = offers(decoding, options, live);
    std::vector<Partial> going_on;
    std::vector<double> going_on_log_p;
    for (size_t i = 0; i < live.size(); ++i) {
      for (size_t v = 0; v < offered[i].ruled.size(); ++v) {
        if (offered[i].ruled[v] == minus_inf) continue;
        Partial next = extended(live[i], offered[i], static_cast<int64_t>(v));
        const double ruled = ruled_log_p[i] + offered[i].ruled[v];
        set_score(options, next, ruled);
        if (next.h.finished) {
          all.push_back(std::move(next.h));
        } else if (step < options.max_length) {
          going_on.push_back(std::move(next));
          going_on_log_p.push_back(ruled);
        }
        if (all.size() + going_on.size() > 1000000)
          fail("exhaustive search: more than a million prefixes; this is for toys");
      }
    }
    live = std::move(going_on);
    ruled_log_p = std::move(going_on_log_p);
    if (!live.empty()) keep_rows(decoding, live);
  }
  std::sort(all.begin(), all.end(), better);
  if (static_cast<int64_t>(all.size()) > options.n_best) all.resize(static_cast<size_t>(options.n_best));
  return all;
}

}  // namespace tapedeck
