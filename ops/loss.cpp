#include <tapedeck/core/simd.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/loss.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/rows.h>
#include <tapedeck/ops/shape.h>
#include <tapedeck/ops/softmax.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace tapedeck {
namespace {

// Row-major targets, each a class or ignored; and how many count.
struct Targets {
  Tensor ids;
  int64_t counted = 0;
};
Targets checked_targets(const char* op, const Tensor& targets, int64_t classes, std::optional<int64_t> ignored) {
  Targets result{targets.contiguous()};
  const int64_t* t = result.ids.data<int64_t>();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    if (ignored && t[i] == *ignored) continue;
    if (t[i] < 0 || t[i] >= classes) {
      fail("{}: target {} at position {} of {} is no class (expected 0 to {}{})", op, t[i], i, targets.shape(),
           classes - 1, ignored ? fmt::format(", or {} to be ignored", *ignored) : "");
    }
    ++result.counted;
  }
  return result;
}

// Positions of the targets that count.
Tensor counted_rows(const Tensor& targets, std::optional<int64_t> ignored) {
  CachedVector<int64_t> rows;
  const int64_t* t = targets.data<int64_t>();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    if (!ignored || t[i] != *ignored) rows.push_back(i);
  }
  return Tensor::from(std::span<const int64_t>(rows), {static_cast<int64_t>(rows.size())});
}

// `each` with n positions that count.
Var reduced(const Var& each, int64_t n, Reduction reduction) {
  if (reduction == Reduction::none) return each;
  Var total = sum(each);
  return reduction == Reduction::sum || n == 0 ? total : total * (1.0 / static_cast<double>(n));
}

// The losses by small ops: of the rows that count, gathered, and put back into zeros.
Var composed_losses(const Var& logits, const Var& targets, std::optional<int64_t> ignored, double e) {
  const int64_t positions = targets.numel(), classes = logits.size(-1);
  const Tensor rows = counted_rows(targets.value().contiguous(), ignored);
  Var log_p = log_softmax(index_select(reshape(logits, {positions, classes}), 0, rows));  // (n, C)
  Var labels = index_select(reshape(targets, {positions}), 0, rows);
  Var losses = -squeeze(gather(log_p, 1, unsqueeze(labels, 1)), 1);
  if (e > 0) losses = (1 - e) * losses - (e / static_cast<double>(classes)) * sum(log_p, 1);
  return reshape(index_add(losses, positions, 0, rows), targets.shape());
}

// With x relative to its row's largest logit: loss = log sum exp x - (1 - e) x_t - e / C sum x. `log_total` keeps the
// first term for the backward pass. Ignored rows are 0.
template <class T>
TAPEDECK_KERNEL void loss_rows(T* loss, T* log_total, const T* x, const int64_t* t, const bool* ignored, int64_t rows,
                               int64_t C, double e) {
  for (int64_t r = 0; r < rows; ++r, x += C) {
    loss[r] = log_total[r] = T{0};
    if (ignored[r]) continue;
    const T top = rows::row_max(x, C);
    const double log_sum = std::log(rows::exp_sum(x, top, C));
    double all = 0;
    for (int64_t c = 0; e > 0 && c < C; ++c) all += static_cast<double>(x[c] - top);
    log_total[r] = static_cast<T>(log_sum);
    loss[r] = static_cast<T>(log_sum - (1 - e) * static_cast<double>(x[t[r]] - top) -
                             (e > 0 ? e / static_cast<double>(C) * all : 0));
  }
}

// dx = g (softmax x - (1 - e) onehot t - e / C)
template <class T>
TAPEDECK_KERNEL void logit_gradients(T* dx, const T* x, const T* g, const T* log_total, const int64_t* t,
                                     const bool* ignored, int64_t rows, int64_t C, double e) {
  constexpr int64_t width = static_cast<int64_t>(simd::Lanes<T>::width);
  const T spread = static_cast<T>(e / static_cast<double>(C));
  for (int64_t r = 0; r < rows; ++r, x += C, dx += C) {
    if (ignored[r]) {
      std::fill_n(dx, C, T{0});
      continue;
    }
    const T top = rows::row_max(x, C), log_sum = log_total[r], gr = g[r];
    auto slope = [&](simd::Vec<T> v) TAPEDECK_LANES { return (simd::exp((v - top) - log_sum) - spread) * gr; };
    int64_t c = 0;
    for (; c + width <= C; c += width) simd::store(dx + c, slope(simd::load(x + c)));
    if (c < C) {
      const size_t rest = static_cast<size_t>(C - c);
      simd::store(dx + c, slope(simd::load(x + c, rest)), rest);
    }
    dx[t[r]] -= static_cast<T>(1 - e) * gr;
  }
}

}  // namespace

