// Values and gradients against PyTorch's: see golden/README.md.
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/models/translation_study.h>
#include <tapedeck/nn/checkpoint.h>
#include <tapedeck/nn/layer_norm.h>
#include <tapedeck/nn/lstm.h>
#include <tapedeck/nn/multi_head_attention.h>
#include <tapedeck/nn/optim.h>
#include <tapedeck/nn/rnn.h>
#include <tapedeck/ops/ops.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>

#include "given_gradients.h"

using namespace tapedeck;

namespace {

constexpr size_t expected_files = 65;
constexpr double module_tolerance = 1e-12, model_tolerance = 1e-10;

// One golden file. Every out., grad. and loss in it must be compared before the check is complete.
class Golden {
 public:
  Golden(const std::string& path, std::string name, double tolerance)
      : file_(read_safetensors(path)), name_(std::move(name)), tolerance_(tolerance) {
    for (const auto& [key, value] : file_.tensors) {
      if (key == "loss" || key.starts_with("out.") || key.starts_with("grad.")) open_.insert(key);
    }
  }

  const std::string& name() const { return name_; }
  const Tensor* find(const std::string& key) const {
    for (const auto& [other, value] : file_.tensors) {
      if (other == key) return &value;
    }
    return nullptr;
  }
  const Tensor& operator[](const std::string& key) const {
    const Tensor* value = find(key);
    if (!value) fail("no tensor {}", key);
    return *value;
  }

  // Options as Python prints them: 0.1, True, (0.8, 0.99).
  std::string option(const std::string& key, const std::string& otherwise) const {
    auto found = file_.metadata.find(key);
    return found == file_.metadata.end() ? otherwise : found->second;
  }
  double number(const std::string& key, double otherwise) const {
    return file_.metadata.contains(key) ? std::stod(option(key, "")) : otherwise;
  }
  std::vector<double> numbers(const std::string& key) const {  // 1,3,5
    std::vector<double> result;
    std::stringstream list(option(key, ""));
    for (std::string item; std::getline(list, item, ',');) result.push_back(std::stod(item));
    return result;
  }
  bool flag(const std::string& key) const { return option(key, "False") == "True"; }
  std::pair<double, double> pair(const std::string& key, std::pair<double, double> otherwise) const {
    std::string text = option(key, "");
    if (text.empty()) return otherwise;
    size_t comma = text.find(',');
    return {std::stod(text.substr(1)), std::stod(text.substr(comma + 1))};
  }

  // in.X as a leaf if the file has its gradient, else a constant.
  Var input(Tape& tape, const std::string& x) {
    const Tensor& value = (*this)["in." + x];
    if (!find("grad.in." + x)) return value;
    return leaves_.emplace_back(x, tape.leaf(value)).second;
  }

  // Fills the module from param.*, whose names must be the module's.
  template <class M>
  void parameters(M& module) {
    NamedTensors stored;
    for (const auto& [key, value] : file_.tensors) {
      if (key.starts_with("param.")) stored.emplace_back(key.substr(6), value);
    }
    load_parameters(name_, stored, all_paths(module));
    parameters_ = named_parameters(module);
  }

