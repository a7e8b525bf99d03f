// What encoder-decoder models have in common, so that training, searches and tests are written once for all of them.
//
// B batch, S source time, T target time, V vocabulary.
#pragma once

#include <tapedeck/models/search.h>
#include <tapedeck/models/text.h>
#include <tapedeck/nn/linear.h>
#include <tapedeck/nn/module.h>

#include <concepts>
#include <functional>
#include <memory>

namespace tapedeck {

// What a training pass does beyond the plain forward pass. The default is the plain pass, which is evaluation: what
// trains has to be asked for.
//
//   Rng step = root.split("pass").split(number), dropout = step.split("dropout"), sampling = step.split("sampling");
//   Var loss = model.loss(batch, {.dropout = &dropout, .sampling = &sampling, .teacher_ratio = .8});
struct TrainingPass {
  Rng* dropout = nullptr;  // the stream of dropout masks, which advances; null: nothing is dropped
  // Scheduled sampling (Bengio et al. 2015, arXiv:1506.03099): from the second step on, the decoder is fed the target
  // with probability teacher_ratio, else a token of its own, a constant. One coin for each row and step: that of row b
  // and step t depends on the stream, b and t alone. The stream advances by one word a pass, whatever the ratio.
  Rng* sampling = nullptr;     // the stream of coins; may be null where none is needed
  double teacher_ratio = 1;    // 1: teacher forcing; 0: free running
  bool draw_own = false;       // its own token is drawn from what it predicts; else it is the likeliest one
  double label_smoothing = 0;  // of the loss: see cross_entropy
  double balance = 0;  // weight in the loss of a mixture of experts' load-balancing loss (0.01 is usual); see there
};

// What a pass over a batch gives.
struct SequenceOutput {
  Var logits;     // (B, T, V)
  Var attention;  // (B, T, S); undefined for models without
};

// A model of target sequences given source sequences.
//   forward(source, target_in, pass = {})   ids i64 (B, S) and (B, T), padded at the end; step t reads target_in[:, t]
//   loss(batch, pass = {})                  mean cross entropy over the targets, pads ignored
//   begin(source)                           for the searches of search.h; the model must outlive the result
template <class M>
concept SequenceModel = Module<M> &&
    requires(const M& model, const Tensor& ids, const Batch& batch, const TrainingPass& pass) {
  { model.forward(ids, ids) } -> std::same_as<SequenceOutput>;
  { model.forward(ids, ids, pass) } -> std::same_as<SequenceOutput>;
  { model.loss(batch) } -> std::same_as<Var>;
  { model.loss(batch, pass) } -> std::same_as<Var>;
  { model.begin(ids) } -> std::same_as<std::unique_ptr<Decoding>>;
};

// The mean cross entropy of logits (B, T, V) against the batch's targets, pads ignored, smoothed as the pass says.
Var target_loss(Operand logits, const Batch& batch, const TrainingPass& pass = {});

// Where a batch has targets. A loss needs the output layer at these places only, and steps up to a row's last one.
class TargetPlaces {
 public:
  // Throws unless target_out is i64 (B, T), of target_in's shape.
  explicit TargetPlaces(const Batch& batch);

  // Steps of each row up to its last target, at least 1.
  std::span<const int64_t> lengths() const { return lengths_; }
  // target_loss of output(features), features (B, T, n): the layer sees the rows that have a target.
  Var loss(const Var& features, const Linear& output, const TrainingPass& pass) const;

 private:
  CachedVector<int64_t> lengths_;
  Tensor rows_, targets_;  // i64 (N,): places in (B T), and what is due there
};

// Throws unless source (B, S) and target_in (B, T), T >= 1, have as many rows.
void check_sequences(const char* model, const Tensor& source, const Tensor& target_in);

// The target's vocabulary: `target`, or where that is 0 the source's. Throws where one shared embedding is to have two.
int64_t checked_target_vocabulary(const char* model, int64_t source, int64_t target, bool shared);

// The tokens that a pass feeds to a decoder running step by step: the target's, or by scheduled sampling its own.
class FedTokens {
 public:
  // Draws the pass's word from the stream of coins. Throws on a ratio outside 0..1, and where chance needs a stream.
  FedTokens(const Tensor& target_in, const TrainingPass& pass);

  bool forced() const { return teacher_ratio_ == 1; }  // all are the target's
  // i64 (B,): the tokens of step t. `logits` gives (B, V) of step t - 1, unrecorded; not asked where t = 0 or forced.
  Tensor at(int64_t t, const std::function<Var()>& logits) const;

 private:
  Tensor target_in_;
  double teacher_ratio_;
  bool draw_own_;
  Rng coins_;
};

// One dropout mask for all steps of a pass, so that a decoder running step by step drops what all steps at once would.
class StepDropout {
 public:
  // `shape` (B, T, n). Without a stream, or with p = 0, nothing is drawn and nothing dropped.
  StepDropout(const Shape& shape, double p, Rng* rng, DType dtype);
  Var operator()(const Var& x) const;             // (B, T, n)
  Var operator()(const Var& x, int64_t t) const;  // (B, n): step t

 private:
  Tensor keep_;  // 0 or 1 / (1 - p)
};

// (B, S): true where the row has a token.
Tensor valid_positions(std::span<const int64_t> lengths, int64_t S);

}  // namespace tapedeck
