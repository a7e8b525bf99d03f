// B batch, S source time, T target time, d model size, V vocabulary.
#include <tapedeck/core/gradcheck.h>
#include <tapedeck/models/metrics.h>
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/nn/optim.h>
#include <tapedeck/ops/ops.h>

#include <algorithm>
#include <cmath>

#include "model_audit.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr AttentionKind both_kinds[] = {AttentionKind::additive, AttentionKind::dot};

// Fresh weights are small and make all rows alike; larger ones make every row go its own way.
Seq2SeqAttention make_model(const Seq2SeqOptions& options, uint64_t seed, double scale = 1) {
  Rng rng(seed);
  Seq2SeqAttention model(options, rng);
  for (const NamedParameter& p : named_parameters(model)) p.parameter.mutable_value().mul_(scale);
  return model;
}

auto maker(AttentionKind kind) {
  return [kind](const ModelSize& size, Rng& rng) {
    return Seq2SeqAttention(
        {.vocabulary = size.vocabulary, .d_model = size.size, .attention = kind, .dtype = size.dtype}, rng);
  };
}

// A token in, a token out, by one matrix.
struct Tied {
  Embedding embed;
  Linear out;
  explicit Tied(Rng& rng)
      : embed(3, 2, rng, {.dtype = DType::f64}), out(2, 3, rng, {.bias = false, .dtype = DType::f64}) {
    embed.weight.mutable_value().copy_(tensor({{.1, .2}, {.3, -.1}, {-.2, .4}}, DType::f64));
    out.weight = embed.weight;
  }
  static void fields(auto& self, auto&& f) { f("embed", self.embed), f("out", self.out); }
};

// A model in f64 whose next token is next[previous], with equal attention weights everywhere.
Seq2SeqAttention chain_model(const Ints& next) {
  const int64_t V = static_cast<int64_t>(next.size());
  Seq2SeqAttention model = make_model({.vocabulary = V, .d_model = V, .dtype = DType::f64}, 1, 0);
  for (int64_t v = 0; v < V; ++v) {
    model.embed.weight.mutable_value().set({v, v}, 1);
    model.decoder_cell.weight_ih.mutable_value().set({2 * V + v, v}, 3);  // n = tanh(3 embedding)
    model.decoder_cell.bias_ih.mutable_value().set({V + v}, -40);         // z = 0: the state forgets
    model.out.weight.mutable_value().set({next[static_cast<size_t>(v)], v}, 9);
  }
  return model;
}

// Greedy decoding of one row by the public step function alone.
struct NaiveDecoded {
  Ints tokens, looked_at;
  bool finished = false;
};
NaiveDecoded naive_greedy(const Seq2SeqAttention& model, const Tensor& row, int64_t limit) {
  auto [memory, state] = model.encode(row);
  NaiveDecoded result;
  int64_t previous = bos_id;
  while (static_cast<int64_t>(result.tokens.size()) < limit && !result.finished) {
    Seq2SeqAttention::Step step = model.decode_step(tensor({previous}), state, memory);
    auto largest = [](const Tensor& x) {
      std::vector<double> v = values(x);
      return std::max_element(v.begin(), v.end()) - v.begin();
    };
    previous = largest(step.logits.value());
    state = step.state;
    result.tokens.push_back(previous);
    result.looked_at.push_back(largest(step.weights.value()));
    result.finished = previous == eos_id;
  }
  return result;
}

// Small ids, big weights: some rows end early, some late, some never.
std::pair<Seq2SeqAttention, Batch> varied_decoding(AttentionKind kind, int64_t limit) {
  Rng rng(17);
  Batch batch = ReversalTask{.min_length = 1, .max_length = 6, .symbols = 3}.batch(24, rng);
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Seq2SeqAttention model =
        make_model({.vocabulary = 6, .d_model = 5, .attention = kind, .dtype = DType::f64}, seed, 6);
    Decoded decoded = model.greedy_decode(batch.source, limit);
    std::vector<int64_t> ended;
    for (size_t b = 0; b < decoded.lengths.size(); ++b) {
      if (decoded.finished[b]) ended.push_back(decoded.lengths[b]);
    }
    std::sort(ended.begin(), ended.end());
    const auto kinds = std::unique(ended.begin(), ended.end()) - ended.begin();
    if (kinds >= 3 && std::count(decoded.finished.begin(), decoded.finished.end(), false) > 0) return {model, batch};
  }
  FAIL("no model whose rows end at different steps");
  return {make_model({.vocabulary = 6}, 1), batch};
}

}  // namespace

