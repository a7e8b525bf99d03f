// Layers with kernels of their own equal the small ops that define them: values and gradients, on padded batches, other
// strides, odd sizes, in f64 and f32.
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/nn/attention_decoder.h>
#include <tapedeck/nn/gru.h>
#include <tapedeck/ops/ops.h>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

using Ints = std::vector<int64_t>;
using In = std::span<const Var>;

// f(leaves) on a tape that records fused ops as they are, and on one that records their definitions: the result and all
// gradients, against a seed of uneven numbers. The largest relative difference of any of them.
double from_definition(const std::function<Var(In)>& f, const std::vector<Tensor>& inputs) {
  auto run = [&](Fused fused) {
    Tape tape(TapeOptions{.fused = fused});
    std::vector<Var> leaves;
    for (const Tensor& x : inputs) leaves.push_back(tape.leaf(x));
    Var y = f(leaves);
    CHECK((fused == Fused::definitions) == (tape.size() > inputs.size() + 12));
    const Gradients grads = tape.backward(y, normal(y.shape(), y.dtype(), 99));
    std::vector<Tensor> all{y.value()};
    for (const Var& leaf : leaves) all.push_back(grads.find(leaf) ? grads[leaf] : Tensor());
    return all;
  };
  const std::vector<Tensor> kernel = run(Fused::kernels), composed = run(Fused::definitions);
  double worst = 0;
  for (size_t i = 0; i < kernel.size(); ++i) {
    REQUIRE(kernel[i].defined());
    if (!composed[i].defined()) {
      CHECK(all_zero(kernel[i]));
      continue;
    }
    if (kernel[i].numel() > 0) worst = std::max(worst, distance(kernel[i], composed[i]));
  }
  return worst;
}

double tolerance(DType dtype) { return dtype == DType::f64 ? 1e-12 : 2e-5; }

// The same values with every other element of a wider tensor in between.
Tensor strided(const Tensor& x) {
  Shape wide = x.shape();
  wide[x.rank() - 1] *= 2;
  Tensor all = Tensor::full(wide, not_a_number, x.dtype());
  all.slice(x.rank() - 1, 0, wide[x.rank() - 1], 2).copy_(x);
  return all.slice(x.rank() - 1, 0, wide[x.rank() - 1], 2);
}

}  // namespace

TEST_SUITE("fused") {
TEST_CASE("a gru layer equals its steps") {
  Rng rng(1);
  for (DType dtype : {DType::f64, DType::f32}) {
    for (const Ints& lengths : {Ints{3, 1, 5, 5, 2}, Ints{4, 4}, Ints{1}, Ints{2, 7, 7}}) {
      for (int64_t H : {1, 3, 8, 17}) {
        for (Direction direction : {Direction::forward, Direction::backward}) {
          GRUCell cell(3, H, rng, {.dtype = dtype});
          const int64_t B = static_cast<int64_t>(lengths.size());
          const Tensor x = random({B, 7, 3}, dtype, rng), h = random({B, H}, dtype, rng);
          auto layer = [&](In in) { return cell.layer(in[0], in[1], lengths, direction); };
          CAPTURE(B);
          CAPTURE(H);
          CHECK(from_definition(layer, {x, h}) <= tolerance(dtype));
          CHECK(from_definition(layer, {strided(x), strided(h)}) <= tolerance(dtype));
        }
      }
    }
  }
}

TEST_CASE("pads of a gru layer are not read and get no gradient") {
  Rng rng(2);
  GRUCell cell(3, 4, rng, {.dtype = DType::f64});
  Tensor x = random({2, 4, 3}, DType::f64, rng);
  x.select(0, 1).slice(0, 2, 4).fill_(not_a_number);
  Tape tape;
  Var leaf = tape.leaf(x);
  Var y = cell.layer(leaf, Tensor::zeros({2, 4}, DType::f64), Ints{4, 2}, Direction::backward);
  CHECK(all_zero(y.value().select(0, 1).slice(0, 2, 4)));
  const Gradients grads = tape.backward(sum(y));
  CHECK(all_zero(grads[leaf].select(0, 1).slice(0, 2, 4)));
  CHECK(std::isfinite(sum(grads[leaf]).item()));
}

TEST_CASE("the attention decoder equals its steps") {
  Rng rng(3);
  struct Sizes {
    int64_t B, T, S, d, K, A;
  };
  for (DType dtype : {DType::f64, DType::f32}) {
    for (const Sizes& s : {Sizes{3, 4, 5, 3, 6, 2}, {1, 1, 1, 1, 1, 1}, {2, 3, 9, 8, 17, 9}}) {
      for (bool additive : {true, false}) {
        for (bool masked : {true, false}) {
          const int64_t A = s.A;
          Ints lengths;
          Tensor mask = Tensor::full({s.B, s.S}, true, DType::boolean);
          for (int64_t b = 0; b < s.B; ++b) {
            lengths.push_back(masked ? 1 + (b * 5 + 1) % s.T : s.T);
            if (b + 1 < s.S) mask.select(0, b).slice(0, b, b + 1).fill_(false);  // a hole, and not at the end
          }
          std::vector<Tensor> in;
          for (const Shape& shape : {Shape{s.B, s.T, 3 * s.d},
                                     {s.B, s.d},
                                     {s.B, s.S, A},
                                     {s.B, s.S, s.K},
                                     {A, s.d},
                                     additive ? Shape{1, A} : Shape{0},
                                     {3 * s.d, s.K},
                                     {3 * s.d, s.d},
                                     {3 * s.d}}) {
            in.push_back(random(shape, dtype, rng));
          }
          auto decoder = [&](In x) {
            return attention_decoder({x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8]}, masked ? mask : Tensor(),
                                     lengths);
          };
          CAPTURE(additive);
          CAPTURE(masked);
          CHECK(from_definition(decoder, in) <= tolerance(dtype));
          in[2] = strided(in[2]), in[6] = strided(in[6]);
          CHECK(from_definition(decoder, in) <= tolerance(dtype));
        }
      }
    }
  }
}

