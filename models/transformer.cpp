#include <tapedeck/models/transformer.h>
#include <tapedeck/ops/ops.h>

#include <cmath>

namespace tapedeck {
namespace {

std::variant<FeedForward, MixtureOfExperts> make_feed_forward(const TransformerOptions& o, Rng& rng) {
  const FeedForwardOptions options{.activation = o.activation, .dropout = o.dropout, .dtype = o.dtype};
  if (o.experts == 0) return FeedForward(o.d_model, o.feed_forward, rng, options);
  return MixtureOfExperts(o.d_model, o.feed_forward, o.experts, rng, options);
}

MultiHeadAttention make_attention(const TransformerOptions& o, Rng& rng) {
  return MultiHeadAttention(o.d_model, o.heads, rng, {.dropout = o.dropout, .dtype = o.dtype});
}

int64_t target_vocabulary(const TransformerOptions& o) {
  return o.target_vocabulary == 0 ? o.vocabulary : o.target_vocabulary;
}

Embedding make_embedding(int64_t vocabulary, const TransformerOptions& o, Rng& rng) {
  Embedding embedding(vocabulary, o.d_model, rng, {.padding_idx = pad_id, .dtype = o.dtype});
  embedding.weight.mutable_value().mul_(1 / std::sqrt(static_cast<double>(o.d_model)));
  return embedding;
}

LayerNorm make_norm(const TransformerOptions& o) { return LayerNorm(o.d_model, {.dtype = o.dtype}); }

// What all layers of one run share.
struct Run {
  const Transformer& model;
  Rng* rng;      // of dropout; null: none
  Tensor valid;  // (B, T): which positions are tokens; undefined: all
  std::vector<Var> balances = {};

  // Adds f to the stream, with its norm before or behind.
  template <class F>
  Var add(const Var& x, const LayerNorm& norm, const F& f) const {
    if (model.norm == NormPlace::pre) return x + dropout(f(norm(x)), model.dropout, rng);
    return norm(x + dropout(f(x), model.dropout, rng));
  }

  Var feed_forward(const std::variant<FeedForward, MixtureOfExperts>& layer, const Var& x) {
    if (const FeedForward* plain = std::get_if<FeedForward>(&layer)) return (*plain)(x, rng);
    const MixtureResult r = std::get<MixtureOfExperts>(layer)(x, valid, rng);
    balances.push_back(r.balance);
    return r.output;
  }

  // ids (B, T), the first of them at position `first`.
  Var embed(const Embedding& embedding, const Tensor& ids, int64_t first) const {
    const int64_t d = embedding.weight.shape()[1];
    const Var scaled = embedding(ids) * std::sqrt(static_cast<double>(d));
    return dropout(scaled + sinusoidal_positions(first, ids.size(1), d, scaled.dtype()), model.dropout, rng);
  }

  // (B, S, d)
  Var encode(const Tensor& source) {
    Scope scope("encoder");
    Var x = embed(model.embed, source, 0);
    for (size_t i = 0; i < model.encoder.layers.size(); ++i) {
      Scope layer_scope("layer", static_cast<int64_t>(i));
      const TransformerEncoderLayer& layer = model.encoder.layers[i];
      x = add(x, layer.norm1, [&](const Var& h) { return layer.self_attn.attend_self(h, valid, false, rng).output; });
      x = add(x, layer.norm2, [&](const Var& h) { return feed_forward(layer.feed_forward, h); });
    }
    return model.encoder.norm ? (*model.encoder.norm)(x) : x;
  }

  struct Decoded {
    Var logits, attention;
  };
  // ids (B, T): all of a target, or, with caches, the tokens after those in the caches.
  Decoded decode(const Tensor& ids, const std::vector<Memory>& memories, std::vector<AttentionCache>* caches) {
    Scope scope("decoder");
    Var x = embed(model.target_embed ? *model.target_embed : model.embed, ids, caches ? caches->front().size() : 0);
    Var weights;
    for (size_t i = 0; i < model.decoder.layers.size(); ++i) {
      Scope layer_scope("layer", static_cast<int64_t>(i));
      const TransformerDecoderLayer& layer = model.decoder.layers[i];
      x = add(x, layer.norm1, [&](const Var& h) {
        return caches ? layer.self_attn.attend_self(h, (*caches)[i]).output
                      : layer.self_attn.attend_self(h, {}, true, rng).output;
      });
      x = add(x, layer.norm2, [&](const Var& h) {
        const MultiHeadResult r = layer.multihead_attn(h, memories[i], rng);
        if (i + 1 == model.decoder.layers.size()) weights = r.averaged();
        return r.output;
      });
      x = add(x, layer.norm3, [&](const Var& h) { return feed_forward(layer.feed_forward, h); });
    }
    return {model.out(model.decoder.norm ? (*model.decoder.norm)(x) : x), weights};
  }
};

// What each decoder layer looks at.
std::vector<Memory> project(const Transformer& model, const Var& states, const Tensor& valid) {
  std::vector<Memory> memories;
  for (const TransformerDecoderLayer& layer : model.decoder.layers) {
    memories.push_back(layer.multihead_attn.project(states, valid));
  }
  return memories;
}

class TransformerDecoding final : public Decoding {
 public:
  TransformerDecoding(const Transformer& model, const Tensor& source)
      : model_(model), rows_(source.size(0)), caches_(model.decoder.layers.size()) {
    NoGrad pause;
    const Tensor valid = valid_positions(row_lengths(source, pad_id), source.size(1));
    memories_ = project(model, Run{model, nullptr, valid}.encode(source), valid);
  }