TEST_SUITE("seq2seq") {
TEST_CASE("seq2seq: audit") {
  for (AttentionKind kind : both_kinds) {
    CAPTURE(static_cast<int>(kind));
    audit_model(maker(kind));
  }
}

TEST_CASE("seq2seq: a row alone equals the row in any batch in f32") {
  for (AttentionKind kind : both_kinds) audit_rows(maker(kind), DType::f32, 1e-5);
}

TEST_CASE("seq2seq: a row alone is read like the row in any batch") {
  Seq2SeqAttention model = make_model({.vocabulary = 8, .d_model = 6, .dtype = DType::f64}, 3, 2.5);
  for (int64_t extra : {0, 1, 4}) {
    Seq2SeqAttention::Encoded batch = model.encode(batch_of(five_pairs, {4, 1, 3, 0, 2}, extra).source);
    const Tensor states = batch.memory.values.value(), state = batch.state.value();
    int64_t at = 0;
    for (int64_t b : {4, 1, 3, 0, 2}) {
      CAPTURE(b);
      Seq2SeqAttention::Encoded alone = model.encode(batch_of(five_pairs, {b}).source);
      const int64_t S = alone.memory.values.size(1);
      CHECK(distance(states.select(0, at).slice(0, 0, S), alone.memory.values.value().select(0, 0)) <= 1e-12);
      CHECK(all_zero(states.select(0, at).slice(0, S, states.size(1))));
      CHECK(distance(state.select(0, at), alone.state.value().select(0, 0)) <= 1e-12);
      ++at;
    }
  }
}

TEST_CASE("seq2seq: forward is the loop over decode_step") {
  for (AttentionKind kind : both_kinds) {
    for (EncoderPads pads : {EncoderPads::by_length, EncoderPads::run_over}) {
      Seq2SeqAttention model = make_model(
          {.vocabulary = 8, .d_model = 5, .attention = kind, .encoder_pads = pads, .dtype = DType::f64}, 4, 2);
      Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4});
      auto [logits, attention] = model.forward(batch.source, batch.target_in);
      CHECK(logits.shape() == Shape{5, 5, 8});
      CHECK(attention.shape() == Shape{5, 5, 5});
      auto [memory, state] = model.encode(batch.source);
      for (int64_t t = 0; t < 5; ++t) {
        CAPTURE(t);
        Seq2SeqAttention::Step step = model.decode_step(batch.target_in.select(1, t), state, memory);
        state = step.state;
        CHECK(distance(logits.value().select(1, t), step.logits.value()) <= 1e-14);
        CHECK(distance(attention.value().select(1, t), step.weights.value()) <= 1e-14);
      }
    }
  }
}

TEST_CASE("seq2seq: a step is attention then cell then output layer") {
  Seq2SeqAttention model = make_model({.vocabulary = 8, .d_model = 4, .dtype = DType::f64}, 5);
  const Tensor source = tensor({{3, 4, 5}, {6, 7, 0}});
  auto [memory, state] = model.encode(source);
  GRU::Result read = model.encoder(model.embed(source), Ints{3, 2});
  CHECK(same_bits(memory.values.value(), read.output.value()));
  CHECK(ids(memory.mask.to(DType::i64)) == Ints{1, 1, 1, 1, 1, 0});
  Var ends = cat({select(read.final_state, 0, 0), select(read.final_state, 0, 1)}, 1);
  CHECK(distance(state.value(), tanh(model.bridge(ends)).value()) <= 1e-15);

  const Tensor previous = tensor({5, 3});
  Seq2SeqAttention::Step step = model.decode_step(previous, state, memory);
  auto [context, weights] = std::get<AdditiveAttention>(model.attention)(state, memory);
  Var next = model.decoder_cell(cat({model.embed(previous), context}, 1), state);
  CHECK(distance(step.weights.value(), weights.value()) <= 1e-15);
  CHECK(distance(step.state.value(), next.value()) <= 1e-15);
  CHECK(distance(step.logits.value(), model.out(cat({next, context}, 1)).value()) <= 1e-15);
}

TEST_CASE("seq2seq: the encoder run over pads equals the encoder by length where there are none") {
  for (AttentionKind kind : both_kinds) {
    Seq2SeqAttention by_length =
        make_model({.vocabulary = 8, .d_model = 5, .attention = kind, .dtype = DType::f64}, 6, 2);
    Seq2SeqAttention run_over = by_length;
    run_over.encoder_pads = EncoderPads::run_over;
    Batch full = batch_of(five_pairs, {2, 4});
    CHECK(same_bits(run_over.forward(full.source, full.target_in).logits.value(),
                    by_length.forward(full.source, full.target_in).logits.value()));

    // With pads the backward direction has left its zero state before it meets the last token, so a short row
    // depends on the longest one of its batch.
    Batch alone = batch_of(five_pairs, {0}), padded = batch_of(five_pairs, {0}, 2);
    auto logits = [](const Seq2SeqAttention& model, const Batch& batch) {
      return model.forward(batch.source, batch.target_in).logits.value();
    };
    CHECK(distance(logits(run_over, padded), logits(run_over, alone)) > 1e-3);
    CHECK(distance(logits(by_length, padded), logits(by_length, alone)) <= 1e-14);
    CHECK(all_zero(by_length.encode(padded.source).memory.values.value().slice(1, 3, 5)));
    // Attention is masked all the same.
    CHECK(all_zero(run_over.forward(padded.source, padded.target_in).attention.value().slice(2, 3, 5)));
  }
}

TEST_CASE("seq2seq: the loss is the mean over targets and near ln V before training") {
  for (AttentionKind kind : both_kinds) {
    for (int64_t V : {20, 400}) {
      CAPTURE(V);
      Seq2SeqAttention model = make_model({.vocabulary = V, .attention = kind}, 7);
      Rng rng(1);
      Batch batch = ReversalTask{.symbols = V - 3}.batch(32, rng);
      const double loss = model.loss(batch).item();
      CHECK(std::abs(loss - std::log(static_cast<double>(V))) < .2);
      Var sums = cross_entropy(model.forward(batch.source, batch.target_in).logits, batch.target_out,
                               {.ignore_index = pad_id, .reduction = Reduction::sum});
      CHECK(std::abs(sums.item() / static_cast<double>(batch.tokens) - loss) <= 1e-6 * loss);
    }
  }
}

