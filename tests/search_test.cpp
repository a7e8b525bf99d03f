// Beam search and its relatives on toy models, whose probabilities are given by the prefix.
#include <tapedeck/models/search.h>
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/ops/ops.h>

#include <cmath>
#include <map>
#include <string>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr int64_t A = 3, B = 4;

// Probabilities of A, B and the end after a prefix; prefixes that are not listed end.
using Table = std::map<std::string, std::array<double, 3>>;

std::string spelled(const Sequence& tokens) {
  std::string text;
  for (int64_t id : tokens) text += id == eos_id ? "E" : id == A ? "A" : id == B ? "B" : "?";
  return text;
}

// Several sentences with a table each. It follows prefixes by the tokens it is given, as a real decoder does.
class Toy final : public Decoding {
 public:
  explicit Toy(std::vector<Table> tables) {
    for (Table& t : tables) states_.push_back({std::move(t), ""});
  }
  explicit Toy(const Table& table) : Toy(std::vector<Table>{table}) {}

  int64_t rows() const override { return static_cast<int64_t>(states_.size()); }

  Step step(const Tensor& tokens) override {
    Tensor logits = Tensor::full({rows(), 5}, -inf, DType::f64);
    for (int64_t i = 0; i < rows(); ++i) {
      State& s = states_[static_cast<size_t>(i)];
      const int64_t token = static_cast<int64_t>(tokens.at({i}));
      if (token != bos_id) s.prefix += spelled({token});
      auto it = s.table.find(s.prefix);
      const std::array<double, 3> p = it == s.table.end() ? std::array<double, 3>{0, 0, 1} : it->second;
      logits.set({i, A}, std::log(p[0]));
      logits.set({i, B}, std::log(p[1]));
      logits.set({i, eos_id}, std::log(p[2]));
    }
    return {logits, {}};
  }

  void select(const Tensor& rows) override {
    std::vector<State> next;
    for (int64_t i = 0; i < rows.numel(); ++i) next.push_back(states_[static_cast<size_t>(rows.at({i}))]);
    states_ = std::move(next);
  }

 private:
  struct State {
    Table table;
    std::string prefix;
  };
  std::vector<State> states_;
};

const Table early_choice = {{"", {.5, .4, .1}}, {"A", {.4, .3, .3}}, {"B", {.05, .05, .9}}};
const Table long_or_short = {{"", {.64, 0, .36}}, {"A", {.5, 0, .5}}, {"AA", {.1, 0, .9}}};
const Table greedy_trap = {{"", {.55, .45, 0}}, {"A", {.4, 0, .6}}, {"B", {0, .9, .1}}, {"BB", {0, .05, .95}}};
const Table early_end = {{"", {.3, .25, .45}}, {"A", {.34, .33, .33}}};
const std::vector<Table> tables = {early_choice, long_or_short, greedy_trap, early_end};

// The third token is followed by the end, so four generated tokens are enough.
SearchOptions with(int64_t beam, double alpha, int64_t n_best = 1, LengthPenalty kind = LengthPenalty::gnmt) {
  return {.max_length = 4, .beam = beam, .n_best = n_best, .length_penalty = kind, .alpha = alpha};
}

std::vector<Hypothesis> beam(const Table& table, const SearchOptions& options) {
  Toy toy(table);
  return beam_search(toy, options)[0];
}

std::string best(const Table& table, const SearchOptions& options) { return spelled(beam(table, options)[0].tokens); }

// One step with attention over two positions, which may be masked.
struct Attending final : Decoding {
  Tensor mask;
  explicit Attending(const Tensor& m) : mask(m) {}
  int64_t rows() const override { return 1; }
  Step step(const Tensor& tokens) override {
    return {Tensor::zeros({tokens.numel(), 5}, DType::f64), f64({{.25, 0}}).expand({tokens.numel(), 2}), mask};
  }
  void select(const Tensor&) override {}
};

