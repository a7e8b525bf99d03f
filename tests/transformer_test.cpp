// B batch, S source time, T target time, d model size, V vocabulary.
#include <tapedeck/models/transformer.h>

#include <cmath>

#include "model_audit.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

TransformerOptions options_of(const ModelSize& size) {
  return {.vocabulary = size.vocabulary,
          .d_model = 2 * size.size,  // a layer norm over two numbers gives signs, with next to no gradient
          .heads = 2,
          .feed_forward = size.size,
          .encoder_layers = 2,
          .decoder_layers = 2,
          .activation = Activation::gelu,
          .dtype = size.dtype};
}

Transformer pre_norm(const ModelSize& size, Rng& rng) { return Transformer(options_of(size), rng); }

Transformer post_norm(const ModelSize& size, Rng& rng) {
  TransformerOptions o = options_of(size);
  o.norm = NormPlace::post;
  o.shared_embedding = false;
  o.tied_output = false;
  return Transformer(o, rng);
}

Transformer mixture(const ModelSize& size, Rng& rng) {
  TransformerOptions o = options_of(size);
  o.encoder_layers = o.decoder_layers = 1;
  o.experts = 3;
  return Transformer(o, rng);
}

Transformer learner(const ModelSize& size, Rng& rng) {
  return Transformer({.vocabulary = size.vocabulary,
                      .d_model = size.size,
                      .heads = 2,
                      .feed_forward = 2 * size.size,
                      .encoder_layers = 1,
                      .decoder_layers = 1,
                      .dtype = size.dtype},
                     rng);
}

Transformer expert_learner(const ModelSize& size, Rng& rng) {
  return Transformer({.vocabulary = size.vocabulary,
                      .d_model = size.size,
                      .heads = 2,
                      .feed_forward = size.size,
                      .encoder_layers = 1,
                      .decoder_layers = 1,
                      .experts = 3,
                      .dtype = size.dtype},
                     rng);
}

}  // namespace

static_assert(SequenceModel<Transformer>);

TEST_SUITE_BEGIN("transformer");

TEST_CASE("transformer: fields and steps and passes") {
  for (auto make : {pre_norm, post_norm, mixture}) {
    audit_fields(make);
    audit_steps(make);
    audit_passes(make);
  }
}

TEST_CASE("transformer: gradients of the whole model with pre-norm") { audit_gradients(pre_norm, {}); }
TEST_CASE("transformer: gradients of the whole model with post-norm") { audit_gradients(post_norm, {}); }
TEST_CASE("transformer: gradients of the whole model with mixtures of experts") { audit_gradients(mixture, {}); }

TEST_CASE("transformer: a row alone is the row in any batch with pre-norm") { audit_rows(pre_norm); }
TEST_CASE("transformer: a row alone is the row in any batch with post-norm") { audit_rows(post_norm); }
TEST_CASE("transformer: a row alone is the row in any batch with mixtures of experts") { audit_rows(mixture); }

TEST_CASE("transformer: a row alone is the row in any batch in f32") {
  audit_rows(pre_norm, DType::f32, 1e-5);
  audit_rows(mixture, DType::f32, 1e-5);
}

TEST_CASE("transformer: it learns to reverse") { audit_learning(learner); }
TEST_CASE("transformer: it learns to reverse with mixtures of experts") {
  audit_learning(expert_learner, {.pass = {.balance = .01}});
}

