#include <tapedeck/nn/multi_head_attention.h>
#include <tapedeck/ops/ops.h>

#include <algorithm>
#include <cmath>

namespace tapedeck {
namespace {

constexpr const char* layer_name = "multi-head attention";

void check_input(const char* what, const Operand& x, int64_t E) {
  if (x.rank() != 3 || x.size(2) != E) fail("{}: expected {} (B, T, {}), got {}", layer_name, what, E, x.shape());
}

// (B, T, E) -> (B, H, T, d): a view.
Var split_heads(const Var& x, int64_t H) {
  return transpose(reshape(x, {x.size(0), x.size(1), H, x.size(2) / H}), 1, 2);
}

// Where query t, the (before + t)-th position, may look: boolean, broadcasts to (B, H, T, S); undefined: everywhere.
Tensor visible(const Tensor& mask, bool causal, int64_t B, int64_t T, int64_t S) {
  const int64_t before = S - T;
  if (causal && T > 1) {
    const Tensor keys = Tensor::arange(S), queries = Tensor::arange(T).unsqueeze(1);
    const Var past = keys <= Var(queries) + before;  // (T, S)
    if (!mask.defined()) return past.value();
    const Tensor dense = mask.contiguous();
    const bool* valid = dense.data<bool>();
    for (int64_t b = 0; b < B; ++b, valid += S) {
      const int64_t first = std::find(valid, valid + S, true) - valid;
      if (first > before) {
        fail("{}: query 0 of row {} has nothing to attend to: causal, and its mask is false up to position {}",
             layer_name, b, first - 1);
      }
    }
    return (past & mask.unsqueeze(1).unsqueeze(1)).value();
  }
  return mask.defined() ? mask.unsqueeze(1).unsqueeze(1) : Tensor();
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(int64_t E, int64_t H, Rng& rng, const MultiHeadOptions& o)
    : heads(H), dropout(o.dropout), out_proj(E, E, rng, {.bias = o.bias, .dtype = o.dtype}) {
  if (E < 1 || H < 1 || E % H != 0) {
    fail("{}: expected a size that the number of heads divides, got size {} and {} heads", layer_name, E, H);
  }
  Tensor weight = Tensor::empty({3 * E, E}, o.dtype);
  uniform_(weight, std::sqrt(1.5 / static_cast<double>(E)), rng);  // sqrt(6 / (E + 3E))
  in_proj_weight = Parameter(weight);
  if (o.bias) {
    in_proj_bias = Parameter(Tensor::zeros({3 * E}, o.dtype));
    out_proj.bias.mutable_value().fill_(0);
  }
}

namespace {

enum Part { query_part, key_part, value_part };

Var projected(const MultiHeadAttention& layer, const Var& x, Part part) {
  const int64_t E = layer.size(), from = part * E;
  Var weight = slice(layer.in_proj_weight, 0, from, from + E);
  return layer.in_proj_bias.defined() ? linear(x, weight, slice(layer.in_proj_bias, 0, from, from + E))
                                      : linear(x, weight);
}

MultiHeadResult attend(const MultiHeadAttention& layer, const Var& query, const Memory& memory, bool causal, Rng* rng) {
  const int64_t H = layer.heads, E = layer.size(), B = query.size(0), T = query.size(1), S = memory.keys.size(1);
  const double scale = 1 / std::sqrt(static_cast<double>(E / H));
  const Var scores = matmul(split_heads(projected(layer, query, query_part) * scale, H),
                            transpose(split_heads(memory.keys, H)));  // (B, H, T, S)
  const Tensor mask = visible(memory.mask, causal, B, T, S);
  const Var weights = mask.defined() ? masked_softmax(scores, mask) : softmax(scores);
  const Var context = matmul(dropout(weights, layer.dropout, rng), split_heads(memory.values, H));  // (B, H, T, d)
  return {layer.out_proj(reshape(transpose(context, 1, 2), {B, T, E})), weights};
}

}  // namespace

Memory MultiHeadAttention::project(Operand memory, const Tensor& mask) const {
  UserSite here(memory);
  Scope scope("attention.project");
  const Var valid = detail::valid_values(layer_name, memory, mask, size());
  return {projected(*this, valid, value_part), projected(*this, valid, key_part), mask};
}

MultiHeadResult MultiHeadAttention::operator()(Operand query, const Memory& memory, Rng* rng) const {
  UserSite here(query);
  Scope scope("attention");
  check_input("queries", query, size());
  if (memory.keys.rank() != 3 || memory.keys.size(0) != query.size(0)) {
    fail("{}: expected queries ({}, T, {}) of this memory, got {}", layer_name, memory.keys.size(0), size(),
         query.shape());
  }
  return attend(*this, query, memory, false, rng);
}

MultiHeadResult MultiHeadAttention::attend_self(Operand x, const Tensor& mask, bool causal, Rng* rng) const {
  UserSite here(x);
  Scope scope("attention");
  check_input("x", x, size());
  return attend(*this, x, project(x, mask), causal, rng);
}

MultiHeadResult MultiHeadAttention::attend_self(Operand x, AttentionCache& cache) const {
  UserSite here(x);
  Scope scope("attention");
  check_input("x", x, size());
  return attend(*this, x, cache.append(projected(*this, x, key_part), projected(*this, x, value_part)), true, nullptr);
}

// ---- Cache ----------------------------------------------------------------------------------------------------------

Memory AttentionCache::append(Operand keys, Operand values) {
  if (keys.rank() != 3 || keys.shape() != values.shape()) {
    fail("attention cache: expected keys and values (N, n, E), got {} and {}", keys.shape(), values.shape());
  }
  if (keys.var().tracked() || values.var().tracked()) {
    fail("attention cache: gradients do not pass through it: decode without a tape, or pause it with NoGrad");
  }
  const int64_t N = keys.size(0), n = keys.size(1), E = keys.size(2);
  if (keys_.defined() && (keys_.size(0) != N || keys_.size(2) != E || keys_.dtype() != keys.dtype())) {
    fail("attention cache: expected keys {} ({}, n, {}) as before, got {} {}", keys_.dtype(), keys_.size(0),
         keys_.size(2), keys.dtype(), keys.shape());
  }
  const int64_t capacity = keys_.defined() ? keys_.size(1) : 0, size = size_ + n;
  if (!keys_.defined() || size > capacity) {
    const Shape shape{N, std::max<int64_t>(size, 2 * capacity), E};
    Tensor wider_keys = Tensor::empty(shape, keys.dtype()), wider_values = Tensor::empty(shape, keys.dtype());
    if (size_ > 0) {
      wider_keys.slice(1, 0, size_).copy_(keys_.slice(1, 0, size_));
      wider_values.slice(1, 0, size_).copy_(values_.slice(1, 0, size_));
    }
    keys_ = wider_keys;
    values_ = wider_values;
  }
  keys_.slice(1, size_, size).copy_(keys.value());
  values_.slice(1, size_, size).copy_(values.value());
  size_ = size;
  return {values_.slice(1, 0, size), keys_.slice(1, 0, size), {}};
}

void AttentionCache::select(const Tensor& rows) {
  if (!keys_.defined()) return;
  const int64_t M = rows.numel(), N = keys_.size(0);
  Shape shape = keys_.shape();
  shape[0] = M;
  Tensor keys = Tensor::empty(shape, keys_.dtype()), values = Tensor::empty(shape, keys_.dtype());
  int64_t i = 0;
  for (int64_t from : rows.to_vector<int64_t>()) {
    if (from < 0 || from >= N) fail("attention cache: there is no row {}, expected 0 to {}", from, N - 1);
    keys.select(0, i).slice(0, 0, size_).copy_(keys_.select(0, from).slice(0, 0, size_));
    values.select(0, i).slice(0, 0, size_).copy_(values_.select(0, from).slice(0, 0, size_));
    ++i;
  }
  keys_ = keys;
  values_ = values;
}

}  // namespace tapedeck
