#include <tapedeck/models/translation_study.h>
#include <tapedeck/ops/ops.h>

namespace tapedeck {
namespace {

std::optional<AnyAttention> study_attention(const TranslationStudyOptions& o, Rng& rng) {
  if (o.context == StudyContext::none) return std::nullopt;
  if (o.context == StudyContext::mean) return MeanContext{};
  return ScaledDotProductAttention(o.decoder_size, 2 * o.encoder_size, o.attention_size, rng, o.dtype);
}

class TranslationDecoding final : public Decoding {
 public:
  TranslationDecoding(const TranslationStudy& model, const Tensor& source) : model_(model) {
    NoGrad pause;
    encoded_ = model.encode(source);
  }

  int64_t rows() const override { return encoded_.state.size(0); }

  Step step(const Tensor& tokens) override {
    NoGrad pause;
    auto [logits, weights, state] =
        model_.decode(unsqueeze(model_.tgt_emb(tokens), 1), encoded_.state, encoded_.memory);
    encoded_.state = state;
    return {squeeze(logits, 1).value(), weights.defined() ? squeeze(weights, 1).value() : Tensor(),
            encoded_.memory.mask};
  }

  void select(const Tensor& rows) override {
    NoGrad pause;
    encoded_.memory = select_rows(encoded_.memory, rows);
    encoded_.state = index_select(encoded_.state, 0, rows);
  }

 private:
  const TranslationStudy& model_;
  TranslationStudy::Encoded encoded_;
};

}  // namespace

TranslationStudy::TranslationStudy(const TranslationStudyOptions& o, Rng& rng)
    : src_emb(o.source_vocabulary, o.embedding_size, rng, {.dtype = o.dtype}),
      tgt_emb(o.target_vocabulary, o.embedding_size, rng, {.dtype = o.dtype}),
      encoder(o.embedding_size, o.encoder_size, rng, {.bidirectional = true, .dtype = o.dtype}),
      bridge(2 * o.encoder_size, o.decoder_size, rng, {.dtype = o.dtype}),
      attention(study_attention(o, rng)),
      decoder(o.embedding_size, o.decoder_size, rng, {.dtype = o.dtype}),
      fc_1(o.decoder_size + 2 * o.encoder_size, o.decoder_size, rng, {.dtype = o.dtype}),
      fc_out(o.decoder_size, o.target_vocabulary, rng, {.dtype = o.dtype}),
      pads(o.pads),
      dropout(o.dropout) {
  if (!(dropout >= 0 && dropout <= 1)) fail("translation study: expected 0 <= dropout <= 1, got {}", dropout);
}

TranslationStudy::Encoded TranslationStudy::encode(const Tensor& source, Rng* rng) const {
  Scope scope("encoder");
  const auto lengths = row_lengths(source, pad_id);
  const bool by_length = pads == EncoderPads::by_length;
  Var embedded = tapedeck::dropout(src_emb(source), dropout, rng);
  GRU::Result read = by_length ? encoder(embedded, lengths) : encoder(embedded);
  Var both = cat({select(read.final_state, 0, 0), select(read.final_state, 0, 1)}, 1);
  const Tensor valid = by_length ? valid_positions(lengths, source.size(1)) : Tensor();
  Memory memory = attention ? project(*attention, read.output, valid) : Memory{read.output, read.output, valid};
  return {memory, relu(bridge(both))};
}

TranslationStudy::Steps TranslationStudy::decode(const Var& embedded, const Var& state, const Memory& memory) const {
  Scope scope("decoder");
  const int64_t B = embedded.size(0), T = embedded.size(1);
  const CachedVector<int64_t> all(static_cast<size_t>(B), T);
  GRU::Result written = decoder(embedded, all, unsqueeze(state, 0));
  AttentionResult attended;
  if (attention) {
    attended = attend(*attention, written.output, memory);
  } else {
    attended.context = Tensor::zeros({B, T, memory.values.size(2)}, memory.values.dtype());
  }
  Var logits = fc_out(relu(fc_1(cat({written.output, attended.context}, 2))));
  return {logits, attended.weights, select(written.final_state, 0, 0)};
}

SequenceOutput TranslationStudy::forward(const Tensor& source, const Tensor& target_in,
                                         const TrainingPass& pass) const {
  check_sequences("translation study", source, target_in);
  const int64_t B = target_in.size(0), T = target_in.size(1);
  const FedTokens fed(target_in, pass);
  auto [memory, state] = encode(source, pass.dropout);
  const StepDropout drop({B, T, decoder.input_size()}, dropout, pass.dropout, tgt_emb.weight.dtype());
  Var embedded = drop(tgt_emb(target_in));
  if (fed.forced()) {
    auto [logits, weights, last] = decode(embedded, state, memory);
    return {logits, weights};
  }
  CachedVector<Var> logits, weights;
  for (int64_t t = 0; t < T; ++t) {
    Scope scope("decoder.step", t);
    Var x = t == 0 ? select(embedded, 1, t) : drop(tgt_emb(fed.at(t, [&] { return logits.back(); })), t);
    Steps next = decode(unsqueeze(x, 1), state, memory);
    state = next.state;
    logits.push_back(squeeze(next.logits, 1));
    if (next.weights.defined()) weights.push_back(squeeze(next.weights, 1));
  }
  return {stack(logits, 1), weights.empty() ? Var() : stack(weights, 1)};
}

Var TranslationStudy::loss(const Batch& batch, const TrainingPass& pass) const {
  return target_loss(forward(batch.source, batch.target_in, pass).logits, batch, pass);
}

std::unique_ptr<Decoding> TranslationStudy::begin(const Tensor& source) const {
  return std::make_unique<TranslationDecoding>(*this, source);
}

}  // namespace tapedeck
