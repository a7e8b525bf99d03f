// Transformer encoder-decoder (Vaswani et al. 2017, arXiv:1706.03762), with plain feed-forward layers or with sparsely
// gated mixtures of experts in their place.
//
//   x_0 = sqrt(d) embed[ids] + positions
//   encoder layer: self attention, feed-forward; decoder layer: causal self attention, cross attention, feed-forward
//   each f of them:  post-norm  x = norm(x + f(x))      pre-norm  x = x + f(norm(x)), with one more norm at the end
//   logits = out x
//
// Parameters have the names of PyTorch's nn.Transformer. B batch, S source time, T target time, d model size, V
// vocabulary.
#pragma once

#include <tapedeck/models/sequence_model.h>
#include <tapedeck/nn/embedding.h>
#include <tapedeck/nn/layer_norm.h>
#include <tapedeck/nn/mixture_of_experts.h>
#include <tapedeck/nn/multi_head_attention.h>

#include <variant>

namespace tapedeck {

// Positions first, first + 1, ... as (count, size), for any position; size needs not be even:
//   p[t][2 i] = sin(t / 10000^(2 i / size)),   p[t][2 i + 1] = cos(t / 10000^(2 i / size))
Tensor sinusoidal_positions(int64_t first, int64_t count, int64_t size, DType dtype = DType::f32);

// Where the layer norms stand (Xiong et al. 2020, arXiv:2002.04745): pre-norm trains without a warm-up of the learning
// rate; post-norm is the original.
enum class NormPlace { pre, post };

// How a Transformer is made.
struct TransformerOptions {
  int64_t vocabulary;                              // V, of the source
  int64_t d_model = 64;                            // d
  int64_t heads = 4;                               // of every attention; divides d
  int64_t feed_forward = 256;                      // inner size of the feed-forward layers, and of each expert
  int64_t encoder_layers = 2, decoder_layers = 2;  // the decoder has at least one
  NormPlace norm = NormPlace::pre;                 // of all layers
  Activation activation = Activation::relu;        // of the feed-forward layers
  int64_t experts = 0;  // 0: plain feed-forward layers; else mixtures of so many, at least two
  // Of embeddings, of what each f adds, of attention weights, and inside feed-forward layers; only where a pass asks.
  double dropout = 0;
  bool shared_embedding = true;   // one embedding for source and target
  int64_t target_vocabulary = 0;  // with separate embeddings; 0: the same as `vocabulary`
  // out.weight is the target's embedding, as in the paper. Training starts from a larger loss than ln V: the last state
  // still resembles the token that was fed.
  bool tied_output = true;
  DType dtype = DType::f32;  // of the parameters
};

// Self attention and feed-forward.
struct TransformerEncoderLayer {
  MultiHeadAttention self_attn;                              // of the source
  std::variant<FeedForward, MixtureOfExperts> feed_forward;  // named linear1, linear2; or gate, experts
  LayerNorm norm1, norm2;                                    // of the one and the other

  TransformerEncoderLayer(const TransformerOptions& options, Rng& rng);
  static void fields(auto& self, auto&& f) {
    f("self_attn", self.self_attn), f("", self.feed_forward), f("norm1", self.norm1), f("norm2", self.norm2);
  }
};

// Causal self attention, cross attention and feed-forward.
struct TransformerDecoderLayer {
  MultiHeadAttention self_attn, multihead_attn;              // the second looks at the source
  std::variant<FeedForward, MixtureOfExperts> feed_forward;  // as in the encoder
  LayerNorm norm1, norm2, norm3;                             // of the three, in order

  TransformerDecoderLayer(const TransformerOptions& options, Rng& rng);
  static void fields(auto& self, auto&& f) {
    f("self_attn", self.self_attn), f("multihead_attn", self.multihead_attn), f("", self.feed_forward);
    f("norm1", self.norm1), f("norm2", self.norm2), f("norm3", self.norm3);
  }
};

// Layers, and the norm behind them (pre-norm only).
template <class Layer>
struct TransformerStack {
  std::vector<Layer> layers;      // the first reads the embeddings
  std::optional<LayerNorm> norm;  // absent with post-norm

  TransformerStack(int64_t count, const TransformerOptions& options, Rng& rng) {
    for (int64_t i = 0; i < count; ++i) layers.emplace_back(options, rng);
    if (options.norm == NormPlace::pre) norm.emplace(options.d_model, LayerNormOptions{.dtype = options.dtype});
  }
  static void fields(auto& self, auto&& f) { f("layers", self.layers), f("norm", self.norm); }
};

// A SequenceModel.
struct Transformer {
  Embedding embed;                        // (V, d), of source and target if shared; N(0, 1/d); the pad row starts at 0
  std::optional<Embedding> target_embed;  // of the target if not
  TransformerStack<TransformerEncoderLayer> encoder;  // reads the source
  TransformerStack<TransformerDecoderLayer> decoder;  // writes the target
  Linear out;                                         // d -> V
  NormPlace norm;                                     // see the options
  double dropout;                                     // see the options

  // Throws on options that do not go together.
  Transformer(const TransformerOptions& options, Rng& rng);

  // What a run gives.
  struct Output {
    Var logits;     // (B, T, V)
    Var attention;  // (B, T, S): the last layer's cross attention, averaged over the heads; 0 at pads of the source
    Var balance;    // mean load-balancing loss of the mixtures, a statistic of the batch; undefined without mixtures
  };
  // Source i64 (B, S), target i64 (B, T), padded at the end; all steps at once. A row without a token throws, naming
  // it. Where the pass samples, the tokens fed are chosen step by step without dropout and without recording, and then
  // run through all at once (for the Transformer see Mihaylova & Martins 2019, arXiv:1906.07651, who choose them in one
  // pass).
  Output run(const Tensor& source, const Tensor& target_in, const TrainingPass& pass = {}) const;

  // The same without the balance.
  SequenceOutput forward(const Tensor& source, const Tensor& target_in, const TrainingPass& pass = {}) const;

  // Mean cross entropy over the batch's target tokens, pads ignored, and pass.balance times the balance.
  Var loss(const Batch& batch, const TrainingPass& pass = {}) const;

  // For the searches of search.h: a step costs one position, as keys and values of earlier ones are kept. The model
  // must outlive it.
  std::unique_ptr<Decoding> begin(const Tensor& source) const;

  static void fields(auto& self, auto&& f) {
    f("embed", self.embed), f("target_embed", self.target_embed), f("encoder", self.encoder),
        f("decoder", self.decoder), f("out", self.out);
  }
};

}  // namespace tapedeck
