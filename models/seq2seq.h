// Encoder-decoder with attention: a bidirectional GRU reads, a GRU decoder writes, and at every step attends to what
// was read (Bahdanau et al. 2015, arXiv:1409.0473).
//
// B batch, S source time, T target time, d model size, V vocabulary.
#pragma once

#include <tapedeck/models/sequence_model.h>
#include <tapedeck/nn/attention.h>
#include <tapedeck/nn/embedding.h>
#include <tapedeck/nn/gru.h>
#include <tapedeck/nn/linear.h>

#include <variant>

namespace tapedeck {

enum class AttentionKind { additive, dot };

// by_length: the encoder stops at each row's end, so a row alone equals the same row in any batch.
// run_over: pads enter as zero embeddings and do change the backward states (as many tutorials have it). Attention is
// masked in both.
enum class EncoderPads { by_length, run_over };

struct Seq2SeqOptions {
  int64_t vocabulary;
  int64_t d_model = 32;
  AttentionKind attention = AttentionKind::additive;
  EncoderPads encoder_pads = EncoderPads::by_length;
  DType dtype = DType::f32;
};

struct Seq2SeqAttention {
  Embedding embed;  // (V, d), shared by encoder and decoder; the pad row stays 0
  GRU encoder;      // d -> 2d, bidirectional
  Linear bridge;    // 2d -> d
  AnyAttention attention;
  GRUCell decoder_cell;  // [embedding; context] 3d -> d
  Linear out;            // [state; context] 3d -> V
  EncoderPads encoder_pads;

  Seq2SeqAttention(const Seq2SeqOptions& options, Rng& rng);

  struct Encoded {
    Memory memory;  // encoder states (B, S, 2d), projected for attention, masked at pads
    Var state;      // (B, d) = tanh(bridge [last forward; last backward])
  };
  // source: i64 (B, S), padded at the end. Throws on an empty row.
  Encoded encode(const Tensor& source) const;

  struct Step {
    Var logits;   // (B, V)
    Var state;    // (B, d)
    Var weights;  // (B, S)
  };
  // One step from the previous tokens (B,) and state:
  //   context, weights = attention(state);  state' = cell([embed(y); context], state);  logits = out [state'; context]
  Step decode_step(const Tensor& previous, Operand state, const Memory& memory) const;

  using Output = SequenceOutput;
  // Teacher forcing, or what the pass says.
  Output forward(const Tensor& source, const Tensor& target_in, const TrainingPass& pass = {}) const;

  // Mean cross entropy over the batch's target tokens, pads ignored.
  Var loss(const Batch& batch, const TrainingPass& pass = {}) const;

  // For the searches of search.h.
  std::unique_ptr<Decoding> begin(const Tensor& source) const;

  // greedy_decode of search.h from the start. Records nothing.
  Decoded greedy_decode(const Tensor& source, int64_t max_length) const;

  static void fields(auto& self, auto&& f) {
    f("embed", self.embed), f("encoder", self.encoder), f("bridge", self.bridge), f("attention", self.attention);
    f("decoder_cell", self.decoder_cell), f("out", self.out);
  }
};

}  // namespace tapedeck