TEST_CASE("seq2seq: the end token is a target and trains its output row") {
  Seq2SeqAttention model = make_model({.vocabulary = 8, .d_model = 4, .dtype = DType::f64}, 8);
  Batch batch = batch_of(five_pairs, {0});
  CHECK(ids(batch.target_in) == Ints{bos_id, 5, 6});
  CHECK(ids(batch.target_out) == Ints{5, 6, eos_id});
  Tape tape;
  Gradients g = tape.backward(model.loss(batch));
  Tensor bias = g[model.out.bias];
  CHECK(bias.at({eos_id}) < 0);  // its share of the softmax at three steps less one target
  CHECK(bias.at({bos_id}) > 0);  // never a target
}

TEST_CASE("seq2seq: the pad row of the embedding is zero and stays zero") {
  Seq2SeqAttention model =
      make_model({.vocabulary = 8, .d_model = 4, .encoder_pads = EncoderPads::run_over, .dtype = DType::f64}, 8);
  CHECK(all_zero(model.embed.weight.value().select(0, pad_id)));
  Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4}, 1, 1);
  Tape tape;
  Var sums = cross_entropy(model.forward(batch.source, batch.target_in).logits, batch.target_out);  // pads count too
  Gradients g = tape.backward(sums);
  const Tensor& of_embedding = g[model.embed.weight];
  CHECK(all_zero(of_embedding.select(0, pad_id)));
  CHECK(!all_zero(of_embedding.select(0, bos_id)));
  Adam optimizer(model, {.lr = .1});
  optimizer.step(g);
  CHECK(all_zero(model.embed.weight.value().select(0, pad_id)));
}

TEST_CASE("seq2seq: wrong batches are named") {
  Seq2SeqAttention model = make_model({.vocabulary = 8, .d_model = 4}, 9);
  const Tensor source = tensor({{3, 4}, {5, 0}}), target = tensor({{1, 3, 4}, {1, 5, 0}});
  CHECK(error_of([&] { model.forward(source, target); }) == "");
  CHECK(says(error_of([&] { model.encode(tensor({{3, 4}, {0, 0}})); }), {"row 1", "empty"}));
  CHECK(says(error_of([&] { model.encode(tensor({{3, 4}, {0, 5}})); }), {"row 1"}));
  CHECK(says(error_of([&] { model.encode(tensor({{3, 0, 4}, {5, 6, 7}})); }), {"row 0", "position 1"}));
  CHECK(says(error_of([&] { model.encode(tensor({3, 4})); }), {"(2,)"}));
  CHECK(says(error_of([&] { model.encode(Tensor::ones({2, 2})); }), {"i64", "f32"}));
  CHECK(says(error_of([&] { model.encode(tensor({{3, 8}, {3, 4}})); }), {"embedding", "8"}));
  CHECK(says(error_of([&] { model.forward(source, target.slice(0, 0, 1)); }), {"seq2seq", "(2, 2)", "(1, 3)"}));
  CHECK(says(error_of([&] { model.forward(source, target.slice(1, 0, 0)); }), {"seq2seq", "T >= 1", "(2, 0)"}));
  CHECK(says(error_of([&] { model.forward(source, tensor({1, 3})); }), {"seq2seq", "(2,)"}));
  CHECK(says(error_of([&] { model.greedy_decode(source, 0); }), {"max length", "0"}));
  auto [memory, state] = model.encode(source);
  const Var start = state;
  const Memory& read = memory;
  CHECK(error_of([&] { model.decode_step(tensor({1, 1}), start, read); }) == "");
  CHECK(error_of([&] { model.decode_step(tensor({1}), start, read); }) != "");
  CHECK(error_of([&] { model.decode_step(tensor({{1}, {1}}), start, read); }) != "");
}

TEST_CASE("seq2seq: gradients of every element by parameter name") {
  for (AttentionKind kind : both_kinds) {
    for (EncoderPads pads : {EncoderPads::by_length, EncoderPads::run_over}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(static_cast<int>(pads));
      Seq2SeqAttention model =
          make_model({.vocabulary = 6, .d_model = 2, .attention = kind, .encoder_pads = pads, .dtype = DType::f64}, 10);
      // A pad row that is not zero: by length it is never read, so nothing has to be left out.
      model.embed.weight.mutable_value().select(0, pad_id).copy_(tensor({.3, -.7}, DType::f64));
      const Batch batch = batch_of(two_pairs, {0, 1});
      GradcheckOptions options;
      if (pads == EncoderPads::run_over) options.excluded = {{"embed.weight", pad_id, "the frozen pad row"}};
      GradcheckReport report = gradcheck([&](auto) { return model.loss(batch); }, {}, named_parameters(model), options);
      CHECK_MESSAGE(report.ok(), to_string(report));
      const int64_t left_out = pads == EncoderPads::run_over ? 2 : 0;
      CHECK(report.elements == 2 * (parameter_count(model) - left_out));
    }
  }
}

TEST_CASE("seq2seq: gradients of logits and attention to order two") {
  for (AttentionKind kind : both_kinds) {
    CAPTURE(static_cast<int>(kind));
    Seq2SeqAttention model = make_model({.vocabulary = 6, .d_model = 3, .attention = kind, .dtype = DType::f64}, 11);
    const Batch batch = batch_of(two_pairs, {0, 1});
    // Only what is decoded before the end counts: a pad fed back after it reads the frozen pad row.
    std::function<std::vector<Var>(std::span<const Var>)> f = [&](std::span<const Var>) {
      auto [logits, attention] = model.forward(batch.source, batch.target_in.slice(1, 0, 2));
      return std::vector<Var>{logits, attention};
    };
    GradcheckReport first = gradcheck(f, {}, named_parameters(model), {.directions = 8});
    CHECK_MESSAGE(first.ok(), to_string(first));
    GradcheckReport second = gradcheck(f, {}, named_parameters(model), {.order = 2, .directions = 3});
    CHECK_MESSAGE(second.ok(), to_string(second));
  }
}

