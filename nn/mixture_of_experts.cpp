#include <tapedeck/nn/mixture_of_experts.h>
#include <tapedeck/ops/ops.h>

namespace tapedeck {
namespace {

constexpr int64_t chosen = 2;

// Numbers of the true elements, in row-major order.
std::vector<int64_t> places(const Tensor& valid) {
  std::vector<int64_t> result;
  int64_t i = 0;
  for (bool v : valid.to_vector<bool>()) {
    if (v) result.push_back(i);
    ++i;
  }
  return result;
}

Tensor indices(const std::vector<int64_t>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())});
}

// Shares of the first choices (n, 2), times the mean probabilities.
Var balancing_loss(const Var& logits, const std::vector<int64_t>& choice) {
  const int64_t n = logits.size(0), E = logits.size(1);
  Tensor share = Tensor::zeros({E}, DType::f64);
  double* f = share.mutable_data<double>();
  for (size_t i = 0; i < choice.size(); i += chosen) f[choice[i]] += 1;
  share.mul_(static_cast<double>(E) / static_cast<double>(n));
  return sum(mean(softmax(logits), 0) * share.to(logits.dtype()));
}

}  // namespace

MixtureOfExperts::MixtureOfExperts(int64_t size, int64_t hidden, int64_t count, Rng& rng,
                                   const FeedForwardOptions& options)
    : gate(size, count, rng, {.bias = false, .dtype = options.dtype}) {
  if (count < chosen) fail("mixture of experts: expected at least {} experts, got {}", chosen, count);
  for (int64_t e = 0; e < count; ++e) experts.emplace_back(size, hidden, rng, options);
}

MixtureResult MixtureOfExperts::operator()(Operand x, const Tensor& valid, Rng* rng) const {
  UserSite here(x);
  Scope scope("experts");
  const int64_t E = gate.weight.shape()[0], d = gate.weight.shape()[1];
  if (x.rank() < 1 || x.size(-1) != d) fail("mixture of experts: expected x (..., {}), got {}", d, x.shape());
  Shape leading = x.shape();
  leading.erase(leading.rank() - 1);
  if (valid.defined() && (valid.dtype() != DType::boolean || valid.shape() != leading)) {
    fail("mixture of experts: expected a boolean mask {} (true: a token) beside x {}, got {} {}", leading, x.shape(),
         valid.dtype(), valid.shape());
  }
  const int64_t N = leading.numel();
  const Var all = reshape(x, {N, d});
  // The tokens, and the row of `all` that each of them is.
  const std::vector<int64_t> rows = places(valid.defined() ? valid : Tensor::full(leading, true, DType::boolean));
  const int64_t n = static_cast<int64_t>(rows.size());
  Shape pairs = leading;
  pairs.push_back(chosen);
  MixtureResult result{{},
                       Tensor::zeros({}, x.dtype()),
                       Tensor::full(pairs, -1, DType::i64),
                       std::vector<int64_t>(static_cast<size_t>(E), 0)};
  if (n == 0) {
    result.output = Tensor::zeros(x.shape(), x.dtype());
    return result;
  }

  const Var tokens = n == N ? all : index_select(all, 0, indices(rows));
  const Var logits = gate(tokens);  // (n, E)
  const Tensor best = topk(logits.detach(), chosen).indices.value();
  const std::vector<int64_t> choice = best.to_vector<int64_t>();
  const Var gates = reshape(softmax(gather(logits, 1, best)), {n * chosen, 1});
  result.balance = balancing_loss(logits, choice);

  // What each expert is computed for: its places in `choice`, which is (n, 2), in order.
  std::vector<std::vector<int64_t>> places_of(static_cast<size_t>(E));
  int64_t* shown = result.choice.mutable_data<int64_t>();
  for (size_t i = 0; i < choice.size(); ++i) {
    places_of[static_cast<size_t>(choice[i])].push_back(static_cast<int64_t>(i));
    shown[rows[i / chosen] * chosen + static_cast<int64_t>(i % chosen)] = choice[i];
  }
  std::vector<Var> outputs;
  std::vector<int64_t> back;  // the row of `all` that each output is added to
  for (size_t e = 0; e < places_of.size(); ++e) {
    const std::vector<int64_t>& own = places_of[e];
    result.load[e] = static_cast<int64_t>(own.size());
    if (own.empty()) continue;
    Scope expert_scope("expert", static_cast<int64_t>(e));
    std::vector<int64_t> token;
    for (int64_t place : own) {
      token.push_back(place / chosen);
      back.push_back(rows[static_cast<size_t>(place / chosen)]);
    }
    const Var in = index_select(tokens, 0, indices(token));
    outputs.push_back(experts[e](in, rng) * index_select(gates, 0, indices(own)));
  }
  result.output = reshape(index_add(cat(outputs, 0), N, 0, indices(back)), x.shape());
  return result;
}

}  // namespace tapedeck