  int64_t rows() const override { return rows_; }

  Step step(const Tensor& tokens) override {
    NoGrad pause;
    const Tensor ids = tokens.unsqueeze(1);
    const Run::Decoded next = Run{model_, nullptr, {}}.decode(ids, memories_, &caches_);
    return {next.logits.value().select(1, 0), next.attention.value().select(1, 0)};
  }

  void select(const Tensor& rows) override {
    NoGrad pause;
    for (Memory& m : memories_) {
      m.keys = index_select(m.keys, 0, rows);
      m.values = index_select(m.values, 0, rows);
      m.mask = index_select(m.mask, 0, rows).value();
    }
    for (AttentionCache& cache : caches_) cache.select(rows);
    rows_ = rows.numel();
  }

 private:
  const Transformer& model_;
  int64_t rows_;
  std::vector<Memory> memories_;
  std::vector<AttentionCache> caches_;
};

}  // namespace

Tensor sinusoidal_positions(int64_t first, int64_t count, int64_t size, DType dtype) {
  if (count < 0 || size < 1) fail("positions: expected count >= 0 and size >= 1, got {} and {}", count, size);
  Tensor result = Tensor::empty({count, size}, DType::f64);
  double* p = result.mutable_data<double>();
  std::vector<double> rates;
  for (int64_t i = 0; i < size; ++i) {
    rates.push_back(std::pow(10000., -static_cast<double>(i - i % 2) / static_cast<double>(size)));
  }
  for (int64_t t = first; t < first + count; ++t) {
    for (int64_t i = 0; i < size; ++i) {
      const double angle = static_cast<double>(t) * rates[static_cast<size_t>(i)];
      *p++ = i % 2 == 0 ? std::sin(angle) : std::cos(angle);
    }
  }
  return result.to(dtype);
}

TransformerEncoderLayer::TransformerEncoderLayer(const TransformerOptions& o, Rng& rng)
    : self_attn(make_attention(o, rng)),
      feed_forward(make_feed_forward(o, rng)),
      norm1(make_norm(o)),
      norm2(make_norm(o)) {}

TransformerDecoderLayer::TransformerDecoderLayer(const TransformerOptions& o, Rng& rng)
    : self_attn(make_attention(o, rng)),
      multihead_attn(make_attention(o, rng)),
      feed_forward(make_feed_forward(o, rng)),
      norm1(make_norm(o)),
      norm2(make_norm(o)),
      norm3(make_norm(o)) {}

Transformer::Transformer(const TransformerOptions& o, Rng& rng)
    : embed(make_embedding(o.vocabulary, o, rng)),
      target_embed(o.shared_embedding ? std::nullopt : std::optional(make_embedding(target_vocabulary(o), o, rng))),
      encoder(o.encoder_layers, o, rng),
      decoder(o.decoder_layers, o, rng),
      out(o.d_model, target_vocabulary(o), rng, {.dtype = o.dtype}),
      norm(o.norm),
      dropout(o.dropout) {
  if (o.decoder_layers < 1) fail("transformer: expected at least one decoder layer, got {}", o.decoder_layers);
  if (o.shared_embedding && target_vocabulary(o) != o.vocabulary) {
    fail("transformer: one embedding serves one vocabulary, got {} and {}; use .shared_embedding = false", o.vocabulary,
         o.target_vocabulary);
  }
  if (o.tied_output) out.weight = target_embed ? target_embed->weight : embed.weight;
}

Transformer::Output Transformer::run(const Tensor& source, const Tensor& target_in, const TrainingPass& pass) const {
  check_sequences("transformer", source, target_in);
  Tensor ids = target_in;
  if (const FedTokens fed(target_in, pass); !fed.forced()) {
    const std::unique_ptr<Decoding> decoding = begin(source);
    std::vector<Var> steps;
    for (int64_t t = 0; t < target_in.size(1); ++t) {
      steps.push_back(fed.at(t, [&] { return Var(decoding->step(steps.back().value()).logits); }));
    }
    ids = stack(steps, 1).value();
  }
  const Tensor valid = valid_positions(row_lengths(source, pad_id), source.size(1));
  Run reading{*this, pass.dropout, valid}, writing{*this, pass.dropout, (Var(target_in) != pad_id).value()};
  const Var states = reading.encode(source);
  const Run::Decoded decoded = writing.decode(ids, project(*this, states, valid), nullptr);
  Output output{decoded.logits, decoded.attention, {}};
  std::vector<Var> balances = reading.balances;
  balances.insert(balances.end(), writing.balances.begin(), writing.balances.end());
  if (!balances.empty()) output.balance = mean(stack(balances, 0));
  return output;
}

SequenceOutput Transformer::forward(const Tensor& source, const Tensor& target_in, const TrainingPass& pass) const {
  const Output output = run(source, target_in, pass);
  return {output.logits, output.attention};
}

Var Transformer::loss(const Batch& batch, const TrainingPass& pass) const {
  const Output output = run(batch.source, batch.target_in, pass);
  const Var loss = target_loss(output.logits, batch, pass);
  return pass.balance != 0 && output.balance.defined() ? loss + output.balance * pass.balance : loss;
}

std::unique_ptr<Decoding> Transformer::begin(const Tensor& source) const {
  return std::make_unique<TransformerDecoding>(*this, source);
}

}  // namespace tapedeck