  void compare(const std::string& key, const Tensor& value) {
    const Tensor& right = (*this)[key];
    open_.erase(key);
    if (value.shape() != right.shape() || value.dtype() != right.dtype()) {
      fail("{} is {} {}, expected {} {}", key, value.dtype(), value.shape(), right.dtype(), right.shape());
    }
    std::vector<double> a = value.to(DType::f64).to_vector<double>(), b = right.to(DType::f64).to_vector<double>();
    double scale = 0, relative = 0;
    for (double v : b) scale = std::isfinite(v) ? std::max(scale, std::abs(v)) : scale;
    // Nothing but rounding (a bias of all keys has a gradient of 0): there is no largest digit to be relative to.
    if (scale < 1e-14) scale = 1;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] == b[i]) continue;  // also infinities
      // Beside 1e300, a wrong 1 would not be seen: files of extreme values are compared one by one.
      double r =
          std::abs(a[i] - b[i]) / (name_.ends_with("_extreme") ? std::min(scale, std::max(1., std::abs(b[i]))) : scale);
      relative = std::isnan(r) ? HUGE_VAL : std::max(relative, r);
    }
    CAPTURE(key);
    CHECK(relative <= tolerance_);
    worst_ = std::max(worst_, relative);
  }

  // Compares the outputs, their loss and all its gradients.
  void outputs(Tape& tape, const std::vector<std::pair<std::string, Var>>& outputs) {
    Var loss;
    for (const auto& [x, y] : outputs) {
      compare("out." + x, y.value());
      Var part = sum(y * (*this)["g." + x]);
      loss = loss.defined() ? loss + part : part;
    }
    loss_of(tape, loss);
  }

  void loss_of(Tape& tape, const Var& loss) {
    compare("loss", loss.value());
    Gradients grads = tape.backward(loss);
    for (const auto& [x, leaf] : leaves_) compare("grad.in." + x, grads[leaf]);
    for (const auto& [path, parameter] : parameters_) compare("grad.param." + path, grads[parameter]);
  }

  void only_the_inputs_count() { open_.clear(); }
  void check_complete() const {
    for (const std::string& key : open_) FAIL_CHECK("not compared: " << key);
  }
  double worst() const { return worst_; }

 private:
  TensorFile file_;
  std::string name_;
  double tolerance_;
  double worst_ = 0;
  std::set<std::string> open_;
  std::vector<std::pair<std::string, Var>> leaves_;
  std::vector<NamedParameter> parameters_;
};

// ---- One function a kind of file ----

template <Var (*op)(Operand)>
void check_activation(Golden& golden) {
  Tape tape;
  golden.outputs(tape, {{"y", op(golden.input(tape, "x"))}});
}

template <Var (*op)(Operand, int64_t)>
void check_softmax(Golden& golden) {
  Tape tape;
  golden.outputs(tape, {{"y", op(golden.input(tape, "x"), static_cast<int64_t>(golden.number("dim", -1)))}});
}

void check_cross_entropy(Golden& golden) {
  const Tensor& target = golden["in.target"];
  CrossEntropyOptions options;
  if (golden.option("ignore_index", "") != "")
    options.ignore_index = static_cast<int64_t>(golden.number("ignore_index", 0));
  options.label_smoothing = golden.number("label_smoothing", 0);
  std::string reduction = golden.option("reduction", golden["out.ce"].shape() == target.shape() ? "none" : "mean");
  options.reduction = reduction == "none" ? Reduction::none : reduction == "sum" ? Reduction::sum : Reduction::mean;
  Tape tape;
  golden.outputs(tape, {{"ce", cross_entropy(golden.input(tape, "logits"), target, options)}});
}

void check_linear(Golden& golden) {
  Rng rng(1);
  const Shape& shape = golden["param.weight"].shape();
  Linear layer(shape[1], shape[0], rng, {.bias = golden.find("param.bias") != nullptr, .dtype = DType::f64});
  golden.parameters(layer);
  Tape tape;
  golden.outputs(tape, {{"y", layer(golden.input(tape, "x"))}});
}

void check_layer_norm(Golden& golden) {
  LayerNorm layer(
      golden["param.weight"].size(0),
      {.eps = golden.number("eps", 1e-5), .bias = golden.find("param.bias") != nullptr, .dtype = DType::f64});
  golden.parameters(layer);
  Tape tape;
  golden.outputs(tape, {{"y", layer(golden.input(tape, "x"))}});
}

void check_embedding(Golden& golden) {
  Rng rng(1);
  const Shape& shape = golden["param.weight"].shape();
  std::optional<int64_t> pad;
  if (golden.option("padding_idx", "") != "") pad = static_cast<int64_t>(golden.number("padding_idx", 0));
  Embedding layer(shape[0], shape[1], rng, {.padding_idx = pad, .dtype = DType::f64});
  golden.parameters(layer);
  Tape tape;
  golden.outputs(tape, {{"y", layer(golden["in.ids"])}});
}

