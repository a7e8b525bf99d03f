#include "op_samples_families.h"

namespace tapedeck::samples {

// ---- Drawing ------------------------------------------------------------------------------------------------------

Tensor Draw::make(const Shape& extents, Rng& rng) const {
  Tensor x = Tensor::empty(extents, dtype);
  const int64_t n = x.numel();
  const std::vector<int64_t> place = rng.permutation(n);  // so that `element` may depend on i without an order to see
  dispatch(dtype, [&]<class T> {
    T* p = x.mutable_data<T>();
    for (int64_t i = 0; i < n; ++i) p[place[static_cast<size_t>(i)]] = static_cast<T>(element(i, n, rng));
  });
  return x;
}

Draw real(const Shape& shape, double low, double high) {
  return {shape, DType::f64, [low, high](int64_t, int64_t, Rng& rng) { return rng.uniform(low, high); }};
}

Draw positive(const Shape& shape) { return real(shape, 0.5, 2.5); }

Draw apart(const Shape& shape) {
  return {shape, DType::f64, [](int64_t i, int64_t n, Rng& rng) {
            // steps of 0.15 on both sides of 0, each shifted by less than a third of that
            return 0.15 * (static_cast<double>(i - n / 2) + 0.5) + rng.uniform(-0.02, 0.02);
          }};
}

Draw whole(const Shape& shape) {
  return {shape, DType::f64, [](int64_t, int64_t, Rng& rng) { return static_cast<double>(rng.below(5) - 2); }};
}

Draw integers(const Shape& shape) {
  return {shape, DType::i64, [](int64_t, int64_t, Rng& rng) { return static_cast<double>(rng.below(11) - 5); }};
}

Draw ids(const Shape& shape, int64_t bound) {
  return {shape, DType::i64, [bound](int64_t, int64_t, Rng& rng) { return static_cast<double>(rng.below(bound)); }};
}

Draw mask(const Shape& shape) {
  return {shape, DType::boolean, [](int64_t, int64_t, Rng& rng) { return rng.below(3) > 0 ? 1.0 : 0.0; }};
}

Tensor f64(const NestedList& values) { return tensor(values, DType::f64); }

std::vector<Tensor> draw(const std::vector<Draw>& inputs, std::string_view name) {
  std::vector<Tensor> drawn;
  for (const Draw& input : inputs) {
    Rng rng = Rng(1).split(name).split(drawn.size());
    drawn.push_back(input.make(input.shape, rng));
  }
  return drawn;
}

GradcheckReport check(const Function& f, const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  std::vector<NamedTensor> varied;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_floating(inputs[i].dtype())) varied.push_back({fmt::format("x{}", i), inputs[i]});
  }
  auto g = [&](In x) {
    std::vector<Var> all(inputs.begin(), inputs.end());
    size_t next = 0;
    for (Var& v : all) {
      if (is_floating(v.dtype())) v = x[next++];
    }
    return f(all);
  };
  return gradcheck(g, varied, {}, options);
}

// ---- The table ----------------------------------------------------------------------------------------------------

const std::vector<Sample>& op_samples() {
  static const std::vector<Sample> samples = [] {
    std::vector<Sample> table;
    add_elementwise(table);
    add_reductions(table);
    add_shapes(table);
    add_indexing(table);
    add_products(table);
    add_losses(table);
    return table;
  }();
  return samples;
}

}  // namespace tapedeck::samples
