#include <tapedeck/nn/attention_decoder.h>
#include <tapedeck/nn/gru.h>
#include <tapedeck/ops/fused/attention_decoder.h>
#include <tapedeck/ops/ops.h>

#include <algorithm>
#include <array>

namespace tapedeck {
namespace {

// The definition.
Var by_steps(std::span<const Var> in, const Tensor& mask, std::span<const int64_t> lengths) {
  const Var &gates = in[0], &keys = in[2], &values = in[3], &W_q = in[4], &v = in[5], &W_c = in[6];
  Var state = in[1];
  CachedVector<Var> steps;
  for (int64_t t = 0; t < gates.size(1); ++t) {
    Scope scope("decoder.step", t);
    Var query = unsqueeze(linear(state, W_q), 1);  // (B, 1, A)
    Var scores = v.numel() > 0 ? squeeze(linear(tanh(unsqueeze(query, 2) + unsqueeze(keys, 1)), v), -1)
                               : bmm(query, transpose(keys));
    Var weights = mask.defined() ? masked_softmax(scores, mask.unsqueeze(1)) : softmax(scores);  // (B, 1, S)
    Var context = squeeze(bmm(weights, values), 1);
    state = gru_update(select(gates, 1, t) + linear(context, W_c), linear(state, in[7], in[8]), state);
    steps.push_back(cat({state, context, squeeze(weights, 1)}, 1));
  }
  return masked_fill(stack(steps, 1), past_end(lengths, gates.size(1)), 0);
}

void check(const AttentionDecoderInputs& x, const Tensor& mask, std::span<const int64_t> lengths) {
  auto fits = [](const Operand& operand, const Shape& shape) { return operand.shape() == shape; };
  const bool ranks = x.gates.rank() == 3 && x.state.rank() == 2 && x.keys.rank() == 3 && x.values.rank() == 3;
  const int64_t B = ranks ? x.state.size(0) : 0, d = ranks ? x.state.size(1) : 0, T = ranks ? x.gates.size(1) : 0;
  const int64_t S = ranks ? x.keys.size(1) : 0, A = ranks ? x.keys.size(2) : 0, K = ranks ? x.values.size(2) : 0;
  if (!ranks || !fits(x.gates, {B, T, 3 * d}) || !fits(x.keys, {B, S, A}) || !fits(x.values, {B, S, K}) ||
      !fits(x.W_q, {A, d}) || !(fits(x.v, {1, A}) || fits(x.v, {0})) || !fits(x.W_c, {3 * d, K}) ||
      !fits(x.weight_hh, {3 * d, d}) || !fits(x.bias_hh, {3 * d})) {
    fail(
        "attention decoder: expected gates (B, T, 3d), state (B, d), keys (B, S, A), values (B, S, K), W_q (A, d), "
        "v (1, A) or (0), W_c (3d, K), weight_hh (3d, d), bias_hh (3d); got {}, {}, {}, {}, {}, {}, {}, {}, {}",
        x.gates.shape(), x.state.shape(), x.keys.shape(), x.values.shape(), x.W_q.shape(), x.v.shape(), x.W_c.shape(),
        x.weight_hh.shape(), x.bias_hh.shape());
  }
  if (mask.defined() && (mask.dtype() != DType::boolean || mask.shape() != Shape{B, S})) {
    fail("attention decoder: expected a boolean mask ({}, {}), got {} {}", B, S, mask.dtype(), mask.shape());
  }
  for (int64_t b = 0; mask.defined() && b < B; ++b) {
    const Tensor row = mask.select(0, b).contiguous();
    const bool* p = row.data<bool>();
    if (std::none_of(p, p + S, [](bool allowed) { return allowed; })) {
      fail("attention decoder: row {} of the mask {} has no place that may be attended", b, mask.shape());
    }
  }
  if (static_cast<int64_t>(lengths.size()) != B) {
    fail("attention decoder: expected one length for each of {} rows, got {}", B, lengths.size());
  }
  for (int64_t n : lengths) {
    if (n < 1 || n > T) fail("attention decoder: expected lengths in 1 to {}, got {}", T, n);
  }
}

}  // namespace

Var attention_decoder(const AttentionDecoderInputs& x, const Tensor& mask_in, std::span<const int64_t> lengths) {
  check(x, mask_in, lengths);
  const Tensor mask = mask_in.defined() ? mask_in.contiguous() : mask_in;
  const std::array<Tensor, 9> in{x.gates.value(), x.state.value(), x.keys.value(),      x.values.value(), x.W_q.value(),
                                 x.v.value(),     x.W_c.value(),   x.weight_hh.value(), x.bias_hh.value()};
  fused::Packed packed(lengths, x.gates.size(1));
  FusedValue value = fused::attention_decoder_forward(in, mask, packed);
  return record_fused(
      "attention_decoder", {x.gates, x.state, x.keys, x.values, x.W_q, x.v, x.W_c, x.weight_hh, x.bias_hh},
      std::move(value),
      [mask, packed = std::move(packed)](const FusedPass& pass) {
        return fused::attention_decoder_backward(pass, mask, packed);
      },
      [mask, all = CachedVector<int64_t>(lengths.begin(), lengths.end())](std::span<const Var> vars) {
        return by_steps(vars, mask, all);
      });
}

}  // namespace tapedeck
