#include <tapedeck/nn/checkpoint.h>
#include <tapedeck/nn/optim.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/loss.h>
#include <tapedeck/ops/matmul.h>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "scratch_folder.h"

using namespace tapedeck;

namespace {

// A vocabulary's matrix, read by the embedding and by the output layer.
struct TiedModel {
  struct Table {
    Parameter weight;
    static void fields(auto& self, auto&& f) { f("weight", self.weight); }
  };
  Table embed, out;
  Parameter scale;

  explicit TiedModel(DType dtype = DType::f64)
      : embed{Parameter(tensor({{0.1, 0.2}, {0.3, -0.1}, {-0.2, 0.4}}, dtype))},
        out(embed),
        scale(Tensor::ones({2}, dtype)) {}
  Var logits(const Tensor& ids) const { return linear(embedding(embed.weight, ids), out.weight); }
  static void fields(auto& self, auto&& f) { f("embed", self.embed), f("out", self.out), f("scale", self.scale); }
};

struct Net {
  Parameter a, b, c;
  explicit Net(double value = 0, DType dtype = DType::f32)
      : a(Tensor::full({2, 3}, value, dtype)), b(Tensor::full({4}, value, dtype)), c(Tensor::full({}, value, dtype)) {}
  static void fields(auto& self, auto&& f) { f("a", self.a), f("b", self.b), f("c", self.c); }
};

bool holds(const Net& net, double value) {
  return net.a.value().at({1, 2}) == value && net.b.value().at({3}) == value && net.c.value().item() == value;
}

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_SUITE("checkpoint") {
TEST_CASE("checkpoint: parameters and metadata come back") {
  ScratchFolder folder;
  for (DType dtype : {DType::f32, DType::f64}) {
    save(folder.file("net"), Net(0.1, dtype), {{"hidden", "3"}});
    Net net(0, dtype);
    uint64_t id = net.a.id();
    LoadedFile file = load(folder.file("net"), net);
    CHECK(file.metadata == Metadata{{"hidden", "3"}});
    CHECK(file.has_crc);
    CHECK(holds(net, dtype == DType::f32 ? static_cast<double>(0.1f) : 0.1));
    CHECK(net.a.id() == id);
  }
}

TEST_CASE("checkpoint: a mismatch lists every name and nothing is loaded") {
  ScratchFolder folder;
  write_safetensors(folder.file("x"), {{{"a", Tensor::ones({3, 2})},
                                        {"b", Tensor::ones({4}, DType::f64)},
                                        {"B", Tensor::ones({4})},
                                        {"c.weight", Tensor::ones({}, DType::i64)}},
                                       {}});
  Net net(5);
  std::string message = error_of([&] { load(folder.file("x"), net); });
  CHECK(message ==
        "load: " + folder.file("x") +
            " does not fit, nothing was loaded: a has shape (3, 2), expected (2, 3); b is f64, expected f32; "
            "c f32 () is missing; B f32 (4,) is unknown; c.weight i64 () is unknown; to change the dtype on "
            "the way, say LoadOptions{.convert = true}");
  CHECK(holds(net, 5));
  message = error_of([&] { load(folder.file("x"), net, {.convert = true}); });
  CHECK(message.find("f64") == std::string::npos);
  CHECK(holds(net, 5));
}

TEST_CASE("checkpoint: one wrong name among right ones loads nothing") {
  ScratchFolder folder;
  NamedTensors tensors = named_tensors(named_parameters(Net(1)));
  for (size_t i = 0; i < 3; ++i) {
    NamedTensors wrong = tensors;
    wrong[i].first += "x";
    write_safetensors(folder.file("x"), {wrong, {}});
    Net net(5);
    std::string message = error_of([&] { load(folder.file("x"), net); });
    CHECK(message.find(wrong[i].first + " f32") != std::string::npos);
    CHECK(message.find(tensors[i].first + " f32") != std::string::npos);
    CHECK(holds(net, 5));
  }
}

TEST_CASE("checkpoint: a damaged file changes nothing") {
  ScratchFolder folder;
  save(folder.file("x"), Net(1));
  std::string bytes = read_bytes(folder.file("x"));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(folder.file("x"), bytes);
  Net net(5);
  CHECK(error_of([&] { load(folder.file("x"), net); }).find("checksum") != std::string::npos);
  CHECK(holds(net, 5));
}

TEST_CASE("checkpoint: f32 files and f64 models meet on request only") {
  ScratchFolder folder;
  Net wide(0, DType::f64), narrow(0);
  save(folder.file("narrow"), Net(0.1));
  save(folder.file("wide"), Net(0.1, DType::f64));
  CHECK(error_of([&] { load(folder.file("narrow"), wide); }).find("c is f32, expected f64") != std::string::npos);
  CHECK(error_of([&] { load(folder.file("wide"), narrow); }).find("a is f64, expected f32") != std::string::npos);
  load(folder.file("narrow"), wide, {.convert = true});
  load(folder.file("wide"), narrow, {.convert = true});
  CHECK(holds(wide, static_cast<double>(0.1f)));
  CHECK(holds(narrow, static_cast<double>(0.1f)));
  CHECK(wide.a.dtype() == DType::f64);
}

TEST_CASE("checkpoint: tied parameters are stored once and tied after load") {
  ScratchFolder folder;
  TiedModel model;
  model.embed.weight.mutable_value().fill_(3);
  save(folder.file("x"), model);
  TensorFile file = read_safetensors(folder.file("x"));
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.tensors[0].first == "embed.weight");
  TiedModel other;
  load(folder.file("x"), other);
  CHECK(other.embed.weight.id() == other.out.weight.id());
  CHECK(other.out.weight.value().at({2, 1}) == 3);
}

TEST_CASE("checkpoint: other writers store tied parameters under any or all of their paths") {
  ScratchFolder folder;
  Tensor table = Tensor::full({3, 2}, 7, DType::f64), scale = Tensor::full({2}, 7, DType::f64);
  auto loaded = [&](const NamedTensors& tensors) {
    write_safetensors(folder.file("x"), {tensors, {}});
    TiedModel model;
    std::string message = error_of([&] { load(folder.file("x"), model); });
    bool changed = model.out.weight.value().at({0, 0}) == 7 || model.scale.value().at({0}) == 7;
    CHECK(changed == message.empty());
    return message;
  };
  CHECK(loaded({{"embed.weight", table}, {"out.weight", table}, {"scale", scale}}) == "");
  CHECK(loaded({{"out.weight", table}, {"scale", scale}}) == "");
  Tensor nearly = table.clone();
  nearly.set({2, 1}, std::nextafter(7.0, 8.0));
  CHECK(loaded({{"embed.weight", table}, {"out.weight", nearly}, {"scale", scale}})
            .find("embed.weight and out.weight are tied here, but differ there") != std::string::npos);
  CHECK(loaded({{"scale", scale}}).find("embed.weight (tied to out.weight) f64 (3, 2) is missing") !=
        std::string::npos);
}

TEST_CASE("checkpoint: load_parameters refuses doubled names and expanded parameters") {
  Net net(5);
  NamedTensors tensors = named_tensors(named_parameters(Net(1)));
  tensors.push_back(tensors[0]);
  CHECK(error_of([&] { load_parameters("here", tensors, all_paths(net)); }) ==
        "here does not fit, nothing was loaded: a comes twice");
  tensors.pop_back();
  net.b.mutable_value() = Tensor::full({1}, 5).expand({4});
  CHECK(error_of([&] { load_parameters("here", tensors, all_paths(net)); }).find("elements of b share memory") !=
        std::string::npos);
  CHECK(holds(net, 5));
  net.b.mutable_value() = Tensor::full({8}, 5).slice(0, 0, 8, 2);
  load_parameters("here", tensors, all_paths(net));
  CHECK(holds(net, 1));
}

TEST_CASE("checkpoint: loss and gradient and step of a tied model") {
  TiedModel model;
  Sgd optimizer(model, {.lr = 0.1});
  CHECK(optimizer.parameters().size() == 2);
  CHECK(parameter_count(model) == 8);
  Tape tape;
  Var loss = cross_entropy(model.logits(tensor({1})), tensor({2}));
  CHECK(loss.item() == doctest::Approx(1.205276203118276).epsilon(1e-15));
  Gradients grads = tape.backward(loss);
  CHECK(grads.size() == 1);
  double g[] = {0.1003341656, -0.0334447219, 0.3930890025, -0.2864555714, -0.2101172295, 0.0700390765};
  double w[] = {0.0899665834, 0.2033444722, 0.2606910997, -0.0713544429, -0.1789882771, 0.3929960924};
  for (int64_t i = 0; i < 6; ++i) CHECK(std::abs(grads[model.out.weight].at({i / 2, i % 2}) - g[i]) < 1e-10);
  optimizer.step(grads);
  for (int64_t i = 0; i < 6; ++i) CHECK(std::abs(model.embed.weight.value().at({i / 2, i % 2}) - w[i]) < 1e-10);
  CHECK(model.scale.value().at({0}) == 1);
}
}