// A model with random weights, large enough to have preferences.
Seq2SeqAttention random_model(uint64_t seed, DType dtype = DType::f64) {
  Rng rng(seed);
  Seq2SeqAttention model({.vocabulary = 7, .d_model = 6, .dtype = dtype}, rng);
  for_each_parameter(model, [](std::string_view, Parameter& p) { p.mutable_value().mul_(3); });
  return model;
}

// 1 to `longest` symbols.
Sequence random_source(Rng& rng, int64_t longest) {
  Sequence source;
  for (int64_t n = 1 + rng.below(longest); n > 0; --n) source.push_back(3 + rng.below(4));
  return source;
}

// The model's own log probability of a sequence, by teacher forcing.
double rescored(const Seq2SeqAttention& model, const Tensor& source, const Sequence& tokens) {
  Sequence in{bos_id};
  in.insert(in.end(), tokens.begin(), tokens.end() - 1);
  const Shape row{1, static_cast<int64_t>(tokens.size())};
  NoGrad pause;
  Var log_p = log_softmax(model.forward(source, Tensor::from(in, row)).logits);
  return sum(gather(log_p, 2, unsqueeze(Tensor::from(tokens, row), 2))).item();
}

}  // namespace

TEST_SUITE_BEGIN("search");

TEST_CASE("beam search starts from one hypothesis and beats the greedy choice") {
  CHECK(best(greedy_trap, with(2, 0)) == "BBE");
  CHECK(beam(greedy_trap, with(2, 0))[0].score == doctest::Approx(std::log(.45 * .9 * .95)));
  CHECK(best(early_choice, with(2, 0)) == "BE");
  Toy trap(greedy_trap), choice(early_choice);
  CHECK(spelled(greedy_search(trap, with(1, 0))[0].tokens) == "AE");
  CHECK(spelled(greedy_search(choice, {.max_length = 3})[0].tokens) == "AAE");
  std::vector<Hypothesis> several = beam(early_choice, with(3, 0, 5));
  for (size_t i = 0; i < several.size(); ++i) {
    for (size_t j = 0; j < i; ++j) CHECK(several[i].tokens != several[j].tokens);
  }
}

TEST_CASE("length penalties rank as their formulas say") {
  auto scores = [](double alpha, LengthPenalty kind = LengthPenalty::gnmt) {
    std::map<std::string, double> result;
    for (const Hypothesis& h : beam(long_or_short, with(5, alpha, 9, kind))) result[spelled(h.tokens)] = h.score;
    return result;
  };
  CHECK(scores(0)["E"] == doctest::Approx(-1.0216512));
  CHECK(scores(.6)["AE"] == doctest::Approx(-1.038774));
  CHECK(scores(.6)["AAE"] == doctest::Approx(-1.047453));
  CHECK(scores(.7)["AAE"] == doctest::Approx(-1.017749));
  CHECK(scores(1)["AAE"] == doctest::Approx(-0.933596));
  CHECK(scores(1, LengthPenalty::power)["AAE"] == doctest::Approx(-0.414932));
  CHECK(best(long_or_short, with(5, 0)) == "E");
  CHECK(best(long_or_short, with(5, .7)) == "AAE");
  size_t length = 0;
  for (double alpha = 0; alpha <= 2; alpha += .1) {  // a bigger alpha never shortens the winner
    const size_t now = best(long_or_short, with(5, alpha)).size();
    CHECK(now >= length);
    length = now;
  }
}

TEST_CASE("finished hypotheses take no place of live ones") {
  CHECK(best(early_end, with(2, 1, 1, LengthPenalty::power)) == "BE");
  for (const Hypothesis& h : beam(early_end, with(2, 1, 9))) {
    CHECK(h.finished);
    CHECK(std::count(h.tokens.begin(), h.tokens.end(), eos_id) == 1);
    CHECK(h.tokens.back() == eos_id);
  }
}

