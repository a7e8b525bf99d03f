// Encoder-decoder with attention: a bidirectional GRU reads, a GRU decoder writes, and at every step attends to what
// was read (Bahdanau et al. 2015, arXiv:1409.0473; Luong et al. 2015, arXiv:1508.04025).
//
// B batch, S source time, T target time, d model size, h encoder size, V vocabulary.
#pragma once

#include <tapedeck/models/sequence_model.h>
#include <tapedeck/nn/attention.h>
#include <tapedeck/nn/embedding.h>
#include <tapedeck/nn/gru.h>
#include <tapedeck/nn/linear.h>

#include <optional>

namespace tapedeck {

// by_length: the encoder stops at each row's end, so a row alone equals the same row in any batch.
// run_over: pads enter as ordinary steps and do change the backward states (as many tutorials have it).
enum class EncoderPads { by_length, run_over };

// When a step attends, from the state s_{t-1} before it to s_t, reading the token y_{t-1}.
//
// bahdanau: before the cell.   context = attention(s_{t-1});  s_t = cell([embed(y_{t-1}); context], s_{t-1})
//                              logits = out [s_t; context]
// luong: after the cell.       s_t = cell(embed(y_{t-1}), s_{t-1});  context = attention(s_t)
//                              a_t = tanh(W_c [context; s_t]), without bias;  logits = out a_t
//        with input feeding    s_t = cell([embed(y_{t-1}); a_{t-1}], s_{t-1}), a_0 = 0
enum class DecoderOrder { bahdanau, luong };

// Settings of Seq2SeqAttention.
struct Seq2SeqOptions {
  int64_t vocabulary;                                    // V of the source, special ids counted
  int64_t d_model = 32;                                  // of embeddings and decoder states
  AttentionOptions attention = AttentionKind::additive;  // which, and its sizes
  EncoderPads encoder_pads = EncoderPads::by_length;     // see there
  DecoderOrder order = DecoderOrder::bahdanau;           // see there
  bool input_feeding = false;                            // in luong order
  int64_t encoder_size = 0;                              // h, of each direction; 0: d_model
  bool shared_embedding = true;                          // one embedding for source and target
  int64_t target_vocabulary = 0;                         // with separate embeddings; 0: the same as `vocabulary`
  bool tied_output = false;  // in luong order: out.weight is the target's embedding (Press & Wolf 2017)
  double dropout = 0;        // of embeddings, and of what the output layer reads (Zaremba et al. 2014)
  DType dtype = DType::f32;  // of the parameters
};

// The model; see above.
struct Seq2SeqAttention {
  Embedding embed;                        // (V, d); of encoder and decoder if shared; the pad row starts at 0
  std::optional<Embedding> target_embed;  // of the decoder if not
  GRU encoder;                            // d -> 2h, bidirectional
  Linear bridge;                          // 2h -> d
  AnyAttention attention;                 // queries d, keys 2h
  GRUCell decoder_cell;                   // bahdanau: d + 2h -> d; luong: d -> d, or 2d -> d with input feeding
  std::optional<Linear> W_c;              // luong: 2h + d -> d, without bias
  Linear out;                             // bahdanau: d + 2h -> V; luong: d -> V
  EncoderPads encoder_pads;               // see there
  DecoderOrder order;                     // see there
  bool input_feeding;                     // see DecoderOrder
  double dropout;                         // of a training pass

  // Throws on options that do not go together. A tied embedding starts d^(-1/2) times smaller, so that logits do not
  // start large.
  Seq2SeqAttention(const Seq2SeqOptions& options, Rng& rng);

  // What the encoder gives.
  struct Encoded {
    Memory memory;  // encoder states (B, S, 2h), projected for attention, masked at pads
    Var state;      // (B, d) = tanh(bridge [last forward; last backward])
  };
  // source: i64 (B, S), padded at the end. `rng` drops embeddings; null means evaluation. Throws on an empty row.
  Encoded encode(const Tensor& source, Rng* rng = nullptr) const;

  // What one step of the decoder gives.
  struct Step {
    Var logits;       // (B, V)
    Var state;        // (B, d)
    Var weights;      // (B, S)
    Var attentional;  // a_t (B, d) in luong order
  };
  // Step t from the previous tokens (B,), state and, with input feeding, a_{t-1} (undefined: zeros). See DecoderOrder.
  Step decode_step(const Tensor& previous, Operand state, const Memory& memory, int64_t t = 0,
                   const Var& attentional = {}) const;

  // What forward() gives.
  using Output = SequenceOutput;
  // Teacher forcing, or what the pass says.
  Output forward(const Tensor& source, const Tensor& target_in, const TrainingPass& pass = {}) const;

  // Mean cross entropy over the batch's target tokens, pads ignored.
  Var loss(const Batch& batch, const TrainingPass& pass = {}) const;

  // For the searches of search.h.
  std::unique_ptr<Decoding> begin(const Tensor& source) const;

  // greedy_decode of search.h from the start. Records nothing.
  Decoded greedy_decode(const Tensor& source, int64_t max_length) const;

  // What the decoder reads its tokens by.
  const Embedding& target_embedding() const { return target_embed ? *target_embed : embed; }

  static void fields(auto& self, auto&& f) {
    f("embed", self.embed), f("target_embed", self.target_embed), f("encoder", self.encoder), f("bridge", self.bridge);
    f("attention", self.attention), f("decoder_cell", self.decoder_cell), f("W_c", self.W_c), f("out", self.out);
  }
};

}  // namespace tapedeck