// A cell whose state is h alone, or h and c.
template <class Cell>
void check_cell(Golden& golden) {
  Rng rng(1);
  Cell cell(golden["in.x"].size(1), golden["in.h"].size(1), rng,
            {.bias = golden.find("param.bias_ih") != nullptr, .dtype = DType::f64});
  golden.parameters(cell);
  Tape tape;
  Var x = golden.input(tape, "x"), h = golden.input(tape, "h");
  if constexpr (std::is_same_v<typename Cell::State, LSTMState>) {
    LSTMState next = cell(x, {h, golden.input(tape, "c")});
    golden.outputs(tape, {{"h", next.h}, {"c", next.c}});
  } else {
    golden.outputs(tape, {{"h", cell(x, h)}});
  }
}

template <class Layer>
void check_recurrent(Golden& golden) {
  Rng rng(1);
  Layer net(golden["in.x"].size(2), golden["param.weight_hh_l0"].size(1), rng,
            {.layers = static_cast<int64_t>(golden.number("layers", 1)),
             .bidirectional = golden.flag("bidirectional"),
             .bias = golden.find("param.bias_ih_l0") != nullptr,
             .dtype = DType::f64});
  golden.parameters(net);
  Tape tape;
  Var x = golden.input(tape, "x"), h0 = golden.input(tape, "h0");
  std::vector<int64_t> lengths(static_cast<size_t>(x.size(0)), x.size(1));
  if (const Tensor* given = golden.find("in.lengths")) lengths = given->to_vector<int64_t>();
  if constexpr (std::is_same_v<typename Layer::State, LSTMState>) {
    auto result = net(x, lengths, {h0, golden.input(tape, "c0")});
    golden.outputs(tape, {{"y", result.output}, {"h_n", result.final_state.h}, {"c_n", result.final_state.c}});
  } else {
    auto result = net(x, lengths, h0);
    golden.outputs(tape, {{"y", result.output}, {"h_n", result.final_state}});
  }
}

// Files name the query and the keys in two ways.
struct AttentionNames {
  const char *query = "query", *keys = "keys";
};

template <class Attention>
void check_attention(Golden& golden, const Attention& attention, const AttentionNames& names = {}) {
  golden.parameters(attention);
  Tape tape;
  Var query = golden.input(tape, names.query), keys = golden.input(tape, names.keys);
  const Tensor* mask = golden.find("in.mask");
  if (golden.name().ends_with("_allmasked_row")) {  // the one deliberate difference
    int64_t row = 0;
    while (max(mask->select(0, row).to(DType::i64)).item() != 0) ++row;
    auto attend = [&] { attention(query, attention.project(keys, *mask)); };
    CHECK_THROWS_WITH_AS(attend(), doctest::Contains(fmt::format("row {}", row).c_str()), Error);
    return golden.only_the_inputs_count();
  }
  AttentionResult result = attention(query, attention.project(keys, mask ? *mask : Tensor()));
  golden.outputs(tape, {{"context", result.context}, {"weights", result.weights}});
}

void check_additive(Golden& golden) {
  Rng rng(1);
  const Tensor& W_q = golden["param.W_q.weight"];
  check_attention(golden, AdditiveAttention(W_q.size(1), golden["in.keys"].size(2), W_q.size(0), rng, DType::f64));
}

void check_dot(Golden& golden) {
  Rng rng(1);
  const Tensor& W = golden["param.W.weight"];
  check_attention(golden, DotProductAttention(W.size(1), W.size(0), rng, DType::f64));
}

void check_plain_dot(Golden& golden) { check_attention(golden, PlainDotAttention{}); }

// One query a row, given with its time axis.
void check_attention_mechanism(Golden& golden) {
  check_attention(golden, PlainDotAttention{}, {"decoder_hidden", "encoder_outputs"});
}

void check_concat(Golden& golden) {
  Rng rng(1);
  const int64_t A = golden["param.W.weight"].size(0);
  check_attention(golden, ConcatAttention(golden["in.query"].size(1), golden["in.keys"].size(2), A, rng, DType::f64));
}

void check_scaled_dot(Golden& golden) {
  Rng rng(1);
  const Tensor &W_q = golden["param.W_q.weight"], &W_k = golden["param.W_k.weight"];
  check_attention(golden, ScaledDotProductAttention(W_q.size(1), W_k.size(1), W_q.size(0), rng, DType::f64),
                  {"hidden", "encoder_outputs"});
}