TEST_CASE("transformer: the layers are put together as in the papers") {
  for (auto make : {pre_norm, post_norm}) {
    const bool pre = make == pre_norm;
    const auto model = made(make, {.vocabulary = 8, .size = 4}, 8, 1.5);
    const Batch batch = batch_of(five_pairs, {2, 4});  // without pads in the source
    auto read = [&](const Embedding& embedding, const Tensor& tokens) {
      const int64_t d = embedding.weight.shape()[1];
      return embedding(tokens) * std::sqrt(static_cast<double>(d)) +
             sinusoidal_positions(0, tokens.size(1), d, DType::f64);
    };
    auto with = [&](const Var& x, const LayerNorm& norm, const std::function<Var(const Var&)>& f) {
      return pre ? x + f(norm(x)) : norm(x + f(x));
    };
    auto forward = [](const auto& layer) {
      return [&](const Var& x) {
        const FeedForward& f = std::get<FeedForward>(layer.feed_forward);
        return f.linear2(gelu(f.linear1(x)));
      };
    };
    Var x = read(model.embed, batch.source);
    for (const auto& layer : model.encoder.layers) {
      x = with(x, layer.norm1, [&](const Var& h) { return layer.self_attn(h, layer.self_attn.project(h)).output; });
      x = with(x, layer.norm2, forward(layer));
    }
    const Var states = pre ? (*model.encoder.norm)(x) : x;
    x = read(pre ? model.embed : *model.target_embed, batch.target_in);
    Var weights;
    for (const auto& layer : model.decoder.layers) {
      x = with(x, layer.norm1, [&](const Var& h) { return layer.self_attn.attend_self(h, {}, true).output; });
      x = with(x, layer.norm2, [&](const Var& h) {
        const MultiHeadResult r = layer.multihead_attn(h, layer.multihead_attn.project(states));
        weights = mean(r.weights, 1);
        return r.output;
      });
      x = with(x, layer.norm3, forward(layer));
    }
    const SequenceOutput output = model.forward(batch.source, batch.target_in);
    CHECK(distance(output.logits.value(), model.out(pre ? (*model.decoder.norm)(x) : x).value()) <= 1e-13);
    CHECK(distance(output.attention.value(), weights.value()) <= 1e-13);
    CHECK(model.encoder.norm.has_value() == pre);
  }
}

TEST_CASE("positions are sines and cosines of any place and size") {
  const Tensor p = sinusoidal_positions(0, 7, 5, DType::f64);
  CHECK(p.shape() == Shape{7, 5});
  for (int64_t t = 0; t < 7; ++t) {
    for (int64_t i = 0; i < 5; ++i) {
      const double angle = static_cast<double>(t) / std::pow(10000., static_cast<double>(i / 2 * 2) / 5);
      CHECK(p.at({t, i}) == doctest::Approx(i % 2 == 0 ? std::sin(angle) : std::cos(angle)).epsilon(1e-14));
    }
  }
  CHECK(same_bits(sinusoidal_positions(4, 2, 5, DType::f64), p.slice(0, 4, 6).clone()));
  CHECK(sinusoidal_positions(100000, 1, 8).at({0, 0}) == doctest::Approx(std::sin(100000.)));
}

TEST_CASE("an untrained transformer guesses and no target is seen before its time") {
  Rng rng(1);
  Transformer model({.vocabulary = 50, .tied_output = false, .dtype = DType::f64}, rng);
  const Batch batch = ReversalTask{.symbols = 47}.batch(16, rng);
  CHECK(model.loss(batch).item() == doctest::Approx(std::log(50.)).epsilon(.1));
  const Tensor before = model.forward(batch.source, batch.target_in).logits.value();
  Tensor changed = batch.target_in.clone();
  for (int64_t b = 0; b < 16; ++b) {
    if (changed.at({b, 3}) != pad_id) changed.set({b, 3}, 3 + (changed.at({b, 3}) == 3));
  }
  const Tensor after = model.forward(batch.source, changed).logits.value();
  CHECK(same_bits(before.slice(1, 0, 3).clone(), after.slice(1, 0, 3).clone()));
  CHECK(distance(before.slice(1, 3, 4), after.slice(1, 3, 4)) > 1e-3);
}

