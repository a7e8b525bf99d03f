// Minimum risk training against the exact expected cost.
#include <tapedeck/models/minimum_risk.h>
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/nn/optim.h>
#include <tapedeck/ops/ops.h>

#include <cmath>
#include <set>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr int64_t symbols = 2, V = 3 + symbols, longest = 3;

// p(token | previous token, first source token): a table of logits, with no mass on pad and bos.
struct Bigram {
  Parameter table;

  explicit Bigram(uint64_t seed) : table(normal({V, V, V}, DType::f64, seed)) {}

  struct Output {
    Var logits;
  };
  Output forward(const Tensor& source, const Tensor& target_in) const {
    const int64_t N = target_in.size(0), T = target_in.size(1);
    Tensor rows = Tensor::empty({N * T}, DType::i64);
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t t = 0; t < T; ++t) {
        rows.set({n * T + t}, static_cast<int64_t>(source.at({n, 0}) * V + target_in.at({n, t})));
      }
    }
    Var logits = reshape(index_select(reshape(table, {V * V, V}), 0, rows), {N, T, V});
    return {masked_fill(logits, tensor({true, true, false, false, false}), -1e4)};
  }

  class Run final : public Decoding {
   public:
    Run(const Bigram& model, const Tensor& source) : model_(model), source_(source) {}
    int64_t rows() const override { return source_.size(0); }
    Step step(const Tensor& tokens) override {
      return {model_.forward(source_, tokens.unsqueeze(1)).logits.value().select(1, 0), {}};
    }
    void select(const Tensor& rows) override { source_ = index_select(source_, 0, rows).value(); }

   private:
    const Bigram& model_;
    Tensor source_;
  };
  std::unique_ptr<Decoding> begin(const Tensor& source) const { return std::make_unique<Run>(*this, source); }

  static void fields(auto& self, auto&& f) { f("table", self.table); }
};

// Every output of at most `longest` tokens: with eos at its end, or cut.
std::vector<Sequence> all_outputs() {
  std::vector<Sequence> result, open = {{}};
  for (int64_t t = 1; t <= longest; ++t) {
    std::vector<Sequence> next;
    for (const Sequence& prefix : open) {
      for (int64_t token : {eos_id, int64_t{3}, int64_t{4}}) {
        Sequence tokens = prefix;
        tokens.push_back(token);
        (token == eos_id || t == longest ? result : next).push_back(tokens);
      }
    }
    open = std::move(next);
  }
  return result;
}

// Share of wrong places.
double errors(const Sequence& output, const Sequence& reference) {
  double wrong = 0;
  const size_t n = std::max(output.size(), reference.size());
  for (size_t i = 0; i < n; ++i) wrong += i >= output.size() || i >= reference.size() || output[i] != reference[i];
  return wrong / static_cast<double>(n);
}

const Tensor sources = tensor({{3}, {4}});
const std::vector<Sequence> references = {{4, 3, eos_id}, {3, eos_id}};

Candidates all_candidates() {
  Candidates result;
  for (const Sequence& reference : references) {
    auto& of_sentence = result.emplace_back();
    for (const Sequence& tokens : all_outputs()) of_sentence.push_back({tokens, errors(tokens, reference)});
  }
  return result;
}

Var exact_risk(const Bigram& model) {
  const Candidates all = all_candidates();
  Var log_p = candidate_log_p(model, sources, all);
  std::vector<double> costs;
  for (const auto& of_sentence : all) {
    for (const Candidate& c : of_sentence) costs.push_back(c.cost);
  }
  return sum(exp(log_p) * Tensor::from(costs, log_p.shape())) / 2;
}

}  // namespace