// PyTorch's masks say what is blocked.
void check_multi_head(Golden& golden) {
  Rng rng(1);
  const Shape& W = golden["param.in_proj_weight"].shape();
  MultiHeadAttention layer(W[1], static_cast<int64_t>(golden.number("heads", 1)), rng, {.dtype = DType::f64});
  golden.parameters(layer);
  Tensor mask;
  if (const Tensor* blocked = golden.find("in.key_padding_mask")) mask = (~Var(*blocked)).value();
  const Tensor* attn_mask = golden.find("in.attn_mask");
  if (attn_mask) {  // the causal one, and no other
    const int64_t T = attn_mask->size(0);
    const Var future = Var(Tensor::arange(T)) > Tensor::arange(T).unsqueeze(1);
    REQUIRE(all(logical_not(future ^ *attn_mask)).value().at({}) == 1);
  }
  Tape tape;
  Var x = golden.input(tape, "x");
  const bool cross = golden.find("in.mem") != nullptr;
  const MultiHeadResult result = cross ? layer(x, layer.project(golden.input(tape, "mem"), mask))
                                       : layer.attend_self(x, mask, attn_mask != nullptr);
  golden.outputs(tape, {{"y", result.output}, {"weights", result.weights}});
}

Seq2SeqAttention seq2seq_of(Golden& golden) {
  Rng rng(1);
  const Tensor& embed = golden["param.embed.weight"];
  bool additive = golden.find("param.attention.v.weight") != nullptr;
  Seq2SeqAttention model({.vocabulary = embed.size(0),
                          .d_model = embed.size(1),
                          .attention = additive ? AttentionKind::additive : AttentionKind::dot,
                          .encoder_pads = EncoderPads::run_over,
                          .dtype = DType::f64},
                         rng);
  golden.parameters(model);
  return model;
}

void check_seq2seq(Golden& golden) {
  const Seq2SeqAttention model = seq2seq_of(golden);
  Tape tape;
  auto result = model.forward(golden["in.src"], golden["in.tgt_in"]);
  golden.compare("out.logits", result.logits.value());
  golden.compare("out.attn", result.attention.value());
  golden.loss_of(tape, cross_entropy(result.logits, golden["in.tgt_out"], {.ignore_index = 0}));
}

// ---- Beam search ----

struct Listed {
  double score;
  Sequence tokens;  // with eos, if it ended
  bool finished() const { return tokens.back() == eos_id; }
};

// Study text 002's beam search for one sentence, best first. As it stands, hypotheses that end take places of the beam,
// which shrinks, an end outside the beam is lost, and at max_length unfinished hypotheses compete with finished ones.
// Repaired, `beam` live hypotheses stand beside all that ended, and unfinished ones count only if nothing ended.
std::vector<Listed> listed_beam_search(Decoding& decoding, size_t beam, double alpha, int64_t max_length,
                                       bool repaired) {
  struct Candidate {
    double log_p;
    Sequence tokens;
    int64_t from;
  };
  std::vector<Candidate> live(1), candidates;
  std::vector<Listed> done;
  auto add = [&](const Candidate& c) {
    const double L = static_cast<double>(c.tokens.size());
    done.push_back({c.log_p / std::pow((5 + L) / 6, alpha), c.tokens});
  };
  for (int64_t step = 0; step < max_length && !live.empty(); ++step) {
    Tensor last = Tensor::full({static_cast<int64_t>(live.size())}, bos_id, DType::i64);
    for (size_t i = 0; step > 0 && i < live.size(); ++i) last.set({static_cast<int64_t>(i)}, live[i].tokens.back());
    const Tensor log_p = log_softmax(decoding.step(last).logits).value();
    candidates.clear();
    for (size_t i = 0; i < live.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i);
      const Tensor best =
          topk(log_p.select(0, row), repaired ? log_p.size(1) : static_cast<int64_t>(beam)).indices.value();
      for (int64_t k = 0; k < best.numel(); ++k) {
        const int64_t token = static_cast<int64_t>(best.at({k}));
        candidates.push_back({live[i].log_p + log_p.at({row, token}), live[i].tokens, row});
        candidates.back().tokens.push_back(token);
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.log_p > b.log_p; });
    live.clear();
    for (size_t i = 0; i < candidates.size() && (repaired || i < beam); ++i) {
      if (candidates[i].tokens.back() == eos_id) {
        add(candidates[i]);
      } else if (live.size() < beam) {
        live.push_back(candidates[i]);
      }
    }
    if (live.empty()) break;
    Tensor rows = Tensor::empty({static_cast<int64_t>(live.size())}, DType::i64);
    for (size_t i = 0; i < live.size(); ++i) rows.set({static_cast<int64_t>(i)}, live[i].from);
    decoding.select(rows);
  }
  if (!repaired || done.empty()) {
    for (const Candidate& c : live) add(c);
  }
  std::stable_sort(done.begin(), done.end(), [](const Listed& a, const Listed& b) { return a.score > b.score; });
  return done;
}

