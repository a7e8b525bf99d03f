#include <tapedeck/nn/hard_attention.h>
#include <tapedeck/ops/ops.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tapedeck {
namespace {

// Calls f(coins, row) for every row of S weights in `weights` (B, ..., S), with the coins of that row and query.
template <class F>
void for_each_row(const Tensor& weights, Rng& rng, const F& f) {
  const Rng stream = rng.split(rng.next());
  const int64_t S = weights.size(-1), rows = S == 0 ? 0 : weights.numel() / S, B = weights.size(0);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t queries = rows / B;
    f(stream.split(static_cast<uint64_t>(i / queries)).split(static_cast<uint64_t>(i % queries)), i);
  }
}

// The position at which the sum of weights exceeds u of its total.
int64_t position(const double* w, int64_t S, double u) {
  double total = 0, sum_to_here = 0;
  for (int64_t j = 0; j < S; ++j) total += w[j];
  int64_t last = 0;
  for (int64_t j = 0; j < S; ++j) {
    if (!(w[j] > 0)) continue;
    last = j;
    sum_to_here += w[j];
    if (sum_to_here > u * total) break;
  }
  return last;
}

void check_weights(const char* what, const Tensor& weights) {
  if (weights.rank() < 2 || !is_floating(weights.dtype())) {
    fail("{}: expected floating weights (B, ..., S), got {} {}", what, weights.dtype(), weights.shape());
  }
}

// weights (B, S) or (B, T, S) with values (B, S, K)
Var read(const Var& weights, const Memory& memory) {
  const bool single = weights.rank() == 2;
  Var context = bmm(single ? unsqueeze(weights, 1) : weights, memory.values);
  return single ? squeeze(context, 1) : context;
}

}  // namespace

HardAttention draw_attention(const AttentionResult& soft, const Memory& memory, Rng* rng) {
  const Tensor weights = soft.weights.value();
  check_weights("draw_attention", weights);
  const int64_t S = weights.size(-1);
  HardAttention result;
  if (rng) {
    Shape queries = weights.rank() == 2 ? Shape{weights.size(0)} : Shape{weights.size(0), weights.size(1)};
    result.drawn = Tensor::empty(queries, DType::i64);
    int64_t* drawn = result.drawn.mutable_data<int64_t>();
    const Tensor dense = weights.to(DType::f64).contiguous();
    const double* w = dense.data<double>();
    for_each_row(weights, *rng, [&](Rng coins, int64_t i) { drawn[i] = position(w + i * S, S, coins.uniform()); });
  } else {
    result.drawn = argmax(weights).value();
  }
  result.weights = one_hot(result.drawn, S, weights.dtype()).value();
  result.context = read(result.weights, memory);
  Var p = soft.weights / sum(soft.weights, -1, true);
  result.log_p = log(squeeze(gather(p, -1, unsqueeze(result.drawn, -1)), -1));
  Var positive = where(weights > 0, p, Tensor::ones(weights.shape(), weights.dtype()));  // 0 ln 0 = 0
  result.entropy = -sum(p * log(positive), -1);
  return result;
}

Var gumbel_softmax(Operand weights, double temperature, Rng& rng) {
  UserSite here(weights);
  check_weights("gumbel_softmax", weights.value());
  if (!(temperature > 0) || std::isinf(temperature)) {
    fail("gumbel_softmax: expected a finite temperature > 0, got {}", temperature);
  }
  const int64_t S = weights.size(-1);
  Tensor noise = Tensor::empty(weights.shape(), DType::f64);
  double* g = noise.mutable_data<double>();
  for_each_row(weights.value(), rng, [&](Rng coins, int64_t i) {
    for (int64_t j = 0; j < S; ++j) {
      const double u = std::max(coins.uniform(), std::numeric_limits<double>::min());  // 0 has no logarithm
      g[i * S + j] = -std::log(-std::log(u));
    }
  });
  Var scores = (log(weights) + noise.to(weights.dtype())) * (1 / temperature);
  return masked_softmax(scores, weights.value() > 0);
}

Var straight_through(Operand soft) {
  UserSite here(soft);
  check_weights("straight_through", soft.value());
  Var hard = one_hot(argmax(soft), soft.size(-1), soft.dtype());
  return hard + (soft.var() - soft.var().detach());  // exactly 0, with the soft one's gradient
}

AttentionResult gumbel_attention(const AttentionResult& soft, const Memory& memory, double temperature, Rng* rng) {
  Var weights = rng ? straight_through(gumbel_softmax(soft.weights, temperature, *rng))
                    : one_hot(argmax(soft.weights), soft.weights.size(-1), soft.weights.dtype());
  return {read(weights, memory), weights};
}

Reinforce::Reinforce(const ReinforceOptions& o) : options_(o) {
  if (!(o.decay >= 0 && o.decay < 1)) fail("Reinforce: decay must be in 0..1, 1 excluded, got {}", o.decay);
  if (!(o.weight >= 0) || std::isinf(o.weight)) {
    fail("Reinforce: weight must be a finite number >= 0, got {}", o.weight);
  }
  if (!(o.entropy >= 0) || std::isinf(o.entropy)) {
    fail("Reinforce: entropy must be a finite number >= 0, got {}", o.entropy);
  }
}

Var Reinforce::operator()(Operand losses, Operand log_p, const Var& entropy) {
  UserSite here(losses);
  const int64_t N = losses.rank() == 1 ? losses.size(0) : 0;
  if (N < 1 || log_p.shape() != losses.shape() || (entropy.defined() && entropy.shape() != losses.shape())) {
    fail("Reinforce: expected losses, log p and entropy (N,) with N >= 1, got {}, {} and {}", losses.shape(),
         log_p.shape(), entropy.defined() ? entropy.shape() : Shape{});
  }
  if (options_.entropy > 0 && !entropy.defined()) fail("Reinforce: an entropy reward needs the entropies");
  const double average = mean(losses).item();
  if (!std::isfinite(average)) fail("Reinforce: the mean loss is {}", average);
  Var advantage = (losses.var().detach() - baseline_) * options_.weight;
  Var total = losses + advantage * log_p;
  if (options_.entropy > 0) total = total - entropy * options_.entropy;
  baseline_ = options_.decay * baseline_ + (1 - options_.decay) * average;
  return mean(total);
}

void Reinforce::set_baseline(double baseline) {
  if (!std::isfinite(baseline)) fail("Reinforce: expected a finite baseline, got {}", baseline);
  baseline_ = baseline;
}

}  // namespace tapedeck
