// Encoder-decoders that write one token after another, for models that say what one step is. A stepwise model M has
//
//   M::State                                    what goes from step to step; select_rows(state, rows) picks rows of it
//   embed, out                                  the embedding of target tokens, and features -> logits
//   encode(source, rng) -> {memory, state}      `rng` drops out in training; null means evaluation
//   advance(x, state, memory, rng) -> {state, features, weights}    a step from the embedded token x (B, E)
//
// and gets forward() of SequenceModel and the Decoding of the searches from here.
#pragma once

#include <tapedeck/models/sequence_model.h>
#include <tapedeck/nn/attention.h>
#include <tapedeck/nn/lstm.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck {

// The chosen rows, i64 (M,), of a decoder's state.
inline LSTMState select_rows(const LSTMState& state, const Tensor& rows) {
  return {index_select(state.h, 0, rows), index_select(state.c, 0, rows)};
}
inline CachedVector<LSTMState> select_rows(const CachedVector<LSTMState>& states, const Tensor& rows) {
  CachedVector<LSTMState> result;
  for (const LSTMState& state : states) result.push_back(select_rows(state, rows));
  return result;
}

// All steps over target_in (B, T); the output layer runs once for all of them. `name` begins error messages.
template <class Model>
SequenceOutput forward_steps(const char* name, const Model& model, const Tensor& source, const Tensor& target_in,
                             const TrainingPass& pass) {
  check_sequences(name, source, target_in);
  const FedTokens fed(target_in, pass);
  auto encoded = model.encode(source, pass.dropout);
  Var embedded = model.embed(target_in);  // (B, T, E)
  CachedVector<Var> features, weights;
  for (int64_t t = 0; t < target_in.size(1); ++t) {
    Scope scope("decoder.step", t);
    Var x = select(embedded, 1, t);
    if (t > 0 && !fed.forced()) x = model.embed(fed.at(t, [&] { return model.out(features.back()); }));
    auto next = model.advance(x, encoded.state, encoded.memory, pass.dropout);
    encoded.state = next.state;
    features.push_back(next.features);
    weights.push_back(next.weights);
  }
  return {model.out(stack(features, 1)), stack(weights, 1)};
}

// A batch on its way through a stepwise model, which must outlive it.
template <class Model>
class StepwiseDecoding final : public Decoding {
 public:
  StepwiseDecoding(const Model& model, const Tensor& source) : model_(model) {
    NoGrad pause;
    auto encoded = model.encode(source, nullptr);
    memory_ = encoded.memory;
    state_ = encoded.state;
  }

  int64_t rows() const override { return memory_.values.size(0); }

  Step step(const Tensor& tokens) override {
    NoGrad pause;
    auto next = model_.advance(model_.embed(tokens), state_, memory_, nullptr);
    state_ = next.state;
    return {model_.out(next.features).value(), next.weights.value(), memory_.mask};
  }

  void select(const Tensor& rows) override {
    NoGrad pause;
    memory_ = select_rows(memory_, rows);
    state_ = select_rows(state_, rows);
  }

 private:
  const Model& model_;
  Memory memory_;
  typename Model::State state_;
};

}  // namespace tapedeck