// PyTorch's tokens and scores are those of the listing as it stands, and ours those of the listing repaired: the
// differences between the two are the deliberate ones, and only they.
void check_beam(Golden& golden) {
  const Seq2SeqAttention model = seq2seq_of(golden);
  const Tensor& source = golden["in.src"];
  const int64_t B = source.size(0), max_length = static_cast<int64_t>(golden.number("max_len", 0));
  const std::vector<double> beams = golden.numbers("beams"), alphas = golden.numbers("alphas");

  Tensor greedy = Tensor::empty({B, max_length}, DType::i64);
  auto free_running = model.begin(source);
  Tensor previous = Tensor::full({B}, bos_id, DType::i64);
  for (int64_t t = 0; t < max_length; ++t) {
    previous = argmax(free_running->step(previous).logits).value();
    greedy.select(1, t).copy_(previous);
  }
  golden.compare("out.greedy", greedy);

  const Shape cases{B, static_cast<int64_t>(beams.size()), static_cast<int64_t>(alphas.size())};
  Tensor score = Tensor::empty(cases, DType::f64), margin = score.clone(), length = Tensor::empty(cases, DType::i64),
         count = length.clone(), tokens = Tensor::full({cases[0], cases[1], cases[2], max_length}, -1, DType::i64);
  int same = 0, finished_instead = 0, better = 0, other = 0;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t i = 0; i < cases[1]; ++i) {
      for (int64_t j = 0; j < cases[2]; ++j) {
        const double beam = beams[static_cast<size_t>(i)], alpha = alphas[static_cast<size_t>(j)];
        auto listed = [&](bool repaired) {
          auto decoding = model.begin(source.slice(0, b, b + 1));
          return listed_beam_search(*decoding, static_cast<size_t>(beam), alpha, max_length, repaired);
        };
        const std::vector<Listed> all = listed(false);
        const Listed &first = all[0], right = listed(true)[0];
        const int64_t n = static_cast<int64_t>(first.tokens.size()) - (first.finished() ? 1 : 0);
        for (int64_t t = 0; t < n; ++t) tokens.set({b, i, j, t}, first.tokens[static_cast<size_t>(t)]);
        score.set({b, i, j}, first.score), length.set({b, i, j}, n);
        margin.set({b, i, j}, all.size() > 1 ? first.score - all[1].score : 1);
        count.set({b, i, j}, static_cast<int64_t>(all.size()));

        auto decoding = model.begin(source.slice(0, b, b + 1));
        const SearchOptions options{.max_length = max_length, .beam = static_cast<int64_t>(beam), .alpha = alpha};
        const Hypothesis ours = beam_search(*decoding, options)[0][0];
        CAPTURE(b);
        CAPTURE(beam);
        CAPTURE(alpha);
        CHECK(ours.tokens == right.tokens);
        CHECK(ours.finished == right.finished());
        CHECK(std::abs(ours.score - right.score) <= model_tolerance * std::abs(right.score));
        if (ours.tokens == first.tokens)
          ++same;
        else if (ours.finished && !first.finished())
          ++finished_instead;
        else if (ours.score > first.score)
          ++better;
        else
          ++other;
      }
    }
  }
  golden.compare("out.score", score);
  golden.compare("out.margin", margin);
  golden.compare("out.length", length);
  golden.compare("out.n_finished", count);
  golden.compare("out.tokens", tokens);
  CHECK(same > 0);
  MESSAGE(golden.name(), ": of ", cases.numel(), " searches, ", same, " give the listing's tokens, ", finished_instead,
          " a finished hypothesis where the listing takes an unfinished one, ", better, " a better one, ", other,
          " another");
}