TEST_CASE("a beam that is wide enough finds what exhaustive search finds") {
  for (const Table& table : tables) {
    for (double alpha : {0., .6, 1., 2.}) {
      for (LengthPenalty kind : {LengthPenalty::gnmt, LengthPenalty::power}) {
        for (int64_t k : {8, 20}) {
          Toy toy(table);
          std::vector<Hypothesis> all = exhaustive_search(toy, with(k, alpha, 6, kind)),
                                  found = beam(table, with(k, alpha, 6, kind));
          REQUIRE(found.size() == all.size());
          for (size_t i = 0; i < all.size(); ++i) {
            CHECK(found[i].tokens == all[i].tokens);
            CHECK(found[i].score == all[i].score);
          }
        }
      }
    }
  }
}

TEST_CASE("results are sorted and limits of few steps work") {
  std::vector<Hypothesis> three = beam(early_choice, with(3, 0, 3));
  REQUIRE(three.size() == 3);
  CHECK(three[0].score >= three[1].score);
  CHECK(three[1].score >= three[2].score);
  std::vector<Hypothesis> one = beam(early_choice, {.max_length = 1, .beam = 3, .n_best = 3});
  REQUIRE(one.size() == 3);
  CHECK(spelled(one[0].tokens) == "E");
  CHECK(one[0].finished);
  CHECK_FALSE(one[1].finished);
  CHECK(spelled(one[1].tokens) == "A");
  std::vector<Hypothesis> never =
      beam({{"", {.6, .4, 0}}, {"A", {.6, .4, 0}}, {"B", {.5, .5, 0}}}, {.max_length = 2, .beam = 2});
  CHECK_FALSE(never[0].finished);
  CHECK(spelled(never[0].tokens) == "AA");
}

TEST_CASE("ties take the lowest ids") {
  const Table even = {{"", {.25, .25, .5}}, {"A", {.5, .5, 0}}, {"B", {.5, .5, 0}}};
  std::vector<Hypothesis> h = beam(even, {.max_length = 3, .beam = 5, .n_best = 5});
  CHECK(spelled(h[0].tokens) == "E");
  CHECK(spelled(h[1].tokens) == "AAE");
  CHECK(spelled(h[2].tokens) == "ABE");
  CHECK(spelled(h[4].tokens) == "BBE");
  Toy toy(even);
  CHECK(spelled(greedy_search(toy, {.max_length = 2, .min_length = 2})[0].tokens) == "AA");
}

TEST_CASE("minimum length and prefix and n-grams and constraints are kept") {
  CHECK(best(long_or_short, {.max_length = 4, .min_length = 3, .beam = 3}) == "AAE");
  std::vector<Hypothesis> forced = beam(greedy_trap, {.max_length = 4, .prefix = {A}, .beam = 2});
  CHECK(spelled(forced[0].tokens) == "AE");
  CHECK(forced[0].log_p == doctest::Approx(std::log(.55 * .6)));
  CHECK(best(long_or_short, {.max_length = 4, .beam = 3, .no_repeat_ngram = 1}) == "AE");
  auto no_a = [](int64_t, const Sequence&, std::span<double> logits) { logits[A] = -inf; };
  CHECK(best(greedy_trap, {.max_length = 4, .beam = 3, .constraint = no_a}) == "BBE");
  auto nothing = [](int64_t, const Sequence&, std::span<double> logits) {
    std::fill(logits.begin(), logits.end(), -inf);
  };
  CHECK(says(error_of([&] { beam(greedy_trap, {.constraint = nothing}); }), {"search", "sentence 0"}));
}

TEST_CASE("sentences searched together find what they find alone") {
  for (int64_t k : {1, 2, 3, 7}) {
    Toy together(tables);
    auto all = beam_search(together, with(k, .6, 3));
    for (size_t b = 0; b < tables.size(); ++b) {
      std::vector<Hypothesis> alone = beam(tables[b], with(k, .6, 3));
      REQUIRE(all[b].size() == alone.size());
      for (size_t i = 0; i < alone.size(); ++i) {
        CHECK(all[b][i].tokens == alone[i].tokens);
        CHECK(all[b][i].score == alone[i].score);
      }
    }
  }
}

