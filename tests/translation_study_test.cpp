// The model of the translation study; its values are compared with PyTorch's in golden_test.cpp.
#include <tapedeck/models/translation_study.h>

#include "model_audit.h"

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

constexpr StudyContext all_contexts[] = {StudyContext::scaled_dot, StudyContext::mean, StudyContext::none};

auto maker(StudyContext context, double dropout = 0) {
  return [=](const ModelSize& size, Rng& rng) {
    return TranslationStudy({.source_vocabulary = size.vocabulary,
                             .target_vocabulary = size.vocabulary,
                             .embedding_size = size.size,
                             .encoder_size = size.size,
                             .decoder_size = size.size + 1,
                             .attention_size = size.size,
                             .context = context,
                             .dropout = dropout,
                             .dtype = size.dtype},
                            rng);
  };
}

}  // namespace

TEST_SUITE("translation_study") {
TEST_CASE("translation study: audit") {
  for (StudyContext context : all_contexts) {
    CAPTURE(static_cast<int>(context));
    audit_model(maker(context));
  }
}

TEST_CASE("translation study: scheduled sampling") {
  for (StudyContext context : all_contexts) audit_sampling(maker(context, .3));
}

TEST_CASE("translation study: dropout") {
  audit_dropout(maker(StudyContext::scaled_dot, .4));
  audit_model(maker(StudyContext::scaled_dot, .4));
}

TEST_CASE("translation study: the model with attention learns reversal") {
  audit_learning(maker(StudyContext::scaled_dot), {.task = {.min_length = 2, .max_length = 3, .symbols = 4}});
}

TEST_CASE("translation study: run over pads depends on them and by length does not") {
  Rng rng(1);
  TranslationStudy by_length({.source_vocabulary = 8, .target_vocabulary = 8, .dtype = DType::f64}, rng);
  TranslationStudy run_over = by_length;
  run_over.pads = EncoderPads::run_over;
  const Batch full = batch_of(five_pairs, {2, 4}), alone = batch_of(five_pairs, {0}),
              padded = batch_of(five_pairs, {0}, 2);
  CHECK(distance(logits_of(run_over, full), logits_of(by_length, full)) <= 1e-14);
  CHECK(distance(logits_of(by_length, padded), logits_of(by_length, alone)) <= 1e-14);
  CHECK(distance(logits_of(run_over, padded), logits_of(run_over, alone)) > 1e-4);
  CHECK(!all_zero(run_over.forward(padded.source, padded.target_in).attention.value().slice(2, 3, 5)));
}

TEST_CASE("translation study: wrong options are named") {
  Rng rng(1);
  CHECK(says(error_of([&] { TranslationStudy({.source_vocabulary = 8, .target_vocabulary = 8, .dropout = 2}, rng); }),
             {"translation study", "dropout", "2"}));
}
}
