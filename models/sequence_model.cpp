#include <tapedeck/models/sequence_model.h>
#include <tapedeck/ops/ops.h>

namespace tapedeck {

Var target_loss(Operand logits, const Batch& batch, const TrainingPass& pass) {
  return cross_entropy(logits, batch.target_out, {.ignore_index = pad_id, .label_smoothing = pass.label_smoothing});
}

TargetPlaces::TargetPlaces(const Batch& batch) {
  const Tensor& ids = batch.target_out;
  if (ids.rank() != 2 || ids.dtype() != DType::i64 || ids.shape() != batch.target_in.shape()) {
    fail("loss: expected i64 targets of target_in's shape {}, got {} {}", batch.target_in.shape(), ids.dtype(),
         ids.shape());
  }
  const Tensor dense = ids.contiguous();
  const int64_t* p = dense.data<int64_t>();
  const int64_t T = ids.size(1);
  CachedVector<int64_t> rows, targets;
  for (int64_t b = 0; b < ids.size(0); ++b) {
    lengths_.push_back(1);
    for (int64_t t = 0; t < T; ++t) {
      if (p[b * T + t] == pad_id) continue;
      lengths_.back() = t + 1;
      rows.push_back(b * T + t);
      targets.push_back(p[b * T + t]);
    }
  }
  const Shape count{static_cast<int64_t>(rows.size())};
  rows_ = Tensor::from(std::span<const int64_t>(rows), count);
  targets_ = Tensor::from(std::span<const int64_t>(targets), count);
}

Var TargetPlaces::loss(const Var& features, const Linear& output, const TrainingPass& pass) const {
  const Var all = reshape(features, {features.size(0) * features.size(1), features.size(2)});
  const Var due = rows_.numel() == all.size(0) ? all : index_select(all, 0, rows_);
  return cross_entropy(output(due), targets_, {.label_smoothing = pass.label_smoothing});
}

void check_sequences(const char* model, const Tensor& source, const Tensor& target_in) {
  if (target_in.rank() != 2 || source.rank() != 2 || target_in.size(0) != source.size(0) || target_in.size(1) < 1) {
    fail("{}: expected source (B, S) and target (B, T) with T >= 1, got {} and {}", model, source.shape(),
         target_in.shape());
  }
}

int64_t checked_target_vocabulary(const char* model, int64_t source, int64_t target, bool shared) {
  if (target == 0) return source;
  if (shared && target != source) {
    fail("{}: a shared embedding has one vocabulary, got {} and {}; set shared_embedding = false", model, source,
         target);
  }
  return target;
}

FedTokens::FedTokens(const Tensor& target_in, const TrainingPass& pass)
    : target_in_(target_in), teacher_ratio_(pass.teacher_ratio), draw_own_(pass.draw_own), coins_(0) {
  if (!(teacher_ratio_ >= 0 && teacher_ratio_ <= 1)) {
    fail("training pass: expected 0 <= teacher ratio <= 1, got {}", teacher_ratio_);
  }
  if (!pass.sampling && teacher_ratio_ < 1 && (teacher_ratio_ > 0 || draw_own_)) {
    fail("training pass: a teacher ratio of {}{} needs a stream of coins: set sampling", teacher_ratio_,
         draw_own_ ? " with tokens drawn" : "");
  }
  if (pass.sampling) coins_ = pass.sampling->split(pass.sampling->next());
}

Tensor FedTokens::at(int64_t t, const std::function<Var()>& logits) const {
  const Tensor target = target_in_.select(1, t);
  if (t == 0 || forced()) return target;
  NoGrad pause;
  const Var own = logits();
  Tensor tokens = argmax(own).value();
  const Tensor p = draw_own_ ? softmax(own.value().to(DType::f64)).value() : Tensor();
  const Tensor given = target.contiguous();
  const int64_t B = tokens.numel(), V = own.size(1), *y = given.data<int64_t>();
  int64_t* token = tokens.mutable_data<int64_t>();
  for (int64_t b = 0; b < B; ++b) {
    Rng coin = coins_.split(static_cast<uint64_t>(b)).split(static_cast<uint64_t>(t));
    if (coin.bernoulli(teacher_ratio_)) {
      token[b] = y[b];
    } else if (draw_own_) {
      const double* row = p.data<double>() + b * V;
      double rest = coin.uniform();
      for (int64_t v = 0; v < V && rest >= 0; ++v) {
        rest -= row[v];
        if (rest < 0) token[b] = v;
      }
    }
  }
  return tokens;
}

StepDropout::StepDropout(const Shape& shape, double p, Rng* rng, DType dtype) {
  if (rng && p > 0) keep_ = dropout(Tensor::ones(shape, dtype), p, rng).value();
}

Var StepDropout::operator()(const Var& x) const { return keep_.defined() ? x * keep_ : x; }

Var StepDropout::operator()(const Var& x, int64_t t) const { return keep_.defined() ? x * keep_.select(1, t) : x; }

Tensor valid_positions(std::span<const int64_t> lengths, int64_t S) {
  Tensor mask = Tensor::empty({static_cast<int64_t>(lengths.size()), S}, DType::boolean);
  bool* p = mask.mutable_data<bool>();
  for (int64_t n : lengths) {
    for (int64_t s = 0; s < S; ++s) *p++ = s < n;
  }
  return mask;
}

}  // namespace tapedeck