Var cross_entropy(Operand logits, Operand targets, const CrossEntropyOptions& options) {
  UserSite here(logits);
  const double e = options.label_smoothing;
  if (!(e >= 0 && e <= 1)) fail("cross_entropy: expected 0 <= label smoothing <= 1, got {}", e);
  if (logits.rank() < 1 || !is_floating(logits.dtype())) {
    fail("cross_entropy: expected floating logits (..., C), got {} {}", logits.dtype(), logits.shape());
  }
  Shape expected = logits.shape();
  expected.erase(logits.rank() - 1);
  if (targets.shape() != expected || targets.dtype() != DType::i64) {
    fail("cross_entropy: expected i64 targets {} for logits {}, got {} {}", expected, logits.shape(), targets.dtype(),
         targets.shape());
  }
  const int64_t C = logits.size(-1), positions = targets.numel();
  const Targets checked = checked_targets("cross_entropy", targets.value(), C, options.ignore_index);

  // One loss a position, 0 where ignored: nothing of an ignored row is looked at, so it can hold anything.
  Tensor ignored = Tensor::empty({positions}, DType::boolean);
  const int64_t* t = checked.ids.data<int64_t>();
  bool* skip = ignored.mutable_data<bool>();
  for (int64_t i = 0; i < positions; ++i) skip[i] = options.ignore_index && t[i] == *options.ignore_index;
  const Tensor x = logits.value().contiguous();
  Tensor losses = Tensor::empty(expected, x.dtype()), log_total = Tensor::empty({positions}, x.dtype());
  dispatch_floating("cross_entropy", x.dtype(), [&]<class T> {
    loss_rows(losses.mutable_data<T>(), log_total.mutable_data<T>(), x.data<T>(), t, skip, positions, C, e);
  });
  Var each = record_fused(
      "cross_entropy", {logits, targets}, {losses, {log_total, ignored}},
      [e](const FusedPass& pass) {
        const Tensor x = pass.inputs[0].contiguous(), t = pass.inputs[1].contiguous();
        const int64_t C = x.size(-1), rows = t.numel();
        Tensor dx = Tensor::empty(x.shape(), x.dtype());
        dispatch_floating("cross_entropy", x.dtype(), [&]<class T> {
          logit_gradients(dx.mutable_data<T>(), x.data<T>(), pass.g.data<T>(), pass.saved[0].data<T>(),
                          t.data<int64_t>(), pass.saved[1].data<bool>(), rows, C, e);
        });
        return std::array{dx, Tensor()};
      },
      [e, ignore = options.ignore_index](std::span<const Var> in) { return composed_losses(in[0], in[1], ignore, e); });

  return reduced(each, checked.counted, options.reduction);
}

Var nll(Operand log_p, Operand targets, std::optional<int64_t> ignore_index, Reduction reduction) {
  UserSite here(log_p);
  Shape expected = log_p.shape();
  if (log_p.rank() < 1 || !is_floating(log_p.dtype())) {
    fail("nll: expected floating log probabilities (..., C), got {} {}", log_p.dtype(), log_p.shape());
  }
  expected.erase(log_p.rank() - 1);
  if (targets.shape() != expected || targets.dtype() != DType::i64) {
    fail("nll: expected i64 targets {} for log probabilities {}, got {} {}", expected, log_p.shape(), targets.dtype(),
         targets.shape());
  }
  const int64_t C = log_p.size(-1), positions = targets.numel();
  const Tensor rows = counted_rows(targets.value().contiguous(), ignore_index);
  const int64_t n = checked_targets("nll", targets.value(), C, ignore_index).counted;
  Var picked = gather(index_select(reshape(log_p, {positions, C}), 0, rows), 1,
                      unsqueeze(index_select(reshape(targets, {positions}), 0, rows), 1));
  Var each = reshape(index_add(-squeeze(picked, 1), positions, 0, rows), expected);
  return reduced(each, n, reduction);
}

namespace {

void check_same(const char* op, const Operand& x, const Operand& target) {
  if (x.shape() != target.shape() || x.dtype() != target.dtype() || !is_floating(x.dtype())) {
    fail("{}: expected two floating tensors of one shape (losses do not broadcast), got {} {} and {} {}", op, x.dtype(),
         x.shape(), target.dtype(), target.shape());
  }
}

}  // namespace

Var mse(Operand x, Operand target, Reduction reduction) {
  UserSite here(x);
  check_same("mse", x, target);
  return reduced(square(x - target), x.numel(), reduction);
}

Var l1(Operand x, Operand target, Reduction reduction) {
  UserSite here(x);
  check_same("l1", x, target);
  return reduced(abs(x - target), x.numel(), reduction);
}

Var bce_with_logits(Operand x, Operand target, Reduction reduction) {
  UserSite here(x);
  check_same("bce_with_logits", x, target);
  return reduced(softplus(x) - x * target, x.numel(), reduction);
}

Var kl_div(Operand x, Operand target, Reduction reduction) {
  UserSite here(x);
  check_same("kl_div", x, target);
  Var none = target == 0;
  // What does not count is masked on both sides: x may be -inf there.
  Var log_t = log(masked_fill(target, none, 1)), log_p = masked_fill(x, none, 0);
  return reduced(masked_fill(target * (log_t - log_p), none, 0), x.numel(), reduction);
}

}  // namespace tapedeck