TEST_CASE("seq2seq: layers list the parameters that they make") {
  CHECK(audit_module([] {
          Rng rng(1);
          return Embedding(5, 3, rng, {.padding_idx = 0});
        }) == "");
  for (bool bias : {false, true}) {
    CHECK(audit_module([bias] {
            Rng rng(1);
            return Linear(5, 3, rng, {.bias = bias});
          }) == "");
    CHECK(audit_module([bias] {
            Rng rng(1);
            return GRU(5, 3, rng, {.layers = 2, .bidirectional = true, .bias = bias});
          }) == "");
  }
}

TEST_CASE("seq2seq: names and shapes of parameters") {
  std::string text;
  for (const NamedParameter& p : named_parameters(make_model({.vocabulary = 8, .d_model = 4}, 1))) {
    text += fmt::format("{} {}\n", p.name, p.parameter.shape());
  }
  CHECK(text ==
        "embed.weight (8, 4)\n"
        "encoder.weight_ih_l0 (12, 4)\n"
        "encoder.weight_hh_l0 (12, 4)\n"
        "encoder.bias_ih_l0 (12,)\n"
        "encoder.bias_hh_l0 (12,)\n"
        "encoder.weight_ih_l0_reverse (12, 4)\n"
        "encoder.weight_hh_l0_reverse (12, 4)\n"
        "encoder.bias_ih_l0_reverse (12,)\n"
        "encoder.bias_hh_l0_reverse (12,)\n"
        "bridge.weight (4, 8)\n"
        "bridge.bias (4,)\n"
        "attention.W_q.weight (4, 4)\n"
        "attention.W_k.weight (4, 8)\n"
        "attention.v.weight (1, 4)\n"
        "decoder_cell.weight_ih (12, 12)\n"
        "decoder_cell.weight_hh (12, 4)\n"
        "decoder_cell.bias_ih (12,)\n"
        "decoder_cell.bias_hh (12,)\n"
        "out.weight (8, 12)\n"
        "out.bias (8,)\n");
}

TEST_CASE("seq2seq: a clone computes the same and goes its own way") {
  Seq2SeqAttention model = make_model({.vocabulary = 8, .d_model = 4, .dtype = DType::f64}, 12);
  Batch batch = batch_of(five_pairs, {0, 1, 2});
  Seq2SeqAttention copy = clone(model), shared = model;
  const double before = model.loss(batch).item();
  CHECK(copy.loss(batch).item() == before);
  model.out.bias.mutable_value().fill_(3);
  model.out.bias.mutable_value().set({eos_id}, -3);
  CHECK(copy.loss(batch).item() == before);
  CHECK(model.loss(batch).item() != before);
  CHECK(shared.loss(batch).item() == model.loss(batch).item());
  Seq2SeqAttention single = to(copy, DType::f32);
  CHECK(std::abs(single.loss(batch).item() - before) <= 1e-5 * before);
}

TEST_CASE("seq2seq: tied cells are one set of parameters with one gradient") {
  Seq2SeqAttention model = make_model({.vocabulary = 8, .d_model = 4, .dtype = DType::f64}, 13);
  const size_t count = named_parameters(model).size();
  const int64_t elements = parameter_count(model);
  model.encoder.cells[1] = model.encoder.cells[0];
  CHECK(named_parameters(model).size() == count - 4);
  CHECK(parameter_count(model) == elements - 2 * 12 * 4 - 2 * 12);
  CHECK(all_paths(model).size() == count);
  Batch batch = batch_of(five_pairs, {0, 1, 2});
  auto gradients = [&](const Seq2SeqAttention& m) {
    Tape tape;
    return tape.backward(m.loss(batch));
  };
  // The same values, not tied: the two halves of the gradient.
  Seq2SeqAttention untied = model;
  untied.encoder.cells[1] = clone(model.encoder.cells[0]);
  Gradients g = gradients(model), halves = gradients(untied);
  Tensor sum_of_halves = halves[untied.encoder.cells[0].weight_ih].clone();
  sum_of_halves.add_(halves[untied.encoder.cells[1].weight_ih]);
  CHECK(distance(g[model.encoder.cells[0].weight_ih], sum_of_halves) <= 1e-14);

  Seq2SeqAttention copy = clone(model);
  CHECK(copy.encoder.cells[0].weight_ih.id() == copy.encoder.cells[1].weight_ih.id());
  CHECK(copy.encoder.cells[0].weight_ih.id() != model.encoder.cells[0].weight_ih.id());
  GradcheckReport report =
      gradcheck([&](auto) { return model.loss(batch); }, {}, named_parameters(model), {.directions = 8});
  CHECK_MESSAGE(report.ok(), to_string(report));
}

