// Learns to reverse sequences: a GRU encoder-decoder with attention finds the alignment t -> n - 1 - t by itself.
#include <tapedeck/core/blas.h>
#include <tapedeck/core/version.h>
#include <tapedeck/models/metrics.h>
#include <tapedeck/models/seq2seq.h>
#include <tapedeck/models/svg.h>
#include <tapedeck/models/terminal.h>
#include <tapedeck/models/trainer.h>
#include <tapedeck/nn/checkpoint.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
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
  std::string save, load, json, svg, film, csv, jsonl;
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

// The first held-out row.
struct Example {
  Tensor source, target_in;
  std::vector<std::string> read, due;  // its source, and its target with the end token
};

Example first_row(const Batch& examples) {
  Example example;
  auto cut = [](const Tensor& ids, int64_t length) { return ids.slice(0, 0, 1).slice(1, 0, length); };
  const int64_t n = row_lengths(examples.source)[0];
  example.source = cut(examples.source, n);
  example.target_in = cut(examples.target_in, n + 1);
  for (int64_t id : example.source.to_vector<int64_t>()) example.read.push_back(letter(id));
  for (int64_t id : cut(examples.target_out, n + 1).to_vector<int64_t>()) example.due.push_back(letter(id));
  return example;
}

// Where the decoder looks: columns are what it reads, rows what it writes.
HeatMap alignment(const Seq2SeqAttention& model, const Example& example) {
  const Decoded decoded = model.greedy_decode(example.source, example.source.size(1) + 4);
  std::vector<std::string> written;
  for (int64_t id : decoded.tokens.to_vector<int64_t>()) written.push_back(letter(id));
  const int64_t rows = static_cast<int64_t>(written.size()), cols = example.source.size(1);
  return {rows, cols, decoded.attention.to(DType::f64).to_vector<double>(), written, example.read, "", 1};
}

// The same while the right symbols are fed: of one size however little the model has learned.
HeatMap forced_alignment(const Seq2SeqAttention& model, const Example& example, int64_t step) {
  NoGrad pause;
  const Tensor weights = model.forward(example.source, example.target_in).attention.value();
  return {example.target_in.size(1),
          example.source.size(1),
          weights.to(DType::f64).to_vector<double>(),
          example.due,
          example.read,
          fmt::format("step {}", step),
          1};
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) fail("cannot write to {}", path);
}

// A row for each validation, readable while the run goes on.
class MetricsLog {
 public:
  MetricsLog(const std::string& csv, const std::string& jsonl) : csv_path_(csv), jsonl_path_(jsonl) {
    if (!csv.empty()) csv_.open(csv);
    if (!jsonl.empty()) jsonl_.open(jsonl);
    if (!csv.empty()) csv_ << "step,loss,exact_match,token_accuracy,alignment,seconds,tokens_per_second\n";
  }

  void add(const TrainResult& done, const ReversalScore& score) {
    const double speed = done.seconds > 0 ? static_cast<double>(done.tokens) / done.seconds : 0;
    if (!csv_path_.empty()) {
      csv_ << fmt::format("{},{},{},{},{},{:.3f},{:.1f}\n", done.steps, done.loss, score.exact_match,
                          score.token_accuracy, score.alignment, done.seconds, speed);
      if (!csv_.flush()) fail("cannot write to {}", csv_path_);
    }
    if (!jsonl_path_.empty()) {
      const nlohmann::ordered_json row = {{"step", done.steps},
                                          {"loss", done.loss},
                                          {"exact_match", score.exact_match},
                                          {"token_accuracy", score.token_accuracy},
                                          {"alignment", score.alignment},
                                          {"seconds", done.seconds},
                                          {"tokens_per_second", speed}};
      jsonl_ << row.dump() << '\n';
      if (!jsonl_.flush()) fail("cannot write to {}", jsonl_path_);
    }
  }

 private:
  std::string csv_path_, jsonl_path_;
  std::ofstream csv_, jsonl_;
};