TEST_SUITE("minimum risk") {
TEST_CASE("minimum risk: over all outputs it is the expected cost and has its gradient") {
  const Bigram model(1);
  Tape tape;
  Var probabilities = exp(candidate_log_p(model, sources, all_candidates()));
  REQUIRE(sum(probabilities).item() == doctest::Approx(2).epsilon(1e-12));  // nothing is left out
  Var exact = exact_risk(model), risk = risk_loss(model, sources, all_candidates(), 1);
  CHECK(risk.item() == doctest::Approx(exact.item()).epsilon(1e-12));
  const Tensor right = tape.backward(exact, Keep::tape)[model.table];
  CHECK(distance(tape.backward(risk)[model.table], right) < 1e-12);
  CHECK_FALSE(all_zero(right));
}

TEST_CASE("minimum risk: few candidates give softmax of alpha log p") {
  const Bigram model(2);
  const Candidates few = {{{{3, eos_id}, 1}, {{eos_id}, 4}, {{4, 4, 4}, 0}}, {{{3, eos_id}, 2}}};
  const Tensor log_p = candidate_log_p(model, sources, few).value();
  CHECK(log_p.shape() == Shape{4});
  auto step = [&](int64_t source, int64_t from, int64_t to) {
    return log_softmax(model.forward(tensor({{source}}), tensor({{from}})).logits).value().at({0, 0, to});
  };
  CHECK(log_p.at({0}) == doctest::Approx(step(3, bos_id, 3) + step(3, 3, eos_id)));
  CHECK(log_p.at({1}) == doctest::Approx(step(3, bos_id, eos_id)));
  CHECK(log_p.at({2}) == doctest::Approx(step(3, bos_id, 4) + 2 * step(3, 4, 4)));
  CHECK(log_p.at({3}) == doctest::Approx(step(4, bos_id, 3) + step(4, 3, eos_id)));
  for (double alpha : {5e-3, .5, 3.}) {
    double q[3], total = 0, cost = 0;
    for (int64_t i = 0; i < 3; ++i) total += q[i] = std::exp(alpha * log_p.at({i}));
    for (size_t i = 0; i < 3; ++i) cost += q[i] / total * few[0][i].cost;
    CHECK(risk_loss(model, sources, few, alpha).item() == doctest::Approx((cost + 2) / 2).epsilon(1e-12));
  }
}

TEST_CASE("minimum risk: candidates are distinct samples and the reference") {
  const Bigram model(3);
  const Batch batch = make_batch(std::vector<Sequence>{{3}, {4}}, std::vector<Sequence>{{4, 3}, {3}});
  const Rng rng(5);
  const CandidateOptions options{.samples = 40, .max_length = longest};
  const Candidates drawn = sample_candidates(model, batch, errors, rng, options);
  REQUIRE(drawn.size() == 2);
  for (size_t b = 0; b < 2; ++b) {
    CHECK(drawn[b][0].tokens == references[b]);
    CHECK(drawn[b][0].cost == 0);
    std::set<Sequence> seen;
    for (const Candidate& c : drawn[b]) {
      CHECK(seen.insert(c.tokens).second);
      CHECK(c.cost == errors(c.tokens, references[b]));
      CHECK(c.tokens.size() <= longest);
    }
    CHECK(seen.size() > 5);
  }
  const Batch first = make_batch(std::vector<Sequence>{{3}}, std::vector<Sequence>{{4, 3}});
  const Candidates alone = sample_candidates(model, first, errors, rng, options);
  REQUIRE(alone[0].size() == drawn[0].size());
  for (size_t i = 0; i < alone[0].size(); ++i) CHECK(alone[0][i].tokens == drawn[0][i].tokens);
  const Candidates without =
      sample_candidates(model, first, errors, rng, {.samples = 1, .max_length = 2, .with_reference = false});
  CHECK(without[0].size() == 1);
}

TEST_CASE("minimum risk: training on samples lowers the exact expected cost") {
  const Bigram model(4);
  const Batch batch = make_batch(std::vector<Sequence>{{3}, {4}}, std::vector<Sequence>{{4, 3}, {3}});
  Adam optimizer(model, {.lr = .05});
  const double before = exact_risk(model).item();
  for (uint64_t step = 1; step <= 60; ++step) {
    const Candidates drawn = sample_candidates(model, batch, errors, Rng(6).split(step),
                                               {.samples = 10, .max_length = longest, .with_reference = false});
    Tape tape;
    optimizer.step(tape.backward(risk_loss(model, batch.source, drawn, 1)));
  }
  CHECK(before > .5);
  CHECK(exact_risk(model).item() < .15);
}

TEST_CASE("minimum risk: a real model drops out where its pass says so") {
  Rng rng(7);
  const Seq2SeqAttention model({.vocabulary = V, .d_model = 4, .dropout = .5, .dtype = DType::f64}, rng);
  const Batch batch = make_batch(std::vector<Sequence>{{3, 4}, {4}}, std::vector<Sequence>{{4, 3}, {3}});
  const Candidates drawn = sample_candidates(model, batch, errors, rng, {.samples = 5, .max_length = 4});
  const double plain = risk_loss(model, batch.source, drawn, 1).item();
  Rng masks(8);
  CHECK(risk_loss(model, batch.source, drawn, 1).item() == plain);
  CHECK(risk_loss(model, batch.source, drawn, 1, TrainingPass{.dropout = &masks}).item() != plain);
}

TEST_CASE("minimum risk: what does not fit is refused") {
  const Bigram model(1);
  auto refused = [&](const Candidates& candidates, double alpha = 1) {
    return error_of([&] { risk_loss(model, sources, candidates, alpha); });
  };
  CHECK(says(refused({{{{3, 2}, 1}}}), {"minimum risk", "2 sentences", "1"}));
  CHECK(says(refused({{{{3, 2}, 1}}, {}}), {"sentence 1", "no candidate"}));
  CHECK(says(refused({{{{3, 2}, 1}}, {{{}, 1}}}), {"sentence 1", "empty"}));
  CHECK(says(refused({{{{3, 0, 2}, 1}}, {{{2}, 1}}}), {"sentence 0", "pad"}));
  CHECK(says(refused({{{{3, 2}, inf}}, {{{2}, 1}}}), {"sentence 0", "costs inf"}));
  CHECK(says(refused({{{{3, 2}, 1}}, {{{2}, 1}}}, 0), {"alpha", "0"}));
  const Batch batch = make_batch(std::vector<Sequence>{{3}}, std::vector<Sequence>{{4}});
  CHECK(says(error_of([&] { sample_candidates(model, batch, errors, Rng(1), {.samples = 0}); }), {"samples", "0"}));
}
}