TEST_CASE("seq2seq: an output layer tied to the embedding") {
  Rng rng(1);
  Tied model(rng), copy = clone(model);
  REQUIRE(named_parameters(model).size() == 1);
  CHECK(named_parameters(model)[0].name == "embed.weight");
  CHECK(copy.out.weight.id() == copy.embed.weight.id());
  Sgd optimizer(model, {.lr = .1});
  CHECK(optimizer.parameters().size() == 1);
  Tape tape;
  Var loss = cross_entropy(model.out(model.embed(tensor({1}))), tensor({2}));
  CHECK(std::abs(loss.item() - 1.205276203118276) <= 1e-15);
  Gradients g = tape.backward(loss);
  const Tensor expected =
      tensor({{0.1003341656, -0.0334447219}, {0.3930890025, -0.2864555714}, {-0.2101172295, 0.0700390765}}, DType::f64);
  CHECK(distance(g[model.embed.weight], expected) <= 1e-9);
  optimizer.step(g);
  const Tensor after =
      tensor({{0.0899665834, 0.2033444722}, {0.2606910997, -0.0713544429}, {-0.1789882771, 0.3929960924}}, DType::f64);
  CHECK(distance(model.out.weight.value(), after) <= 1e-9);
  CHECK(copy.out.weight.value().at({0, 0}) == .1);
}
}

TEST_SUITE("greedy") {
TEST_CASE("greedy: equals the loop over decode_step for every row") {
  for (AttentionKind kind : both_kinds) {
    CAPTURE(static_cast<int>(kind));
    constexpr int64_t limit = 9;
    auto [model, batch] = varied_decoding(kind, limit);
    Decoded decoded = model.greedy_decode(batch.source, limit);
    const int64_t B = batch.source.size(0), L = decoded.tokens.size(1);
    CHECK(L == *std::max_element(decoded.lengths.begin(), decoded.lengths.end()));
    CHECK(decoded.attention.shape() == Shape{B, L, batch.source.size(1)});
    const CachedVector<int64_t> sources = row_lengths(batch.source);
    const Ints looked = ids(argmax(decoded.attention).value());
    for (int64_t b = 0; b < B; ++b) {
      CAPTURE(b);
      const size_t row = static_cast<size_t>(b);
      NaiveDecoded naive = naive_greedy(model, batch.source.slice(0, b, b + 1).slice(1, 0, sources[row]), limit);
      const int64_t n = static_cast<int64_t>(naive.tokens.size());
      REQUIRE(decoded.lengths[row] == n);
      CHECK(decoded.finished[row] == naive.finished);
      Ints padded = naive.tokens;
      padded.resize(static_cast<size_t>(L), pad_id);
      CHECK(ids(decoded.tokens.select(0, b)) == padded);
      for (int64_t t = 0; t < n; ++t) {
        CHECK(looked[static_cast<size_t>(b * L + t)] == naive.looked_at[static_cast<size_t>(t)]);
      }
      CHECK(all_zero(decoded.attention.select(0, b).slice(0, n, L)));
    }
  }
}

TEST_CASE("greedy: stops when every row has ended") {
  // bos -> 3 -> 4 -> eos, whatever the source
  Seq2SeqAttention model = chain_model({0, 3, 2, 4, eos_id});
  Decoded decoded = model.greedy_decode(tensor({{3, 4}, {4, 0}}), 10);
  CHECK(ids(decoded.tokens) == Ints{3, 4, eos_id, 3, 4, eos_id});
  CHECK(decoded.lengths == Ints{3, 3});
  CHECK(decoded.finished == std::vector<bool>{true, true});
  CHECK(decoded.attention.shape() == Shape{2, 3, 2});
  CHECK(decoded.attention.at({0, 0, 1}) == .5);
  CHECK(decoded.attention.at({1, 0, 1}) == 0);
}

TEST_CASE("greedy: the limit leaves rows unfinished") {
  Seq2SeqAttention model = chain_model({0, 3, 2, 4, eos_id});
  const Tensor source = tensor({{3, 4}});
  Decoded short_of_eos = model.greedy_decode(source, 2), exact = model.greedy_decode(source, 3);
  CHECK(ids(short_of_eos.tokens) == Ints{3, 4});
  CHECK(short_of_eos.finished == std::vector<bool>{false});
  CHECK(short_of_eos.lengths == Ints{2});
  CHECK(exact.finished == std::vector<bool>{true});
  CHECK(exact.lengths == Ints{3});
  Decoded endless = chain_model({0, 3, 2, 4, 3}).greedy_decode(source, 6);
  CHECK(ids(endless.tokens) == Ints{3, 4, 3, 4, 3, 4});
  CHECK(endless.finished == std::vector<bool>{false});
}

TEST_CASE("greedy: ties go to the lowest id") {
  Seq2SeqAttention model = make_model({.vocabulary = 6, .d_model = 3}, 1, 0);
  Decoded decoded = model.greedy_decode(tensor({{3, 4}}), 3);
  CHECK(ids(decoded.tokens) == Ints{0, 0, 0});  // all logits are 0
  model.out.bias.mutable_value().slice(0, 4, 6).fill_(1);
  CHECK(ids(model.greedy_decode(tensor({{3, 4}}), 3).tokens) == Ints{4, 4, 4});
}

TEST_CASE("greedy: a batch without rows") {
  Seq2SeqAttention model = make_model({.vocabulary = 6, .d_model = 3}, 1);
  Decoded decoded = model.greedy_decode(Tensor::zeros({0, 4}, DType::i64), 3);
  CHECK(decoded.tokens.shape() == Shape{0, 0});
  CHECK(decoded.attention.shape() == Shape{0, 0, 4});
  CHECK(decoded.lengths.empty());
}

TEST_CASE("greedy: records nothing within a tape and without one") {
  Seq2SeqAttention model = make_model({.vocabulary = 8, .d_model = 4}, 14, 3);
  Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4});
  REQUIRE(live_nodes() == 0);
  Tensor outside = model.greedy_decode(batch.source, 12).tokens;
  CHECK(live_nodes() == 0);
  Tape tape;
  Var loss = model.loss(batch);
  const int64_t nodes = live_nodes();
  const size_t size = tape.size();
  REQUIRE(nodes > 0);
  Tensor inside = model.greedy_decode(batch.source, 12).tokens;
  CHECK(live_nodes() == nodes);
  CHECK(tape.size() == size);
  CHECK(ids(inside) == ids(outside));
  CHECK(tape.backward(loss).size() == named_parameters(model).size());  // and records again afterwards
}