// The alignment of one example before the first step and at about forty later ones, evenly spaced by their logarithm.
class Film {
 public:
  Film(const Settings& s, const Seq2SeqAttention& model, const Example& example)
      : path_(s.film), model_(model), example_(example) {
    if (path_.empty()) return;
    constexpr int frames = 40;
    int64_t step = 0;
    for (int k = 1; k <= frames && step < s.steps; ++k) {
      const double even = std::pow(static_cast<double>(s.steps), k / static_cast<double>(frames));
      step = std::max<int64_t>(step + 1, std::llround(even));
      steps_.push_back(step);
    }
    add(0);
  }

  void see(int64_t step) {
    if (std::find(steps_.begin(), steps_.end(), step) != steps_.end()) add(step);
  }
  void write(int64_t last_step) {
    if (path_.empty()) return;
    if (last_step > last_) add(last_step);
    write_file(path_, path_.ends_with(".json") ? json_film(frames_) : svg_film(frames_));
  }

 private:
  void add(int64_t step) {
    frames_.push_back(forced_alignment(model_, example_, step));
    last_ = step;
  }

  std::string path_;
  const Seq2SeqAttention& model_;
  const Example& example_;
  std::vector<int64_t> steps_;
  std::vector<HeatMap> frames_;
  int64_t last_ = 0;
};

// Exit status: 0 if the task was learned, 1 if not. Throws on settings and files that cannot be used.
int run(const Settings& s) {
  check_writable(s.save, true);
  for (const std::string* path : {&s.json, &s.svg, &s.film, &s.csv, &s.jsonl}) check_writable(*path, false);
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
  const Example example = first_row(held_out);
  MetricsLog log(s.csv, s.jsonl);
  Film film(s, model, example);
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
            log.add(trained, score);
            return !s.all_steps && good_enough(score);
          },
          {.steps = s.steps,
           .clip_norm = s.clip,
           .validate_every = s.validate_every,
           .progress = s.quiet ? nullptr : stderr,
           .on_step = [&](const TrainResult& done) {
             trained = done;
             film.see(done.steps);
           }});
    } catch (const Error& error) {  // diverged: the run failed, not its settings
      fmt::print(stderr, "reversal: {}\n", error.what());
      return 1;
    }
  } else {
    trained.loss = [&] {
      NoGrad pause;
      return model.loss(held_out).item();
    }();
    log.add(trained, score);
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
    write_file(s.json, result.dump(2) + '\n');
  }
  film.write(trained.steps);
  HeatMap looks = alignment(model, example);
  if (!s.svg.empty()) {
    looks.title = fmt::format("{} attention after {} steps: rows written, columns read", s.attention, trained.steps);
    write_file(s.svg, svg_heat_map(looks));
  }
  if (!s.quiet) {
    fmt::print("\nWhere the decoder looks (columns: the source; rows: what it writes)\n\n{}",
               heat_map(looks.weights, looks.rows, looks.cols, looks.row_labels, looks.col_labels,
                        color_support(stdout), looks.full));
  }
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
  const CLI::Validator pictures(
      [](const std::string& path) {
        const bool ok = path.ends_with(".svg") || path.ends_with(".json");
        return ok ? std::string() : "expected a name that ends in .svg or .json, got " + path;
      },
      "FILE");
  Settings s;
  CLI::App app{
      "Learns to reverse sequences, and shows the alignment that the attention finds.\n"
      "Exit status: 0 if exact match and alignment reach 90 %, 1 if not, 2 on wrong usage.",
      "reversal"};
  app.set_version_flag("--version", fmt::format("reversal (Tapedeck {})", version()));
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
  app.add_option("--svg", s.svg, "draw the alignment of one held-out sequence here");
  app.add_option("--film", s.film, "draw it over training: .svg moves, .json holds the frames")->check(pictures);
  app.add_option("--csv", s.csv, "write a row for each validation here");
  app.add_option("--jsonl", s.jsonl, "the same, a JSON object a line");
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
