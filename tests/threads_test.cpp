// Threads that share parameters: each has its own tape, gradients are added afterwards, in order. Run under the thread
// sanitizer by ./dev tsan.
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/nn/optim.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "testing.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr int64_t d = 6;
const ReversalTask task{.min_length = 2, .max_length = 4, .symbols = 5};

Seq2SeqAttention small_model(DType dtype) {
  Rng rng(5);
  return Seq2SeqAttention({.vocabulary = task.vocabulary(), .d_model = d, .dtype = dtype}, rng);
}

Batch shard_batch(uint64_t step, uint64_t shard) {
  Rng rng = Rng(11).split(step).split(shard);
  return task.batch(3, rng);
}

struct Shard {
  double loss = 0;
  Gradients grads;
};

Shard run_shard(const Seq2SeqAttention& model, const Batch& batch) {
  Tape tape;
  const Var loss = model.loss(batch);
  return {loss.item(), tape.backward(loss)};
}

bool same_gradients(const Gradients& a, const Gradients& b, const std::vector<NamedParameter>& parameters) {
  if (a.size() != b.size() || a.size() == 0) return false;
  for (const NamedParameter& p : parameters) {
    const Tensor *x = a.find(p.parameter), *y = b.find(p.parameter);
    if ((x == nullptr) != (y == nullptr) || (x && !same_bits(*x, *y))) {
      MESSAGE(p.name << " differs");
      return false;
    }
  }
  return true;
}

// Holds both threads back until the other one is there too, so that they do run at the same time.
class Meeting {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    if (++arrived_ == 2) everybody_.notify_all();
    everybody_.wait(lock, [this] { return arrived_ >= 2; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable everybody_;
  int arrived_ = 0;
};

// Room for one value on its way from one thread to another.
template <class T>
class Slot {
 public:
  void put(T value) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !value_; });
    value_ = std::move(value);
    changed_.notify_all();
  }
  T take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return value_.has_value(); });
    T value = std::move(*value_);
    value_.reset();
    changed_.notify_all();
    return value;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<T> value_;
};

}  // namespace

TEST_SUITE("threads") {
TEST_CASE("two threads that share parameters train to the bits of one") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const Seq2SeqAttention shared = small_model(dtype), alone = small_model(dtype);
    const auto shared_parameters = named_parameters(shared), alone_parameters = named_parameters(alone);
    Adam shared_optimizer(shared, {.lr = 1e-2}), alone_optimizer(alone, {.lr = 1e-2});
    for (uint64_t step = 0; step < 4; ++step) {
      const Batch batches[] = {shard_batch(step, 0), shard_batch(step, 1)};
      Shard together[2], in_turn[2];
      Meeting meeting;
      auto work = [&](size_t i) {
        meeting.wait();
        together[i] = run_shard(shared, batches[i]);
      };
      std::thread other(work, 1);
      work(0);
      other.join();
      for (size_t i = 0; i < 2; ++i) in_turn[i] = run_shard(alone, batches[i]);

      for (size_t i = 0; i < 2; ++i) CHECK(together[i].loss == in_turn[i].loss);
      together[0].grads += together[1].grads;
      in_turn[0].grads += in_turn[1].grads;
      CHECK(together[0].grads.size() == shared_parameters.size());
      shared_optimizer.step(together[0].grads);
      alone_optimizer.step(in_turn[0].grads);
    }
    for (size_t i = 0; i < shared_parameters.size(); ++i) {
      CAPTURE(shared_parameters[i].name);
      CHECK(same_bits(shared_parameters[i].parameter.value(), alone_parameters[i].parameter.value()));
    }
  }
}

TEST_CASE("gradients are handed to a thread that adds and frees them while the next are computed") {
  const Seq2SeqAttention model = small_model(DType::f32);
  const auto parameters = named_parameters(model);
  constexpr uint64_t steps = 6;

  Slot<Gradients> slot;
  Gradients sum;
  std::thread adder([&] {
    for (uint64_t step = 0; step < steps; ++step) sum += slot.take();
  });
  for (uint64_t step = 0; step < steps; ++step) slot.put(run_shard(model, shard_batch(step, 0)).grads);
  adder.join();

  Gradients expected;
  for (uint64_t step = 0; step < steps; ++step) expected += run_shard(model, shard_batch(step, 0)).grads;
  CHECK(same_gradients(sum, expected, parameters));
}

TEST_CASE("a gradient and its handle may be read on both threads") {
  const Seq2SeqAttention model = small_model(DType::f64);
  const auto parameters = named_parameters(model);
  const Gradients grads = run_shard(model, shard_batch(0, 0)).grads;
  double norms[2] = {};
  Meeting meeting;
  auto measure = [&](size_t i) {
    meeting.wait();
    for (int repeat = 0; repeat < 20; ++repeat) {
      norms[i] = 0;
      for (const NamedParameter& p : parameters) {
        const Tensor g = grads[p.parameter];  // one more handle to what both hold
        for (double x : g.to_vector<double>()) norms[i] += x * x;
      }
    }
  };
  std::thread other(measure, 1);
  measure(0);
  other.join();
  CHECK(norms[0] == norms[1]);
  CHECK(norms[0] > 0);
}

TEST_CASE("recording and NoGrad on one thread do not reach the other") {
  const Parameter w(f64({1, 2, 3}));
  Meeting begun, ended;
  bool recorded = true;
  std::thread other([&] {
    NoGrad off;
    begun.wait();
    recorded = (Var(w) + Var(w)).tracked();
    ended.wait();
  });
  Tape tape;
  begun.wait();
  const Var y = sum_to(Var(w) + Var(w), {});
  ended.wait();
  other.join();
  CHECK_FALSE(recorded);
  CHECK(y.tracked());
  CHECK(values(tape.backward(y)[w]) == std::vector<double>{2, 2, 2});
}
}