TEST_CASE("greedy: memory is given back") {
  Seq2SeqAttention model = make_model({.vocabulary = 8, .d_model = 4}, 14, 3);
  Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4});
  const int64_t before = live_bytes();
  for (int i = 0; i < 3; ++i) model.greedy_decode(batch.source, 12);
  CHECK(live_bytes() == before);
}

TEST_CASE("greedy: is deterministic and does not see the targets") {
  Seq2SeqAttention model = make_model({.vocabulary = 6, .d_model = 5, .dtype = DType::f64}, 15, 4);
  Rng rng(2);
  Batch batch = ReversalTask{.min_length = 2, .max_length = 5, .symbols = 3}.batch(40, rng);
  ReversalScore first = evaluate_reversal(model, batch), again = evaluate_reversal(model, batch);
  CHECK(first.token_accuracy == again.token_accuracy);
  CHECK(first.alignment == again.alignment);
  REQUIRE(first.token_accuracy > 0);
  // With other decoder inputs, evaluation is the same; the teacher-forced loss is not.
  Batch noisy = batch;
  noisy.target_in = Tensor::full(batch.target_in.shape(), 3, DType::i64);
  ReversalScore blind = evaluate_reversal(model, noisy);
  CHECK(blind.exact_match == first.exact_match);
  CHECK(blind.token_accuracy == first.token_accuracy);
  CHECK(blind.alignment == first.alignment);
  CHECK(model.loss(noisy).item() != model.loss(batch).item());
}
}

