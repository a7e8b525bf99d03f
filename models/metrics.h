// How well a model does. Shapes of predictions and targets must agree; nothing broadcasts.
#pragma once

#include <tapedeck/models/sequence_model.h>

namespace tapedeck {

// exp(sum of token losses / number of tokens), over any number of batches: the same for every batch size. The end token
// counts, pads and the begin token do not. Larger than exp(709) is inf; log_value() stays finite.
class Perplexity {
 public:
  // One batch: the sum of its token losses, and their number.
  void add(double summed_loss, int64_t tokens);
  double log_value() const;  // throws before anything was added
  double value() const;      // exp(log_value())

 private:
  double loss_ = 0;
  int64_t tokens_ = 0;
};

// Shares in 0..1.
struct ReversalScore {
  double exact_match = 0;     // rows given whole, with their end token, and nothing else
  double token_accuracy = 0;  // targets given in their place, the end token counted
  double alignment = 0;       // symbol steps t whose largest attention weight is at n - 1 - t; n is the row's length
};

// Decodes greedily: the targets are compared with, never fed. Alignment counts the steps of the decoded rows in which
// a symbol was due; it is 0 for models without attention.
ReversalScore evaluate_reversal(const std::function<std::unique_ptr<Decoding>(const Tensor& source)>& begin,
                                const Batch& batch);

// The same of a model's own decoding.
ReversalScore evaluate_reversal(const SequenceModel auto& model, const Batch& batch) {
  return evaluate_reversal([&](const Tensor& source) { return model.begin(source); }, batch);
}

}  // namespace tapedeck
