#include <tapedeck/models/seq2seq_plain.h>
#include <tapedeck/ops/ops.h>

#include <algorithm>

namespace tapedeck {
namespace {

template <class Cell>
typename Cell::LayerOptions layer_options(const PlainSeq2SeqOptions& o) {
  typename Cell::LayerOptions options;
  options.layers = o.layers;
  options.dropout = o.dropout;
  options.dtype = o.dtype;
  return options;
}

int64_t target_vocabulary(const PlainSeq2SeqOptions& o) {
  return checked_target_vocabulary("seq2seq", o.vocabulary, o.target_vocabulary, o.shared_embedding);
}

template <class Make>
auto made_if(bool wanted, Make make) {
  return wanted ? std::optional(make()) : std::nullopt;
}

// States (L, B, d) of the rows chosen.
Var select_rows(const Var& state, const Tensor& rows) { return index_select(state, 1, rows); }
LSTMState select_rows(const LSTMState& state, const Tensor& rows) {
  return {index_select(state.h, 1, rows), index_select(state.c, 1, rows)};
}

// A state whose output is h (L, B, d).
template <class State>
State state_from(const Var& h) {
  if constexpr (std::same_as<State, LSTMState>) {
    return {h, Tensor::zeros(h.shape(), h.dtype())};
  } else {
    return h;
  }
}

// Every row's tokens in reverse; pads stay at the end.
Tensor reversed(const Tensor& source, std::span<const int64_t> lengths) {
  Tensor result = source.clone();
  int64_t* row = result.mutable_data<int64_t>();
  for (int64_t n : lengths) {
    std::reverse(row, row + n);
    row += result.size(1);
  }
  return result;
}

template <class Cell>
class PlainDecoding final : public Decoding {
 public:
  PlainDecoding(const Seq2Seq<Cell>& model, const Tensor& source) : model_(model) {
    NoGrad pause;
    encoded_ = model.encode(source);
    rows_ = source.size(0);
  }

  int64_t rows() const override { return rows_; }

  Step step(const Tensor& tokens) override {
    NoGrad pause;
    auto [features, state] =
        model_.decode(unsqueeze(model_.target_embedding()(tokens), 1), encoded_.state, encoded_.context);
    encoded_.state = state;
    return {model_.out(squeeze(features, 1)).value(), {}};
  }

  void select(const Tensor& rows) override {
    NoGrad pause;
    encoded_.state = select_rows(encoded_.state, rows);
    if (encoded_.context.defined()) encoded_.context = index_select(encoded_.context, 0, rows);
    rows_ = rows.numel();
  }

 private:
  const Seq2Seq<Cell>& model_;
  typename Seq2Seq<Cell>::Encoded encoded_;
  int64_t rows_ = 0;
};

}  // namespace

template <class Cell>
Seq2Seq<Cell>::Seq2Seq(const PlainSeq2SeqOptions& o, Rng& rng)
    : embed(o.vocabulary, o.d_model, rng, {.padding_idx = pad_id, .dtype = o.dtype}),
      target_embed(made_if(
          !o.shared_embedding,
          [&] { return Embedding(target_vocabulary(o), o.d_model, rng, {.padding_idx = pad_id, .dtype = o.dtype}); })),
      encoder(o.d_model, o.d_model, rng, layer_options<Cell>(o)),
      context(made_if(o.context == FixedContext::every_step,
                      [&] { return Linear(o.d_model, o.d_model, rng, {.dtype = o.dtype}); })),
      initial(made_if(o.context == FixedContext::every_step,
                      [&] { return Linear(o.d_model, o.layers * o.d_model, rng, {.dtype = o.dtype}); })),
      decoder(context ? 2 * o.d_model : o.d_model, o.d_model, rng, layer_options<Cell>(o)),
      out(context ? 3 * o.d_model : o.d_model, target_vocabulary(o), rng, {.dtype = o.dtype}),
      reverse_source(o.reverse_source),
      dropout(o.dropout) {}

template <class Cell>
auto Seq2Seq<Cell>::encode(const Tensor& source, Rng* rng) const -> Encoded {
  Scope scope("encoder");
  const auto lengths = row_lengths(source, pad_id);
  Var embedded = tapedeck::dropout(embed(reverse_source ? reversed(source, lengths) : source), dropout, rng);
  auto read = encoder(embedded, lengths, rng);
  if (!context) return {read.final_state, {}};
  Var c = tanh((*context)(output_of(encoder.last(read))));  // (B, d)
  const int64_t B = source.size(0), d = encoder.hidden_size(), L = static_cast<int64_t>(decoder.cells.size());
  Var start = permute(reshape(tanh((*initial)(c)), {B, L, d}), {1, 0, 2});
  return {state_from<State>(start), c};
}

template <class Cell>
auto Seq2Seq<Cell>::decode(const Var& embedded, const State& state, const Var& c, Rng* rng) const -> Steps {
  Scope scope("decoder");
  const int64_t B = embedded.size(0), T = embedded.size(1);
  const CachedVector<int64_t> all(static_cast<size_t>(B), T);
  if (!c.defined()) {
    auto result = decoder(embedded, all, state, rng);
    return {result.output, result.final_state};
  }
  Var every = expand(unsqueeze(c, 1), {B, T, c.size(1)});
  auto result = decoder(cat({embedded, every}, 2), all, state, rng);
  return {cat({result.output, embedded, every}, 2), result.final_state};
}

template <class Cell>
SequenceOutput Seq2Seq<Cell>::forward(const Tensor& source, const Tensor& target_in, const TrainingPass& pass) const {
  check_sequences("seq2seq", source, target_in);
  const int64_t B = target_in.size(0), T = target_in.size(1);
  const FedTokens fed(target_in, pass);
  auto [state, c] = encode(source, pass.dropout);
  const StepDropout drop_embedded({B, T, embed.weight.shape()[1]}, dropout, pass.dropout, embed.weight.dtype());
  const StepDropout drop_features({B, T, out.weight.shape()[1]}, dropout, pass.dropout, embed.weight.dtype());
  Var embedded = drop_embedded(target_embedding()(target_in));
  if (fed.forced()) return {out(drop_features(decode(embedded, state, c, pass.dropout).features)), {}};
  CachedVector<Var> features;
  for (int64_t t = 0; t < T; ++t) {
    Scope scope("decoder.step", t);
    Var x = select(embedded, 1, t);
    if (t > 0) {
      Tensor own = fed.at(t, [&] { return out(drop_features(features.back(), t - 1)); });
      x = drop_embedded(target_embedding()(own), t);
    }
    Steps next = decode(unsqueeze(x, 1), state, c, pass.dropout);
    state = next.state;
    features.push_back(squeeze(next.features, 1));
  }
  return {out(drop_features(stack(features, 1))), {}};
}

template <class Cell>
Var Seq2Seq<Cell>::loss(const Batch& batch, const TrainingPass& pass) const {
  return target_loss(forward(batch.source, batch.target_in, pass).logits, batch, pass);
}

template <class Cell>
std::unique_ptr<Decoding> Seq2Seq<Cell>::begin(const Tensor& source) const {
  return std::make_unique<PlainDecoding<Cell>>(*this, source);
}

template struct Seq2Seq<RNNCell>;
template struct Seq2Seq<GRUCell>;
template struct Seq2Seq<LSTMCell>;

}  // namespace tapedeck