TEST_SUITE("metrics") {
TEST_CASE("metrics: reversal scores of a known decoder") {
  // Writes 3 4 eos for every source and spreads its attention evenly, so the first position counts as looked at.
  Seq2SeqAttention model = chain_model({0, 3, 2, 4, eos_id});
  auto score = [&](const std::vector<Sequence>& sources) {
    std::vector<Sequence> targets;
    for (const Sequence& s : sources) targets.emplace_back(s.rbegin(), s.rend());
    return evaluate_reversal(model, make_batch(sources, targets));
  };
  ReversalScore right = score({{4, 3}, {4, 3}});
  CHECK(right.exact_match == 1);
  CHECK(right.token_accuracy == 1);
  CHECK(right.alignment == .5);  // step 1 should look at position 0, step 0 at position 1

  ReversalScore swapped = score({{3, 4}});  // wanted 4 3 eos: only the end is right
  CHECK(swapped.exact_match == 0);
  CHECK(swapped.token_accuracy == doctest::Approx(1. / 3).epsilon(1e-15));

  ReversalScore too_long = score({{3}});  // wanted 3 eos: cut off by the limit before its end
  CHECK(too_long.exact_match == 0);
  CHECK(too_long.token_accuracy == .5);
  CHECK(too_long.alignment == 1);

  ReversalScore too_short = score({{4, 4, 3}});  // wanted 3 4 4 eos
  CHECK(too_short.exact_match == 0);
  CHECK(too_short.token_accuracy == .5);
  CHECK(too_short.alignment == 1. / 3);

  ReversalScore ended = score({{4, 4, 4, 3}});  // nothing was looked at after the end
  CHECK(ended.alignment == 0);

  ReversalScore mixed = score({{4, 3}, {3}, {3, 4}, {4, 4, 3}});
  CHECK(mixed.exact_match == .25);
  CHECK(mixed.token_accuracy == 7. / 12);  // 3 + 1 + 1 + 2 of 3 + 2 + 3 + 4
  CHECK(mixed.alignment == 4. / 8);
}

TEST_CASE("metrics: reversal scores equal a recount") {
  for (AttentionKind kind : both_kinds) {
    CAPTURE(static_cast<int>(kind));
    auto [model, batch] = varied_decoding(kind, 7);
    int64_t exact = 0, right = 0, tokens = 0, aligned = 0, symbols = 0;
    const CachedVector<int64_t> lengths = row_lengths(batch.source);
    for (int64_t b = 0; b < batch.source.size(0); ++b) {
      const int64_t n = lengths[static_cast<size_t>(b)];
      Ints wanted = ids(batch.source.select(0, b).slice(0, 0, n));
      std::reverse(wanted.begin(), wanted.end());
      wanted.push_back(eos_id);
      NaiveDecoded got = naive_greedy(model, batch.source.slice(0, b, b + 1).slice(1, 0, n), 7);
      exact += got.tokens == wanted;
      tokens += n + 1, symbols += n;
      for (size_t t = 0; t < wanted.size() && t < got.tokens.size(); ++t) right += got.tokens[t] == wanted[t];
      for (size_t t = 0; t + 1 < wanted.size() && t < got.tokens.size(); ++t) {
        aligned += got.looked_at[t] == n - 1 - static_cast<int64_t>(t);
      }
    }
    REQUIRE(batch.target_out.size(1) == 7);
    ReversalScore score = evaluate_reversal(model, batch);
    CHECK(score.exact_match == static_cast<double>(exact) / 24);
    CHECK(score.token_accuracy == static_cast<double>(right) / static_cast<double>(tokens));
    CHECK(score.alignment == static_cast<double>(aligned) / static_cast<double>(symbols));
    CHECK(right > 0);
    CHECK(aligned > 0);
  }
}

TEST_CASE("metrics: reversal scores need a reversal") {
  Seq2SeqAttention model = chain_model({0, 3, 2, 4, eos_id});
  Batch none{Tensor::zeros({0, 3}, DType::i64), Tensor::zeros({0, 4}, DType::i64), Tensor::zeros({0, 4}, DType::i64)};
  CHECK(says(error_of([&] { evaluate_reversal(model, none); }), {"empty"}));
  const std::vector<Sequence> sources = {{3, 4, 3}, {3, 4}}, targets = {{3, 4, 3}, {4}};
  CHECK(says(error_of([&] { evaluate_reversal(model, make_batch(sources, targets)); }), {"row 1"}));
  CHECK(says(error_of([&] { evaluate_reversal(model, make_batch(targets, sources)); }), {"row 1"}));
  Batch rows = make_batch(sources, sources);
  rows.target_out = rows.target_out.slice(0, 0, 1);
  CHECK(error_of([&] { evaluate_reversal(model, rows); }) != "");
}

TEST_CASE("metrics: perplexity sums losses and tokens and takes one exponential") {
  const double a[] = {std::log(2), std::log(2), std::log(8)}, b = std::log(4);
  Perplexity one_batch, two_batches, by_token;
  one_batch.add(a[0] + a[1] + a[2] + b, 4);
  two_batches.add(a[0] + a[1] + a[2], 3);
  two_batches.add(b, 1);
  for (double loss : {a[0], a[1], a[2], b}) by_token.add(loss, 1);
  for (const Perplexity& p : {one_batch, two_batches, by_token}) {
    CHECK(std::abs(p.value() - 3.363585661) <= 1e-9);  // 128^(1/4)
    CHECK(std::abs(p.log_value() - std::log(128) / 4) <= 1e-15);
  }
}

TEST_CASE("metrics: perplexity of a model does not depend on the batches") {
  Seq2SeqAttention model = make_model({.vocabulary = 8, .d_model = 4, .dtype = DType::f64}, 16, 2);
  auto perplexity = [&](const std::vector<Ints>& batches) {
    Perplexity p;
    for (const Ints& order : batches) {
      Batch batch = batch_of(five_pairs, order);
      p.add(model.loss(batch).item() * static_cast<double>(batch.tokens), batch.tokens);
    }
    return p.value();
  };
  const double whole = perplexity({{0, 1, 2, 3, 4}});
  CHECK(std::abs(perplexity({{0}, {1}, {2}, {3}, {4}}) - whole) <= 1e-12 * whole);
  CHECK(std::abs(perplexity({{4, 1}, {3, 2, 0}}) - whole) <= 1e-12 * whole);
}

TEST_CASE("metrics: perplexity that overflows and perplexity of nothing") {
  Perplexity large;
  large.add(7200, 10);
  CHECK(large.value() == inf);
  CHECK(large.log_value() == 720);
  Perplexity below;
  below.add(7080, 10);
  CHECK(std::isfinite(below.value()));
  CHECK(says(error_of([] { Perplexity().value(); }), {"perplexity", "no tokens"}));
  CHECK(says(error_of([&] { large.add(1, -1); }), {"perplexity", "-1"}));
  CHECK(says(error_of([&] { large.add(std::nan(""), 1); }), {"perplexity", "nan"}));
  CHECK(large.log_value() == 720);  // what was refused was not added
}
}

