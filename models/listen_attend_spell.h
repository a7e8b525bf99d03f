// Listen, attend and spell (Chan et al. 2015, arXiv:1508.01211): a pyramidal LSTM listens, a decoder of LSTMs attends
// to its few outputs and spells. Written for speech; here it reads symbols.
//
// B batch, S source time, S' = ceil(S / 2^halvings), T target time, d model size, V vocabulary.
#pragma once

#include <tapedeck/models/sequence_model.h>
#include <tapedeck/nn/attention.h>
#include <tapedeck/nn/embedding.h>
#include <tapedeck/nn/linear.h>
#include <tapedeck/nn/pyramidal_lstm.h>

namespace tapedeck {

// Settings of ListenAttendSpell.
struct ListenAttendSpellOptions {
  int64_t vocabulary;          // V, special ids counted
  int64_t d_model = 32;        // d, of embeddings and states
  int64_t halvings = 2;        // of the time axis, >= 1
  int64_t decoder_layers = 2;  // >= 1
  double dropout = 0;          // between layers
  DType dtype = DType::f32;    // of the parameters
};

// The model; see above.
struct ListenAttendSpell {
  Embedding embed;                // (V, d), shared by encoder and decoder
  PyramidalLSTM encoder;          // d -> 2d
  AdditiveAttention attention;    // queries d, keys 2d
  std::vector<LSTMCell> decoder;  // the first reads [embedding; context] 3d, the others the layer below
  Linear out;                     // [state; context] 3d -> V
  double dropout;                 // in training, between layers

  // What the decoder hands from step to step.
  struct State {
    CachedVector<LSTMState> layers;  // (B, d) each
    Var context;                     // (B, 2d)

    // Its rows, i64 (M,).
    friend State select_rows(const State& state, const Tensor& rows);
  };

  // Throws on halvings, layers and dropout outside their range.
  ListenAttendSpell(const ListenAttendSpellOptions& options, Rng& rng);

  // What the encoder gives.
  struct Encoded {
    Memory memory;  // encoder outputs (B, S', 2d)
    State state;    // zeros
  };
  // source: i64 (B, S), padded at the end. Throws on an empty row.
  Encoded encode(const Tensor& source, Rng* rng = nullptr) const;

  // What a step of the decoder gives.
  struct Advanced {
    State state;   // for the next step
    Var features;  // (B, 3d), what the output layer reads
    Var weights;   // (B, S')
  };
  // One step from the embedded token x (B, d):
  //   s_t = LSTMs([x; context_t-1], s_t-1);   context_t, weights = attention(s_t);   features = [s_t; context_t]
  Advanced advance(const Var& x, const State& state, const Memory& memory, Rng* rng = nullptr) const;

  // See SequenceModel; attention is (B, T, S').
  SequenceOutput forward(const Tensor& source, const Tensor& target_in, const TrainingPass& pass = {}) const;
  Var loss(const Batch& batch, const TrainingPass& pass = {}) const;
  std::unique_ptr<Decoding> begin(const Tensor& source) const;

  static void fields(auto& self, auto&& f) {
    f("embed", self.embed), f("encoder", self.encoder), f("attention", self.attention);
    f("decoder", self.decoder), f("out", self.out);
  }
};

}  // namespace tapedeck
