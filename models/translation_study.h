// The model of a study of translation with and without attention (Multi30k, German to English): a bidirectional GRU
// reads, a GRU writes from the embedding alone, and what is attended to enters only the output.
//
//   s_0 = relu(bridge [last forward; last backward])     B batch, S source time, T target time
//   s_t = decoder(tgt_emb(y_{t-1}), s_{t-1})             E embedding size, h encoder size, H decoder size
//   c_t = attention(s_t)                                 V vocabulary of the target
//   logits = fc_out relu(fc_1 [s_t; c_t])
#pragma once

#include <tapedeck/models/seq2seq.h>

namespace tapedeck {

// What the output is told of the source: a scaled dot-product attention over the encoder states, their mean, or zeros.
enum class StudyContext { scaled_dot, mean, none };

// Settings of TranslationStudy.
struct TranslationStudyOptions {
  int64_t source_vocabulary, target_vocabulary;     // special ids counted
  int64_t embedding_size = 32;                      // E
  int64_t encoder_size = 32;                        // h, of each direction
  int64_t decoder_size = 32;                        // H
  int64_t attention_size = 32;                      // of queries and keys
  StudyContext context = StudyContext::scaled_dot;  // see there
  // run_over: pads are read like tokens, and attended to; so the study was run. by_length: they are not.
  EncoderPads pads = EncoderPads::by_length;
  double dropout = 0;  // of embeddings
  DType dtype = DType::f32;
};

// Parameters have the names of the study's PyTorch model, whose files load here.
struct TranslationStudy {
  Embedding src_emb, tgt_emb;             // (source V, E), (V, E); pad rows are like others
  GRU encoder;                            // E -> 2h, bidirectional
  Linear bridge;                          // 2h -> H
  std::optional<AnyAttention> attention;  // queries H, keys 2h; none: zeros
  GRU decoder;                            // E -> H
  Linear fc_1, fc_out;                    // H + 2h -> H, H -> V
  EncoderPads pads;                       // see there
  double dropout;                         // of a training pass

  // Throws on a dropout outside 0..1.
  TranslationStudy(const TranslationStudyOptions& options, Rng& rng);

  // What the encoder gives.
  struct Encoded {
    Memory memory;  // encoder states (B, S, 2h), as the attention needs them
    Var state;      // s_0, (B, H)
  };
  // source: i64 (B, S), padded at the end. `rng` drops embeddings; null means evaluation. Throws on an empty row.
  Encoded encode(const Tensor& source, Rng* rng = nullptr) const;

  // What some steps of the decoder give.
  struct Steps {
    Var logits;   // (B, T, V)
    Var weights;  // (B, T, S); undefined without context
    Var state;    // s_T, (B, H)
  };
  // T steps from embeddings (B, T, E) and the state before the first.
  Steps decode(const Var& embedded, const Var& state, const Memory& memory) const;

  // Teacher forcing, or what the pass says. Attention (B, T, S) is undefined without context.
  SequenceOutput forward(const Tensor& source, const Tensor& target_in, const TrainingPass& pass = {}) const;

  // Mean cross entropy over the batch's target tokens, pads ignored.
  Var loss(const Batch& batch, const TrainingPass& pass = {}) const;

  // For the searches of search.h.
  std::unique_ptr<Decoding> begin(const Tensor& source) const;

  static void fields(auto& self, auto&& f) {
    f("src_emb", self.src_emb), f("tgt_emb", self.tgt_emb), f("encoder", self.encoder), f("bridge", self.bridge);
    f("attention", self.attention), f("decoder", self.decoder), f("fc_1", self.fc_1), f("fc_out", self.fc_out);
  }
};

}  // namespace tapedeck
