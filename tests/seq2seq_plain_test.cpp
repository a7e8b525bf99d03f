// Encoder-decoders whose decoder knows the source by one state.
#include <tapedeck/models/seq2seq_plain.h>

#include "model_audit.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

template <class Cell>
auto maker(PlainSeq2SeqOptions options) {
  return [options](const ModelSize& size, Rng& rng) {
    PlainSeq2SeqOptions o = options;
    o.vocabulary = size.vocabulary;
    o.d_model = size.size;
    o.dtype = size.dtype;
    return Seq2Seq<Cell>(o, rng);
  };
}

template <class Cell>
void audit_cell() {
  for (FixedContext context : {FixedContext::initial_state, FixedContext::every_step}) {
    for (int64_t layers : {1, 2}) {
      CAPTURE(static_cast<int>(context));
      CAPTURE(layers);
      audit_model(maker<Cell>({.vocabulary = 0, .layers = layers, .context = context}));
    }
  }
}

template <class Cell = GRUCell>
Seq2Seq<Cell> make_model(const PlainSeq2SeqOptions& options) {
  Rng rng(1);
  return Seq2Seq<Cell>(options, rng);
}

}  // namespace

TEST_SUITE("seq2seq_plain") {
TEST_CASE("plain seq2seq: audit of RNN cells") { audit_cell<RNNCell>(); }
TEST_CASE("plain seq2seq: audit of GRU cells") { audit_cell<GRUCell>(); }
TEST_CASE("plain seq2seq: audit of LSTM cells") { audit_cell<LSTMCell>(); }

TEST_CASE("plain seq2seq: audit of reversed sources and separate embeddings") {
  audit_model(maker<LSTMCell>({.vocabulary = 0, .reverse_source = true, .shared_embedding = false}));
}

TEST_CASE("plain seq2seq: scheduled sampling") {
  audit_sampling(maker<LSTMCell>({.vocabulary = 0, .layers = 2}));
  audit_sampling(maker<GRUCell>({.vocabulary = 0, .context = FixedContext::every_step, .dropout = .3}));
}

TEST_CASE("plain seq2seq: dropout") {
  audit_dropout(maker<LSTMCell>({.vocabulary = 0, .layers = 2, .dropout = .4}));
  audit_dropout(maker<GRUCell>({.vocabulary = 0, .context = FixedContext::every_step, .dropout = .4}));
  audit_model(maker<GRUCell>({.vocabulary = 0, .layers = 2, .dropout = .4}));
}

// One state has to hold the whole row.
TEST_CASE("plain seq2seq: the model of Sutskever et al. learns reversal") {
  audit_learning(maker<LSTMCell>({.vocabulary = 0}), {.task = {.min_length = 1, .max_length = 3, .symbols = 4}});
}
TEST_CASE("plain seq2seq: the model of Cho et al. learns reversal") {
  audit_learning(maker<GRUCell>({.vocabulary = 0, .context = FixedContext::every_step}),
                 {.task = {.min_length = 1, .max_length = 3, .symbols = 4}});
}

TEST_CASE("plain seq2seq: the encoder ends at the last token and the decoder starts there") {
  Seq2Seq<LSTMCell> model = make_model<LSTMCell>({.vocabulary = 8, .d_model = 4, .layers = 2, .dtype = DType::f64});
  auto encoded = model.encode(tensor({{3, 4, 5, 0}, {6, 0, 0, 0}}));
  CHECK(!encoded.context.defined());
  LSTM::Result one = model.encoder(model.embed(tensor({{6}})));
  CHECK(distance(encoded.state.h.value().select(1, 1), one.final_state.h.value().select(1, 0)) <= 1e-15);
  CHECK(distance(encoded.state.c.value().select(1, 1), one.final_state.c.value().select(1, 0)) <= 1e-15);
  LSTM::Result read = model.encoder(model.embed(tensor({{3, 4, 5}})));
  LSTM::Result written = model.decoder(model.embed(tensor({{1, 7}})), Ints{2}, read.final_state);
  const SequenceOutput output = model.forward(tensor({{3, 4, 5}}), tensor({{1, 7}}));
  CHECK(distance(output.logits.value(), model.out(written.output).value()) <= 1e-15);
  CHECK(!output.attention.defined());
}

TEST_CASE("plain seq2seq: the context enters every step and the output") {
  Seq2Seq<GRUCell> model =
      make_model({.vocabulary = 8, .d_model = 4, .context = FixedContext::every_step, .dtype = DType::f64});
  GRU::Result read = model.encoder(model.embed(tensor({{3, 4, 5}})));
  Var c = tanh((*model.context)(select(read.final_state, 0, 0)));
  Var state = tanh((*model.initial)(c));
  const Tensor logits = model.forward(tensor({{3, 4, 5}}), tensor({{1, 7, 3}})).logits.value();
  int64_t t = 0;
  for (int64_t token : {1, 7, 3}) {
    Var y = model.embed(tensor({token}));
    state = model.decoder.cells[0](cat({y, c}, 1), state);
    CHECK(distance(logits.select(1, t++), model.out(cat({state, y, c}, 1)).value()) <= 1e-15);
  }
}

TEST_CASE("plain seq2seq: a reversed source is the source read backwards") {
  const PlainSeq2SeqOptions options = {.vocabulary = 8, .d_model = 4, .dtype = DType::f64};
  PlainSeq2SeqOptions reversing = options;
  reversing.reverse_source = true;
  const Tensor target = tensor({{1, 3}, {1, 4}});
  CHECK(same_bits(make_model(reversing).forward(tensor({{3, 4, 5}, {6, 7, 0}}), target).logits.value(),
                  make_model(options).forward(tensor({{5, 4, 3}, {7, 6, 0}}), target).logits.value()));
}

TEST_CASE("plain seq2seq: names of parameters") {
  std::string text;
  for (const NamedParameter& p : named_parameters(
           make_model({.vocabulary = 8, .d_model = 4, .layers = 2, .context = FixedContext::every_step}))) {
    if (p.name.find("_l") == std::string::npos) text += fmt::format("{} {}\n", p.name, p.parameter.shape());
  }
  CHECK(text ==
        "embed.weight (8, 4)\n"
        "context.weight (4, 4)\n"
        "context.bias (4,)\n"
        "initial.weight (8, 4)\n"
        "initial.bias (8,)\n"
        "out.weight (8, 12)\n"
        "out.bias (8,)\n");
}

TEST_CASE("plain seq2seq: wrong options and batches are named") {
  auto error = [](const PlainSeq2SeqOptions& options) { return error_of([&] { make_model(options); }); };
  CHECK(says(error({.vocabulary = 8, .target_vocabulary = 9}), {"8", "9", "shared_embedding"}));
  CHECK(says(error({.vocabulary = 8, .layers = 0}), {"layers", "0"}));
  CHECK(says(error({.vocabulary = 8, .dropout = -.5}), {"dropout", "-0.5"}));
  Seq2Seq<GRUCell> model = make_model({.vocabulary = 8, .d_model = 4});
  CHECK(says(error_of([&] { model.encode(tensor({{3, 4}, {0, 0}})); }), {"row 1", "empty"}));
  CHECK(says(error_of([&] { model.forward(tensor({{3, 4}}), tensor({1, 3})); }), {"seq2seq", "(2,)"}));
}
}
