// GNMT (Wu et al. 2016, arXiv:1609.08144): deep LSTMs with residual connections. Attention is queried by the bottom
// decoder layer and its context is fed to all of them, so that the layers can run one behind the other on different
// machines.
//
// B batch, S source time, T target time, d model size, V vocabulary.
#pragma once

#include <tapedeck/models/sequence_model.h>
#include <tapedeck/nn/attention.h>
#include <tapedeck/nn/embedding.h>
#include <tapedeck/nn/linear.h>
#include <tapedeck/nn/residual_lstm.h>

namespace tapedeck {

// Settings of GNMT.
struct GNMTOptions {
  int64_t vocabulary;          // V, special ids counted
  int64_t d_model = 32;        // d, of embeddings and states
  int64_t encoder_layers = 4;  // >= 2; the first reads in both directions
  int64_t decoder_layers = 4;  // >= 1
  double dropout = 0;          // of what layers after the first read
  DType dtype = DType::f32;    // of the parameters
};

// The model; see above.
struct GNMT {
  Embedding embed;                // (V, d), shared by encoder and decoder
  ResidualLSTM encoder;           // d -> d
  AdditiveAttention attention;    // queries and keys d
  std::vector<LSTMCell> decoder;  // the first reads [embedding; context], the others [layer below; context]
  Linear out;                     // d -> V
  double dropout;                 // in training, see GNMTOptions

  using State = CachedVector<LSTMState>;  // one a layer, (B, d) each

  // Throws on layers and dropout outside their range.
  GNMT(const GNMTOptions& options, Rng& rng);

  // What the encoder gives.
  struct Encoded {
    Memory memory;  // encoder outputs (B, S, d)
    State state;    // zeros
  };
  // source: i64 (B, S), padded at the end. Throws on an empty row.
  Encoded encode(const Tensor& source, Rng* rng = nullptr) const;

  // What a step of the decoder gives.
  struct Advanced {
    State state;   // of all layers
    Var features;  // (B, d), what the output layer reads
    Var weights;   // (B, S)
  };
  // One step from the embedded token y_0 (B, d). s_k: the states h of before.
  //   context, weights = attention(s_0);   y_1 = cell_0([y_0; context]);   y_k+1 = cell_k([y_k; context]), from k = 2
  //   on with y_k added;   features = y_n
  Advanced advance(const Var& x, const State& state, const Memory& memory, Rng* rng = nullptr) const;

  // See SequenceModel.
  SequenceOutput forward(const Tensor& source, const Tensor& target_in, const TrainingPass& pass = {}) const;
  Var loss(const Batch& batch, const TrainingPass& pass = {}) const;
  std::unique_ptr<Decoding> begin(const Tensor& source) const;

  static void fields(auto& self, auto&& f) {
    f("embed", self.embed), f("encoder", self.encoder), f("attention", self.attention);
    f("decoder", self.decoder), f("out", self.out);
  }
};

}  // namespace tapedeck