void check_study(Golden& golden) {
  Rng rng(1);
  const std::string& name = golden.name();
  const bool attends = golden.find("param.attention.W_k.weight") != nullptr;
  TranslationStudy model({.source_vocabulary = golden["param.src_emb.weight"].size(0),
                          .target_vocabulary = golden["param.tgt_emb.weight"].size(0),
                          .embedding_size = golden["param.src_emb.weight"].size(1),
                          .encoder_size = golden["param.encoder.weight_hh_l0"].size(1),
                          .decoder_size = golden["param.decoder.weight_hh_l0"].size(1),
                          .attention_size = static_cast<int64_t>(golden.number("kq_dim", 0)),
                          .context = attends                                    ? StudyContext::scaled_dot
                                     : name.find("_mean_") != std::string::npos ? StudyContext::mean
                                                                                : StudyContext::none,
                          .pads = name.ends_with("_legacy") ? EncoderPads::run_over : EncoderPads::by_length,
                          .dtype = DType::f64},
                         rng);
  golden.parameters(model);
  Tape tape;
  auto result = model.forward(golden["in.src"], golden["in.tgt_in"]);
  golden.compare("out.logits", result.logits.value());
  if (attends) golden.compare("out.attn", result.attention.value());
  golden.loss_of(tape, cross_entropy(result.logits, golden["in.tgt_out"], {.ignore_index = 0}));
}

// ---- Optimisers: p0, p1, ... as one module ----

struct Numbered {
  std::vector<Parameter> p;
  static void fields(auto& self, auto&& f) { f("p", self.p); }
};

std::vector<std::pair<Parameter, Tensor>> with_gradients(const Golden& golden, const Numbered& module,
                                                         const std::string& suffix) {
  std::vector<std::pair<Parameter, Tensor>> result;
  for (size_t i = 0; i < module.p.size(); ++i) {
    result.emplace_back(module.p[i], golden[fmt::format("in.grad{}{}", i, suffix)]);
  }
  return result;
}

template <class Optimizer, class Options>
void check_optimizer(Golden& golden, const Options& options) {
  Numbered module;
  for (size_t i = 0; const Tensor* start = golden.find(fmt::format("in.p{}.step0", i)); ++i) {
    module.p.emplace_back(start->clone());
  }
  Optimizer optimizer(module, options);
  for (int step = 1; golden.find(fmt::format("in.grad0.step{}", step)); ++step) {
    optimizer.step(given_gradients(with_gradients(golden, module, fmt::format(".step{}", step))));
    for (size_t i = 0; i < module.p.size(); ++i) {
      golden.compare(fmt::format("out.p{}.step{}", i, step), module.p[i].value());
    }
  }
}

template <class Optimizer, class Options>
void check_adam(Golden& golden) {
  Options options;
  auto [beta1, beta2] = golden.pair("betas", {options.beta1, options.beta2});
  check_optimizer<Optimizer>(golden, Options{.lr = golden.number("lr", options.lr),
                                             .beta1 = beta1,
                                             .beta2 = beta2,
                                             .eps = golden.number("eps", options.eps),
                                             .weight_decay = golden.number("weight_decay", options.weight_decay),
                                             .amsgrad = golden.flag("amsgrad")});
}

void check_sgd(Golden& golden) {
  check_optimizer<Sgd>(golden, SgdOptions{.lr = golden.number("lr", 1e-3),
                                          .momentum = golden.number("momentum", 0),
                                          .dampening = golden.number("dampening", 0),
                                          .nesterov = golden.flag("nesterov"),
                                          .weight_decay = golden.number("weight_decay", 0)});
}

void check_clip(Golden& golden) {
  Numbered module;
  for (size_t i = 0; const Tensor* grad = golden.find(fmt::format("in.grad{}", i)); ++i) {
    module.p.emplace_back(Tensor::zeros(grad->shape(), grad->dtype()));
  }
  Gradients grads = given_gradients(with_gradients(golden, module, ""));
  const NormKind kind = golden.option("norm_type", "2") == "inf" ? NormKind::inf : NormKind::l2;
  double norm = clip_grad_norm(module, grads, golden.number("max_norm", 0), kind);
  golden.compare("out.total_norm", Tensor::full({}, norm, DType::f64));
  for (size_t i = 0; i < module.p.size(); ++i) golden.compare(fmt::format("out.grad{}", i), grads[module.p[i]]);
}