TEST_CASE("the trace tells every expansion and its fate") {
  Toy toy(early_choice);
  std::vector<SearchEvent> trace;
  beam_search(toy, with(1, 0), &trace);
  std::map<std::string, SearchEvent::Fate> fate;
  for (const SearchEvent& e : trace) fate[spelled(e.tokens)] = e.fate;
  CHECK(fate.at("A") == SearchEvent::Fate::live);
  CHECK(fate.at("B") == SearchEvent::Fate::dropped);
  CHECK(fate.at("E") == SearchEvent::Fate::finished);
  CHECK(fate.at("AE") == SearchEvent::Fate::finished);
}

TEST_CASE("the score of a result is the model's own score of its tokens in a thousand searches") {
  Rng rng(5);
  int64_t finished = 0, cut = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Seq2SeqAttention model = random_model(seed);
    for (int search = 0; search < 20; ++search) {
      const Sequence source = random_source(rng, 4);
      const Tensor ids = Tensor::from(source, {1, static_cast<int64_t>(source.size())});
      auto decoding = model.begin(ids);
      const double alpha = rng.uniform(0, 2);
      const auto found = beam_search(
          *decoding, {.max_length = 1 + rng.below(6), .beam = 1 + rng.below(4), .n_best = 2, .alpha = alpha});
      for (const Hypothesis& h : found[0]) {
        const double right = rescored(model, ids, h.tokens);
        CHECK(h.log_p == doctest::Approx(right).epsilon(1e-10));
        const double lp = std::pow((5 + static_cast<double>(h.tokens.size())) / 6, alpha);
        CHECK(h.score == doctest::Approx(right / lp).epsilon(1e-10));
        CHECK(h.weights.size() == h.tokens.size());
        ++(h.finished ? finished : cut);
      }
    }
  }
  CHECK(finished > 1000);
  CHECK(cut > 10);
}

TEST_CASE("a real model gives a batch the hypotheses of each sentence alone") {
  for (DType dtype : {DType::f64, DType::f32}) {
    const Seq2SeqAttention model = random_model(3, dtype);
    const Tensor batch = tensor({{3, 4, 5, 6}, {6, 5, 0, 0}, {4, 4, 3, 0}});
    const SearchOptions options{.max_length = 8, .beam = 4, .n_best = 3, .alpha = .6};
    auto together = model.begin(batch);
    auto all = beam_search(*together, options);
    auto greedy_together = model.begin(batch);
    auto greedy = greedy_search(*greedy_together, {.max_length = 8});
    const Decoded decoded = model.greedy_decode(batch, 8);
    for (int64_t b = 0; b < 3; ++b) {
      const Tensor row = batch.slice(0, b, b + 1).slice(1, 0, row_lengths(batch)[static_cast<size_t>(b)]);
      auto alone = model.begin(row);
      auto one = beam_search(*alone, options)[0];
      REQUIRE(one.size() == all[static_cast<size_t>(b)].size());
      for (size_t i = 0; i < one.size(); ++i) {
        CHECK(all[static_cast<size_t>(b)][i].tokens == one[i].tokens);
        CHECK(all[static_cast<size_t>(b)][i].score ==
              doctest::Approx(one[i].score).epsilon(dtype == DType::f64 ? 1e-12 : 1e-5));
      }
      const Sequence& g = greedy[static_cast<size_t>(b)].tokens;
      for (size_t t = 0; t < g.size(); ++t) CHECK(g[t] == decoded.tokens.at({b, static_cast<int64_t>(t)}));
    }
  }
}

