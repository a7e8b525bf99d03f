#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/loss.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/shape.h>
#include <tapedeck/ops/softmax.h>

#include <algorithm>
#include <vector>

namespace tapedeck {
namespace {

// Positions whose target counts; every one of them is a legal class.
Tensor counted_positions(const Tensor& targets, int64_t classes, std::optional<int64_t> ignored) {
  std::vector<int64_t, CachingAllocator<int64_t>> rows;
  Tensor dense = targets.contiguous();
  const int64_t* t = dense.data<int64_t>();
  for (int64_t i = 0; i < dense.numel(); ++i) {
    if (ignored && t[i] == *ignored) continue;
    if (t[i] < 0 || t[i] >= classes) {
      fail("cross_entropy: target {} at position {} of {} is no class (expected 0 to {}{})", t[i], i, targets.shape(),
           classes - 1, ignored ? fmt::format(", or {} to be ignored", *ignored) : "");
    }
    rows.push_back(i);
  }
  return Tensor::from(std::span<const int64_t>(rows), {static_cast<int64_t>(rows.size())});
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
  const int64_t classes = logits.size(-1), positions = targets.numel();
  Tensor counted = counted_positions(targets.value(), classes, options.ignore_index);
  const int64_t n = counted.numel();

  // Only what counts is computed: ignored rows can hold anything, and their gradients are exactly 0.
  Var rows = reshape(logits, {positions, classes});
  Var labels = reshape(targets, {positions});
  if (n < positions) {
    rows = index_select(rows, 0, counted);
    labels = index_select(labels, 0, counted);
  }
  Var log_p = log_softmax(rows);                                     // (n, C)
  Var losses = -squeeze(gather(log_p, 1, unsqueeze(labels, 1)), 1);  // (n,)
  if (e > 0) losses = (1 - e) * losses - (e / static_cast<double>(classes)) * sum(log_p, 1);

  if (options.reduction == Reduction::none) {
    return reshape(n < positions ? index_add(losses, positions, 0, counted) : losses, expected);
  }
  Var total = sum(losses);
  return options.reduction == Reduction::sum || n == 0 ? total : total * (1.0 / static_cast<double>(n));
}

}  // namespace tapedeck