struct Kind {
  const char* prefix;
  double tolerance;
  void (*check)(Golden&);
};

// The longest prefix that fits decides.
constexpr Kind kinds[] = {
    {"act_gelu_erf", module_tolerance, check_activation<gelu>},
    {"act_relu", module_tolerance, check_activation<relu>},
    {"act_sigmoid", module_tolerance, check_activation<sigmoid>},
    {"act_tanh", module_tolerance, check_activation<tapedeck::tanh>},
    {"additive_attention", module_tolerance, check_additive},
    {"beam", model_tolerance, check_beam},
    {"clip_grad", module_tolerance, check_clip},
    {"cross_entropy", module_tolerance, check_cross_entropy},
    {"dot_product_attention", module_tolerance, check_dot},
    {"embedding", module_tolerance, check_embedding},
    {"gru_", module_tolerance, check_recurrent<GRU>},
    {"grucell", module_tolerance, check_cell<GRUCell>},
    {"attention_mechanism", module_tolerance, check_attention_mechanism},
    {"luong_concat", module_tolerance, check_concat},
    {"luong_dot", module_tolerance, check_plain_dot},
    {"luong_general", module_tolerance, check_dot},
    {"single_query_sdp", module_tolerance, check_scaled_dot},
    {"lstm_", module_tolerance, check_recurrent<LSTM>},
    {"lstmcell", module_tolerance, check_cell<LSTMCell>},
    {"mha_", module_tolerance, check_multi_head},
    {"rnn_tanh", module_tolerance, check_recurrent<RNN>},
    {"rnncell_tanh", module_tolerance, check_cell<RNNCell>},
    {"layernorm", module_tolerance, check_layer_norm},
    {"linear", module_tolerance, check_linear},
    {"log_softmax", module_tolerance, check_softmax<log_softmax>},
    {"opt_adam", module_tolerance, check_adam<Adam, AdamOptions>},
    {"opt_adamw", module_tolerance, check_adam<AdamW, AdamWOptions>},
    {"opt_sgd", module_tolerance, check_sgd},
    {"seq2seq", model_tolerance, check_seq2seq},
    {"softmax", module_tolerance, check_softmax<softmax>},
    {"study", model_tolerance, check_study},
};

const Kind* kind_of(const std::string& name) {
  const Kind* best = nullptr;
  for (const Kind& kind : kinds) {
    bool longer = !best || std::string_view(kind.prefix).size() > std::string_view(best->prefix).size();
    if (name.starts_with(kind.prefix) && longer) best = &kind;
  }
  return best;
}

}  // namespace

TEST_SUITE("golden") {
TEST_CASE("golden: values and gradients are PyTorch's") {
  const char* chosen = std::getenv("TAPEDECK_GOLDEN");
  std::string folder = chosen && *chosen ? chosen : TAPEDECK_SOURCE_DIR "/tests/golden";
  REQUIRE_MESSAGE(std::filesystem::is_directory(folder), "no such folder: ", folder);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") names.insert(entry.path().stem());
  }
  std::string checked, unknown;
  size_t count = 0;
  double worst = 0;
  for (const std::string& name : names) {
    const Kind* kind = kind_of(name);
    if (!kind) {
      unknown += " " + name;
      continue;
    }
    CAPTURE(name);
    try {
      Golden golden(folder + "/" + name + ".safetensors", name, kind->tolerance);
      kind->check(golden);
      golden.check_complete();
      worst = std::max(worst, golden.worst());
    } catch (const std::exception& error) {
      FAIL_CHECK(error.what());
    }
    checked += " " + name;
    ++count;
  }
  MESSAGE("checked ", count, " files in ", folder, ", largest relative difference ", worst, ":", checked);
  MESSAGE("not known yet:", unknown.empty() ? " none" : unknown);
  CHECK(count >= expected_files);
}
}
