// Encoder-decoder without attention, of any recurrent cell: all that the decoder knows of the source is one state.
//
// B batch, S source time, T target time, d model size, V vocabulary, L layers.
#pragma once

#include <tapedeck/models/sequence_model.h>
#include <tapedeck/nn/embedding.h>
#include <tapedeck/nn/gru.h>
#include <tapedeck/nn/linear.h>
#include <tapedeck/nn/lstm.h>
#include <tapedeck/nn/rnn.h>

#include <optional>

namespace tapedeck {

// How the decoder gets at the source, whose encoder ends in the states h (an LSTM's with its cells):
//
// initial_state: the decoder starts from h, all layers, and is told nothing more (Sutskever et al. 2014,
//   arXiv:1409.3215).     s_t = decoder(embed(y_{t-1}), s_{t-1}), s_0 = h;  logits = out s_t
// every_step: it reads a context at every step, and so does its output (Cho et al. 2014, arXiv:1406.1078, whose output
//   layer has a maxout before the product).   c = tanh(context h_last),  s_0 = tanh(initial c), an LSTM's cells 0
//   s_t = decoder([embed(y_{t-1}); c], s_{t-1});  logits = out [s_t; embed(y_{t-1}); c]
enum class FixedContext { initial_state, every_step };

// Settings of Seq2Seq.
struct PlainSeq2SeqOptions {
  int64_t vocabulary;                                  // V, special ids counted
  int64_t d_model = 32;                                // of embeddings and states
  int64_t layers = 1;                                  // of encoder and decoder
  FixedContext context = FixedContext::initial_state;  // see there
  bool reverse_source = false;    // the encoder reads each row from its last token to its first (Sutskever et al.)
  bool shared_embedding = true;   // one embedding for source and target
  int64_t target_vocabulary = 0;  // with separate embeddings; 0: the same as `vocabulary`
  double dropout = 0;             // of embeddings, between layers, and of what the output layer reads
  DType dtype = DType::f32;       // of the parameters
};

// For RNNCell, GRUCell and LSTMCell. Rows end at their own length: a row alone equals the same row in any batch.
template <class Cell>
struct Seq2Seq {
  // The cell's: a Var, or a struct of such.
  using State = typename Cell::State;

  Embedding embed;                        // (V, d); of encoder and decoder if shared; the pad row starts at 0
  std::optional<Embedding> target_embed;  // of the decoder if not
  Recurrent<Cell> encoder;                // d -> d
  std::optional<Linear> context;          // every_step: d -> d
  std::optional<Linear> initial;          // every_step: d -> L d, the layers one after the other
  Recurrent<Cell> decoder;                // d -> d; every_step: 2d -> d
  Linear out;                             // d -> V; every_step: 3d -> V
  bool reverse_source;                    // see the options
  double dropout;                         // of a training pass

  // Throws on options that do not go together.
  Seq2Seq(const PlainSeq2SeqOptions& options, Rng& rng);

  // What the encoder gives.
  struct Encoded {
    State state;  // (L, B, d): what the decoder starts from
    Var context;  // c (B, d); undefined without
  };
  // source: i64 (B, S), padded at the end. `rng` drops; null means evaluation. Throws on an empty row.
  Encoded encode(const Tensor& source, Rng* rng = nullptr) const;

  // What some steps of the decoder give.
  struct Steps {
    Var features;  // what the output layer reads: (B, T, d) or (B, T, 3d)
    State state;   // (L, B, d), after the last
  };
  // T steps of the decoder, from embeddings (B, T, d) and the state before the first.
  Steps decode(const Var& embedded, const State& state, const Var& context, Rng* rng = nullptr) const;

  // Teacher forcing, or what the pass says. There is no attention.
  SequenceOutput forward(const Tensor& source, const Tensor& target_in, const TrainingPass& pass = {}) const;

  // Mean cross entropy over the batch's target tokens, pads ignored.
  Var loss(const Batch& batch, const TrainingPass& pass = {}) const;

  // For the searches of search.h.
  std::unique_ptr<Decoding> begin(const Tensor& source) const;

  // What the decoder reads its tokens by.
  const Embedding& target_embedding() const { return target_embed ? *target_embed : embed; }

  static void fields(auto& self, auto&& f) {
    f("embed", self.embed), f("target_embed", self.target_embed), f("encoder", self.encoder);
    f("context", self.context), f("initial", self.initial), f("decoder", self.decoder), f("out", self.out);
  }
};

}  // namespace tapedeck