TEST_CASE("transformer: names and shapes of parameters are PyTorch's") {
  Rng rng(1);
  const Transformer model(
      {.vocabulary = 9, .d_model = 8, .heads = 2, .feed_forward = 5, .encoder_layers = 1, .decoder_layers = 1}, rng);
  std::string names;
  for (const NamedParameter& p : all_paths(model)) names += p.name + to_string(p.parameter.shape()) + "\n";
  CHECK(names ==
        "embed.weight(9, 8)\n"
        "encoder.layers.0.self_attn.in_proj_weight(24, 8)\nencoder.layers.0.self_attn.in_proj_bias(24,)\n"
        "encoder.layers.0.self_attn.out_proj.weight(8, 8)\nencoder.layers.0.self_attn.out_proj.bias(8,)\n"
        "encoder.layers.0.linear1.weight(5, 8)\nencoder.layers.0.linear1.bias(5,)\n"
        "encoder.layers.0.linear2.weight(8, 5)\nencoder.layers.0.linear2.bias(8,)\n"
        "encoder.layers.0.norm1.weight(8,)\nencoder.layers.0.norm1.bias(8,)\n"
        "encoder.layers.0.norm2.weight(8,)\nencoder.layers.0.norm2.bias(8,)\n"
        "encoder.norm.weight(8,)\nencoder.norm.bias(8,)\n"
        "decoder.layers.0.self_attn.in_proj_weight(24, 8)\ndecoder.layers.0.self_attn.in_proj_bias(24,)\n"
        "decoder.layers.0.self_attn.out_proj.weight(8, 8)\ndecoder.layers.0.self_attn.out_proj.bias(8,)\n"
        "decoder.layers.0.multihead_attn.in_proj_weight(24, 8)\ndecoder.layers.0.multihead_attn.in_proj_bias(24,)\n"
        "decoder.layers.0.multihead_attn.out_proj.weight(8, 8)\ndecoder.layers.0.multihead_attn.out_proj.bias(8,)\n"
        "decoder.layers.0.linear1.weight(5, 8)\ndecoder.layers.0.linear1.bias(5,)\n"
        "decoder.layers.0.linear2.weight(8, 5)\ndecoder.layers.0.linear2.bias(8,)\n"
        "decoder.layers.0.norm1.weight(8,)\ndecoder.layers.0.norm1.bias(8,)\n"
        "decoder.layers.0.norm2.weight(8,)\ndecoder.layers.0.norm2.bias(8,)\n"
        "decoder.layers.0.norm3.weight(8,)\ndecoder.layers.0.norm3.bias(8,)\n"
        "decoder.norm.weight(8,)\ndecoder.norm.bias(8,)\n"
        "out.weight(9, 8)\nout.bias(9,)\n");
  CHECK(named_parameters(model).size() + 1 == all_paths(model).size());  // out.weight is embed.weight
}

TEST_CASE("transformer: dropout is the pass's") {
  for (bool experts : {false, true}) {
    audit_dropout([=](const ModelSize& size, Rng& rng) {
      TransformerOptions o = options_of(size);
      o.experts = experts ? 3 : 0;
      o.dropout = .2;
      return Transformer(o, rng);
    });
  }
}

TEST_CASE("transformer: scheduled sampling") {
  audit_sampling(pre_norm);
  audit_sampling(post_norm);
  // A mixture routes what is fed, and nothing past the target's end.
  auto model = made(mixture, {.vocabulary = 8, .size = 4}, 6, 3);
  const Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4});
  const Transformer::Output free = model.run(batch.source, batch.target_in, {.teacher_ratio = 0});
  auto decoding = model.begin(batch.source);
  Tensor fed = batch.target_in.select(1, 0);
  for (int64_t t = 0; t < batch.target_in.size(1); ++t) {
    const Tensor logits = decoding->step(fed).logits;
    for (int64_t b = 0; b < 5; ++b) {
      if (batch.target_in.at({b, t}) == pad_id) continue;
      CHECK(distance(free.logits.value().select(0, b).select(0, t), logits.select(0, b)) <= 1e-12);
    }
    fed = argmax(logits).value();
  }
  const Batch padded = batch_of(five_pairs, {0, 1, 2, 3, 4}, 2, 2);
  CHECK(model.run(padded.source, padded.target_in, {.teacher_ratio = 0}).balance.item() ==
        doctest::Approx(free.balance.item()).epsilon(1e-13));
}