TEST_CASE("a batch of 32 sentences with 5 hypotheses each gives those of each alone") {
  Rng rng(6);
  std::vector<Sequence> sources;
  for (int i = 0; i < 32; ++i) sources.push_back(random_source(rng, 7));
  const Seq2SeqAttention model = random_model(7);
  for (double alpha : {0., 1.}) {
    const SearchOptions options{.max_length = 12, .beam = 5, .n_best = 5, .alpha = alpha, .coverage = .2 * alpha};
    auto together = model.begin(make_batch(sources, sources).source);
    const auto all = beam_search(*together, options);
    REQUIRE(all.size() == 32);
    for (size_t b = 0; b < 32; ++b) {
      CAPTURE(b);
      auto alone = model.begin(Tensor::from(sources[b], {1, static_cast<int64_t>(sources[b].size())}));
      const std::vector<Hypothesis> one = beam_search(*alone, options)[0];
      REQUIRE(one.size() == all[b].size());
      for (size_t i = 0; i < one.size(); ++i) {
        CHECK(all[b][i].tokens == one[i].tokens);
        CHECK(all[b][i].finished == one[i].finished);
        CHECK(std::abs(all[b][i].score - one[i].score) <= 1e-12 * std::abs(one[i].score));
      }
    }
  }
}

TEST_CASE("coverage counts what may be attended to") {
  auto score = [](const Tensor& mask) {
    Attending decoding(mask);
    return beam_search(decoding, {.max_length = 1, .beam = 1, .coverage = 2})[0][0].score;
  };
  CHECK(score(tensor({{true, false}})) == doctest::Approx(std::log(.2) + 2 * std::log(.25)));
  CHECK(score({}) == -inf);  // the second position is never attended to
  CHECK(says(error_of([&] { score(tensor({{true}})); }), {"search", "boolean mask (1, 2)", "(1, 1)"}));
}

TEST_CASE("sampling follows the model and its options") {
  const Table one_step = {{"", {.6, .3, .1}}};
  const Rng rng(9);
  std::map<std::string, int> counts;
  constexpr int n = 4000;
  for (int i = 0; i < n; ++i) {
    Toy toy(one_step);
    ++counts[spelled(sample_search(toy, rng.split(static_cast<uint64_t>(i)), {.max_length = 1})[0].tokens)];
  }
  CHECK(counts["A"] / double(n) == doctest::Approx(.6).epsilon(.05));
  CHECK(counts["E"] / double(n) == doctest::Approx(.1).epsilon(.2));
  for (uint64_t i = 0; i < 50; ++i) {
    Toy first(one_step), nucleus(one_step), cold(one_step);
    CHECK(spelled(sample_search(first, rng.split(i), {.max_length = 1, .top_k = 1})[0].tokens) == "A");
    CHECK(spelled(sample_search(nucleus, rng.split(i), {.max_length = 1, .top_p = .5})[0].tokens) == "A");
    CHECK(spelled(sample_search(cold, rng.split(i), {.max_length = 1, .temperature = .01})[0].tokens) == "A");
  }
  Toy batch(std::vector<Table>{one_step, early_choice}), alone(one_step);
  CHECK(sample_search(batch, rng)[0].tokens == sample_search(alone, rng)[0].tokens);
}

TEST_CASE("wrong options and NaN logits are refused by name") {
  auto refused = [](const SearchOptions& options) {
    Toy toy(early_choice);
    return error_of([&] { beam_search(toy, options); });
  };
  CHECK(says(refused({.max_length = 0}), {"max_length", "0"}));
  CHECK(says(refused({.beam = 0}), {"beam", "0"}));
  CHECK(says(refused({.alpha = -1}), {"alpha", "-1"}));
  CHECK(says(refused({.coverage = 1}), {"coverage", "attention"}));
  CHECK(says(refused({.prefix = {99}}), {"prefix", "99"}));
  CHECK(says(refused({.max_length = 2, .min_length = 3}), {"min_length", "3"}));
  CHECK(says(refused({.top_p = 0}), {"top_p"}));
  CHECK(says(error_of([] { beam({{"", {std::nan(""), .5, .5}}}, {}); }), {"NaN", "token 3"}));
}

TEST_SUITE_END();
