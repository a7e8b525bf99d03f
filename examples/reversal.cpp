// Learns to reverse sequences: a GRU encoder-decoder with attention finds the alignment t -> n - 1 - t by itself.
#include <tapedeck/core/blas.h>
#include <tapedeck/models/metrics.h>
#include <tapedeck/models/terminal.h>
#include <tapedeck/models/trainer.h>
#include <tapedeck/nn/checkpoint.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

using namespace tapedeck;

namespace {

struct Settings {
  std::string attention = "additive";
  int64_t seed = 1, steps = 1200, batch = 64, d_model = 32, held_out = 512, validate_every = 50;
  ReversalTask task;
  double lr = 3e-3, clip = 1;
  bool all_steps = false, quiet = false;
  std::string save, load, json;
};

// What must be written at the end is tried at the start, so that no training is lost to a typing error.
void check_writable(const std::string& path, bool must_be_file) {
  if (path.empty()) return;
  if (must_be_file && std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    fail("cannot write to {}: it is not a regular file", path);
  }
  const bool existed = std::ifstream(path).good();
  if (!std::ofstream(path, std::ios::app)) fail("cannot write to {}", path);
  if (!existed) std::remove(path.c_str());
}

// A saved model says what it is; options given on the command line stand, and load() tells where they disagree.
void adopt_saved_settings(const CLI::App& app, Settings& s) {
  const std::map<std::string, std::string> saved = read_safetensors(s.load).metadata;
  auto take = [&](const char* key, const char* option, auto set) {
    auto it = saved.find(key);
    if (it != saved.end() && app.count(option) == 0) set(it->second);
  };
  take("attention", "--attention", [&](const std::string& text) { s.attention = text; });
  take("d_model", "--dim", [&](const std::string& text) { s.d_model = std::stoll(text); });
  take("vocabulary", "--symbols", [&](const std::string& text) { s.task.symbols = std::stoll(text) - 3; });
}

std::string letter(int64_t id) {
  if (id == eos_id) return "end";
  return id - 3 < 26 ? std::string(1, static_cast<char>('a' + id - 3)) : std::to_string(id);
}

// One held-out row: its source along the top, what was written along the side.
void show_alignment(const Seq2SeqAttention& model, const Batch& examples) {
  const Tensor source = examples.source.slice(0, 0, 1).slice(1, 0, row_lengths(examples.source)[0]);
  const Decoded decoded = model.greedy_decode(source, source.size(1) + 4);
  std::vector<std::string> read, written;
  for (int64_t id : source.to_vector<int64_t>()) read.push_back(letter(id));
  for (int64_t id : decoded.tokens.to_vector<int64_t>()) written.push_back(letter(id));
  const std::vector<double> weights = decoded.attention.to(DType::f64).to_vector<double>();
  fmt::print("\nWhere the decoder looks (columns: the source; rows: what it writes)\n\n{}",
             heat_map(weights, static_cast<int64_t>(written.size()), static_cast<int64_t>(read.size()), written, read,
                      color_support(stdout), 1.0));
}

// Exit status: 0 if the task was learned, 1 if not. Throws on settings and files that cannot be used.
int run(const Settings& s) {
  check_writable(s.save, true);
  check_writable(s.json, false);
  const Rng root(static_cast<uint64_t>(s.seed));
  Rng init = root.split("init");
  Seq2SeqAttention model({.vocabulary = s.task.vocabulary(),
                          .d_model = s.d_model,
                          .attention = s.attention == "dot" ? AttentionKind::dot : AttentionKind::additive},
                         init);
  if (!s.load.empty()) load(s.load, model);
  Rng held_out_rng = Rng(0).split("held out");  // the same for every seed
  const Batch held_out = s.task.batch(s.held_out, held_out_rng);

  if (!s.quiet) {
    fmt::print("{} attention, {} parameters, seed {}, 1 thread\n{}\n", s.attention, parameter_count(model), s.seed,
               blas::description());
    std::fflush(stdout);
  }
  const auto good_enough = [](const ReversalScore& score) {
    return score.exact_match >= .99 && score.alignment >= .95;
  };
  ReversalScore score = evaluate_reversal(model, held_out);
  TrainResult trained;
  if (s.steps > 0 && (s.load.empty() || s.all_steps || !good_enough(score))) {
    Adam optimizer(model, {.lr = s.lr});
    const Rng data = root.split("data");
    try {
      trained = train(
          optimizer,
          [&](int64_t step) {
            Rng rng = data.split(static_cast<uint64_t>(step));
            return s.task.batch(s.batch, rng);
          },
          [&](const Batch& batch) { return model.loss(batch); },
          [&](int64_t) {
            score = evaluate_reversal(model, held_out);
            return !s.all_steps && good_enough(score);
          },
          {.steps = s.steps,
           .clip_norm = s.clip,
           .validate_every = s.validate_every,
           .progress = s.quiet ? nullptr : stderr});
    } catch (const Error& error) {  // diverged: the run failed, not its settings
      fmt::print(stderr, "reversal: {}\n", error.what());
      return 1;
    }
  } else {
    trained.loss = [&] {
      NoGrad pause;
      return model.loss(held_out).item();
    }();
  }
  if (!s.save.empty()) {
    save(s.save, model,
         {{"model", "Seq2SeqAttention"},
          {"attention", s.attention},
          {"d_model", std::to_string(s.d_model)},
          {"vocabulary", std::to_string(s.task.vocabulary())}});
  }
  if (!s.json.empty()) {
    const nlohmann::ordered_json result = {{"attention", s.attention},
                                           {"seed", s.seed},
                                           {"exact_match", score.exact_match},
                                           {"token_accuracy", score.token_accuracy},
                                           {"alignment", score.alignment},
                                           {"loss", trained.loss},
                                           {"steps", trained.steps},
                                           {"seconds", trained.seconds},
                                           {"threads", 1}};
    std::ofstream file(s.json);
    file << result.dump(2) << '\n';
    if (!file.flush()) fail("cannot write to {}", s.json);
  }
  if (!s.quiet) show_alignment(model, held_out);
  fmt::print(
      "\nexact match     {:6.2f} %  of {} held-out sequences\ntoken accuracy  {:6.2f} %\n"
      "alignment       {:6.2f} %  of symbol steps look at n - 1 - t\nloss            {:.4g}\n"
      "steps           {}\nseconds         {:.2f}\n",
      100 * score.exact_match, s.held_out, 100 * score.token_accuracy, 100 * score.alignment, trained.loss,
      trained.steps, trained.seconds);
  return score.exact_match >= .9 && score.alignment >= .9 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const CLI::Validator above_zero(
      [](const std::string& text) {
        double value = 0;
        const bool ok = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value > 0;
        return ok ? std::string() : "expected a finite number above 0, got " + text;
      },
      "ABOVE 0");
  Settings s;
  CLI::App app{
      "Learns to reverse sequences, and shows the alignment that the attention finds.\n"
      "Exit status: 0 if exact match and alignment reach 90 %, 1 if not, 2 on wrong usage.",
      "reversal"};
  app.add_option("--attention", s.attention, "score function: additive or dot")
      ->check(CLI::IsMember({"additive", "dot"}))
      ->capture_default_str();
  app.add_option("--seed", s.seed, "of initial weights and training data")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  app.add_option("--steps", s.steps, "training steps at most; 0 evaluates only")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_flag("--all-steps", s.all_steps, "go on after 99 % exact match and 95 % alignment");
  app.add_option("--batch", s.batch, "sequences a step")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--dim", s.d_model, "size of embeddings and states")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--min-length", s.task.min_length, "of the sequences")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--max-length", s.task.max_length, "of the sequences")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--symbols", s.task.symbols, "different ones; ids start at 3")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--lr", s.lr, "Adam's learning rate")->check(above_zero)->capture_default_str();
  app.add_option("--clip", s.clip, "largest gradient norm")->check(above_zero)->capture_default_str();
  app.add_option("--held-out", s.held_out, "sequences to evaluate on")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--validate-every", s.validate_every, "steps between evaluations")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--save", s.save, "write the trained weights here (safetensors)");
  app.add_option("--load", s.load, "start from these weights");
  app.add_option("--json", s.json, "write the results here");
  app.add_flag("--quiet", s.quiet, "print the results only");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "reversal: {} (--help explains the options)\n", error.what());
    return 2;
  }
  try {
    if (!s.load.empty()) adopt_saved_settings(app, s);
    return run(s);
  } catch (const Error& error) {
    fmt::print(stderr, "reversal: {}\n", error.what());
    return 2;
  }
}