TEST_CASE("transformer: a hypothesis of beam search has the log probability that forward gives it") {
  for (auto make : {pre_norm, post_norm, mixture}) {
    auto model = made(make, {.vocabulary = 8, .size = 4}, 7, 2);
    const Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4});
    const auto results =
        beam_search(*model.begin(batch.source), {.max_length = 6, .beam = 4, .n_best = 3, .alpha = .6});
    for (size_t b = 0; b < 5; ++b) {
      REQUIRE(results[b].size() == 3);
      for (const Hypothesis& h : results[b]) {
        Sequence in{bos_id};
        in.insert(in.end(), h.tokens.begin(), h.tokens.end() - 1);
        const Shape row{1, static_cast<int64_t>(h.tokens.size())};
        const int64_t at = static_cast<int64_t>(b);
        const SequenceOutput output = model.forward(batch.source.slice(0, at, at + 1), Tensor::from(in, row));
        const Var log_p = gather(log_softmax(output.logits), 2, unsqueeze(Tensor::from(h.tokens, row), 2));
        CHECK(h.log_p == doctest::Approx(sum(log_p).item()).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("transformer: the balance counts in the loss where the pass asks for it") {
  Rng rng(1);
  const Transformer model = mixture({.vocabulary = 8, .size = 4}, rng);
  const Batch batch = batch_of(five_pairs, {0, 1, 2, 3, 4}), padded = batch_of(five_pairs, {0, 1, 2, 3, 4}, 3, 3);
  const Var balance = model.run(batch.source, batch.target_in).balance;
  CHECK(balance.item() > .5);
  CHECK(model.loss(batch, {.balance = .5}).item() ==
        doctest::Approx(model.loss(batch).item() + .5 * balance.item()).epsilon(1e-14));
  CHECK(model.run(padded.source, padded.target_in).balance.item() == doctest::Approx(balance.item()).epsilon(1e-13));
}

TEST_CASE("transformer: two vocabularies") {
  Rng rng(1);
  const Transformer model({.vocabulary = 8, .shared_embedding = false, .target_vocabulary = 12}, rng);
  CHECK(audit_module([] {
          Rng own(1);
          return Transformer({.vocabulary = 8, .shared_embedding = false, .target_vocabulary = 12}, own);
        }) == "");
  const Batch batch = make_batch(std::vector<Sequence>{{3, 7}}, std::vector<Sequence>{{11, 10, 9}});
  CHECK(model.forward(batch.source, batch.target_in).logits.shape() == Shape{1, 4, 12});
  Tape tape;
  const Gradients g = tape.backward(model.loss(batch));
  CHECK(g.find(model.embed.weight) != nullptr);
  CHECK(g.find(model.out.weight) == g.find(model.target_embed->weight));
}

TEST_CASE("transformer: errors") {
  Rng rng(1);
  CHECK(says(error_of([&] { Transformer({.vocabulary = 8, .d_model = 6, .heads = 4}, rng); }), {"6", "4 heads"}));
  CHECK(says(error_of([&] { Transformer({.vocabulary = 8, .experts = 1}, rng); }), {"experts", "got 1"}));
  CHECK(says(error_of([&] { Transformer({.vocabulary = 8, .decoder_layers = 0}, rng); }), {"decoder layer", "got 0"}));
  CHECK(says(error_of([&] { Transformer({.vocabulary = 8, .target_vocabulary = 9}, rng); }), {"8 and 9", "shared"}));
  const Transformer model({.vocabulary = 8}, rng);
  CHECK(says(error_of([&] { model.forward(tensor({{3, 4}, {0, 0}}), tensor({{1}, {1}})); }), {"row 1"}));
  CHECK(says(error_of([&] { model.begin(tensor({{3, 4}, {0, 0}})); }), {"row 1"}));
  CHECK(says(error_of([&] { model.forward(tensor({{3, 4}}), tensor({{1}, {1}})); }), {"transformer", "(2, 1)"}));
}

TEST_SUITE_END();