TEST_CASE("the attention decoder refuses what does not fit") {
  Rng rng(4);
  auto decoder = [&](const Shape& keys, const Tensor& mask, const Ints& lengths) {
    auto some = [&](const Shape& shape) { return random(shape, DType::f64, rng); };
    return error_of([&] {
      attention_decoder({some({2, 3, 6}), some({2, 2}), some(keys), some({2, 4, 3}), some({5, 2}), some({1, 5}),
                         some({6, 3}), some({6, 2}), some({6})},
                        mask, lengths);
    });
  };
  CHECK(decoder({2, 4, 5}, {}, {3, 1}) == "");
  CHECK(says(decoder({2, 4, 4}, {}, {3, 1}), {"keys (B, S, A)", "(2, 4, 4)"}));
  CHECK(says(decoder({2, 4, 5}, {}, {3}), {"2 rows", "got 1"}));
  CHECK(says(decoder({2, 4, 5}, {}, {3, 4}), {"1 to 3", "got 4"}));
  CHECK(says(decoder({2, 4, 5}, Tensor::full({2, 3}, true, DType::boolean), {3, 1}), {"(2, 4)", "(2, 3)"}));
  Tensor mask = Tensor::full({2, 4}, true, DType::boolean);
  mask.select(0, 1).fill_(false);
  CHECK(says(decoder({2, 4, 5}, mask, {3, 1}), {"row 1", "no place"}));
}

TEST_CASE("a model's loss and gradients are those of small ops") {
  for (AttentionKind kind : {AttentionKind::additive, AttentionKind::dot}) {
    Rng rng(5);
    Seq2SeqAttention model({.vocabulary = 9, .d_model = 6, .attention = kind, .dtype = DType::f64}, rng);
    const Batch batch = ReversalTask{.min_length = 1, .max_length = 6, .symbols = 6}.batch(7, rng);
    auto run = [&](Fused fused) {
      Tape tape(TapeOptions{.fused = fused});
      Var loss = model.loss(batch);
      std::vector<Tensor> all{loss.value()};
      const Gradients grads = tape.backward(loss);
      for (const NamedParameter& p : named_parameters(model)) all.push_back(grads[p.parameter]);
      return all;
    };
    const std::vector<Tensor> kernels = run(Fused::kernels), definitions = run(Fused::definitions);
    for (size_t i = 0; i < kernels.size(); ++i) CHECK(distance(kernels[i], definitions[i]) <= 1e-12);
  }
}
}