TEST_SUITE("text") {
TEST_CASE("text: batches are padded at the end and shifted by one") {
  const std::vector<Sequence> sources = {{3, 4, 5}, {6}}, targets = {{7}, {8, 9}};
  Batch batch = make_batch(sources, targets);
  CHECK(batch.source.shape() == Shape{2, 3});
  CHECK(ids(batch.source) == Ints{3, 4, 5, 6, pad_id, pad_id});
  CHECK(batch.target_in.shape() == Shape{2, 3});
  CHECK(ids(batch.target_in) == Ints{bos_id, 7, pad_id, bos_id, 8, 9});
  CHECK(ids(batch.target_out) == Ints{7, eos_id, pad_id, 8, 9, eos_id});
  CHECK(batch.tokens == 5);
  Batch none = make_batch({}, {});
  CHECK(none.source.shape() == Shape{0, 0});
  CHECK(none.tokens == 0);
}

TEST_CASE("text: sequences that cannot be batched are named") {
  const std::vector<Sequence> good = {{3, 4}, {5}}, empty = {{3}, {}};
  auto source_error = [&](const std::vector<Sequence>& s) { return error_of([&] { make_batch(s, good); }); };
  auto target_error = [&](const std::vector<Sequence>& t) { return error_of([&] { make_batch(good, t); }); };
  CHECK(source_error(good) == "");
  CHECK(says(source_error(empty), {"source", "row 1", "empty"}));
  CHECK(says(target_error(empty), {"target", "row 1", "empty"}));
  for (int64_t id : {pad_id, bos_id, eos_id, int64_t{-3}}) {
    CAPTURE(id);
    const std::vector<Sequence> bad = {{3, id}, {5}};
    CHECK(says(source_error(bad), {"source", "row 0", std::to_string(id).c_str()}));
    CHECK(says(target_error(bad), {"target", "row 0", std::to_string(id).c_str()}));
  }
  CHECK(says(source_error({{3}}), {"1 sources", "2 targets"}));
}

TEST_CASE("text: row lengths count up to the first pad") {
  CHECK(std::ranges::equal(row_lengths(tensor({{3, 4, 0}, {5, 0, 0}, {6, 7, 8}})), Ints{2, 1, 3}));
  CHECK(std::ranges::equal(row_lengths(tensor({{3, 4, 9}, {0, 9, 9}}), 9), Ints{2, 1}));
  CHECK(std::ranges::equal(row_lengths(tensor({{3, 5}, {4, 0}}).transpose()), Ints{2, 1}));
  CHECK(row_lengths(Tensor::zeros({0, 4}, DType::i64)).empty());
  CHECK(says(error_of([] { row_lengths(tensor({{3, 4}, {0, 0}})); }), {"row 1", "empty"}));
  CHECK(says(error_of([] { row_lengths(Tensor::zeros({2, 0}, DType::i64)); }), {"row 0", "empty"}));
  CHECK(says(error_of([] { row_lengths(tensor({{3, 4, 5}, {3, 0, 5}})); }), {"row 1", "position 1", "at 2"}));
  CHECK(says(error_of([] { row_lengths(tensor({3, 4})); }), {"(B, T)", "(2,)"}));
  CHECK(says(error_of([] { row_lengths(Tensor::ones({2, 2})); }), {"i64", "f32"}));
}

TEST_CASE("text: reversal examples have even lengths and symbols within their bounds") {
  const ReversalTask task;
  CHECK(task.vocabulary() == 20);
  Rng rng(3);
  const int64_t rows = 6000;
  Batch batch = task.batch(rows, rng);
  const CachedVector<int64_t> lengths = row_lengths(batch.source);
  const Ints source = ids(batch.source), in = ids(batch.target_in), out = ids(batch.target_out);
  const int64_t S = batch.source.size(1), T = batch.target_out.size(1);
  REQUIRE(S == 10);
  REQUIRE(T == 11);
  Ints of_length(11), of_symbol(20);
  int64_t tokens = 0, wrong = 0;
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t n = lengths[static_cast<size_t>(b)];
    REQUIRE(n >= 5);
    ++of_length[static_cast<size_t>(n)];
    tokens += n + 1;
    auto at = [&](const Ints& x, int64_t width, int64_t t) { return x[static_cast<size_t>(b * width + t)]; };
    wrong += at(in, T, 0) != bos_id || at(out, T, n) != eos_id;
    for (int64_t t = 0; t < n; ++t) {
      const int64_t id = at(source, S, t);
      REQUIRE(id >= 3);
      REQUIRE(id < 20);
      ++of_symbol[static_cast<size_t>(id)];
      wrong += at(out, T, n - 1 - t) != id || at(in, T, n - t) != id;
    }
    for (int64_t t = n + 1; t < T; ++t) wrong += at(out, T, t) != pad_id || at(in, T, t) != pad_id;
  }
  CHECK(wrong == 0);
  CHECK(batch.tokens == tokens);
  // Counts of independent even draws: mean 1000 and standard deviation 29; mean 2647 and 50.
  for (size_t n = 5; n <= 10; ++n) CHECK(std::abs(static_cast<double>(of_length[n]) - 1000) < 5 * 29);
  const double symbols = static_cast<double>(tokens - rows);
  for (size_t id = 3; id < 20; ++id) CHECK(std::abs(static_cast<double>(of_symbol[id]) - symbols / 17) < 5 * 50);
}

TEST_CASE("text: reversal examples follow from the generator alone") {
  const ReversalTask task{.min_length = 2, .max_length = 4, .symbols = 5};
  Rng a(1), b(1), c(2);
  Batch first = task.batch(30, a), same = task.batch(30, b), other = task.batch(30, c), next = task.batch(30, a);
  CHECK(ids(first.source) == ids(same.source));
  CHECK(ids(first.target_out) == ids(same.target_out));
  CHECK(ids(first.source) != ids(other.source));
  CHECK(ids(first.source) != ids(next.source));
  CHECK(task.vocabulary() == 8);
}

TEST_CASE("text: reversal at the edges of its range") {
  Rng rng(4);
  Batch smallest = ReversalTask{.min_length = 1, .max_length = 1, .symbols = 1}.batch(3, rng);
  CHECK(ids(smallest.source) == Ints{3, 3, 3});
  CHECK(ids(smallest.target_out) == Ints{3, eos_id, 3, eos_id, 3, eos_id});
  CHECK(ReversalTask().batch(0, rng).source.size(0) == 0);
  const Rng::State before = rng.state();
  CHECK(says(error_of([&] { ReversalTask{.min_length = 0}.batch(1, rng); }), {"min length", "0-10"}));
  CHECK(says(error_of([&] { ReversalTask{.min_length = 6, .max_length = 5}.batch(1, rng); }), {"6-5"}));
  CHECK(says(error_of([&] { ReversalTask{.symbols = 0}.batch(1, rng); }), {"0 symbols"}));
  CHECK(says(error_of([&] { ReversalTask().batch(-1, rng); }), {"-1 rows"}));
  CHECK(rng.state() == before);
}
}
