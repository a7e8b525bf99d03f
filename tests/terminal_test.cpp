#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <tapedeck/models/terminal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <vector>

using namespace tapedeck;

namespace {

using Labels = std::vector<std::string>;

// Sets an environment variable (or unsets it, given null) until the end of its scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Environment() { set(old_ ? old_->c_str() : nullptr); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const char* value) { value ? setenv(name_, value, 1) : unsetenv(name_); }

  const char* name_;
  std::optional<std::string> old_;
};

// A terminal of our own: what is written to file() is read back by text().
class Terminal {
 public:
  explicit Terminal(int columns) : outer_(posix_openpt(O_RDWR | O_NOCTTY)) {
    REQUIRE(outer_ >= 0);
    REQUIRE(grantpt(outer_) == 0);
    REQUIRE(unlockpt(outer_) == 0);
    file_ = std::fopen(ptsname(outer_), "r+");
    REQUIRE(file_ != nullptr);
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    REQUIRE(ioctl(outer_, TIOCSWINSZ, &size) == 0);
  }
  ~Terminal() {
    std::fclose(file_);
    close(outer_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  std::FILE* file() const { return file_; }
  std::string text() const {
    std::fflush(file_);
    // The kernel hands the text over in its own time, so read up to the line's end.
    std::string out;
    pollfd ready{outer_, POLLIN, 0};
    while (!out.ends_with('\n') && poll(&ready, 1, 5000) == 1) {
      char chunk[4096];
      ssize_t n = read(outer_, chunk, sizeof chunk);
      if (n <= 0) break;
      out.append(chunk, static_cast<size_t>(n));
    }
    return out;
  }

 private:
  int outer_;
  std::FILE* file_ = nullptr;
};

std::string contents(std::FILE* file) {
  std::fflush(file);
  std::string out(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  REQUIRE(std::fread(out.data(), 1, out.size(), file) == out.size());
  return out;
}

Labels lines_of(const std::string& text, char end = '\n') {
  Labels out;
  for (size_t from = 0; from < text.size();) {
    size_t to = std::min(text.find(end, from), text.size());
    out.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  return out;
}

std::string message_of(auto&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_SUITE("terminal") {
TEST_CASE("heat map without colours") {
  const std::vector<double> w{1.0, 0.0, 0.5, 0.25, 0.75, 0.111};
  CHECK(heat_map(w, 2, 3, Labels{"a", "long"}, Labels{"x", "y", "3"}, Color::none) ==
        "       x y 3\n"
        "   a |@@  ++|\n"
        "long |::##..|\n");
}

TEST_CASE("heat map without labels") {
  const std::vector<double> w{0.0, 1.0};
  CHECK(heat_map(w, 1, 2, {}, {}, Color::none) == "|  @@|\n");
  CHECK(heat_map(w, 2, 1, Labels{"r", "s"}, {}, Color::none) == "r |  |\ns |@@|\n");
}

TEST_CASE("heat map writes long column labels downwards") {
  const std::vector<double> w{0.0, 1.0};
  CHECK(heat_map(w, 1, 2, Labels{"r"}, Labels{"the", "x"}, Color::none) ==
        "    t\n"
        "    h\n"
        "    e x\n"
        "r |  @@|\n");
}

TEST_CASE("heat map in colours goes from viridis' dark end to its bright one") {
  const std::vector<double> w{0.0, 0.5, 1.0};
  CHECK(heat_map(w, 1, 3, Labels{"r"}, Labels{"a", "b", "c"}, Color::ansi24) ==
        "   a b c\n"
        "r \x1b[48;2;68;1;84m  \x1b[48;2;33;145;140m  \x1b[48;2;253;231;37m  \x1b[0m\n");
}

TEST_CASE("heat map scales by the largest weight or by the one given") {
  const std::vector<double> w{0.1, 0.2};
  CHECK(heat_map(w, 1, 2, {}, {}, Color::none) == "|++@@|\n");
  CHECK(heat_map(w, 1, 2, {}, {}, Color::none, 1.0) == "|..::|\n");
}

TEST_CASE("heat map of zeros and of nothing and of NaN") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(heat_map(std::vector<double>{0.0, 0.0}, 1, 2, {}, {}, Color::none) == "|    |\n");
  CHECK(heat_map({}, 0, 0, {}, {}, Color::none).empty());
  CHECK(heat_map({}, 3, 0, Labels{"a", "b", "c"}, {}, Color::none).empty());
  CHECK(heat_map(std::vector<double>{nan, 1.0}, 1, 2, {}, {}, Color::none) == "|??@@|\n");
}

TEST_CASE("heat map names what does not fit") {
  const std::vector<double> w{1.0, 2.0};
  CHECK(message_of([&] { heat_map(w, 2, 2, {}, {}, Color::none); }) ==
        "heat_map: expected 4 weights for (2, 2), got 2");
  CHECK(message_of([&] { heat_map(w, -1, 2, {}, {}, Color::none); }) ==
        "heat_map: expected sizes of at least 0, got (-1, 2)");
  CHECK(message_of([&] { heat_map(w, int64_t{1} << 62, 8, {}, {}, Color::none); }).starts_with("heat_map: expected"));
  CHECK(message_of([&] {
          heat_map(w, 1, 2, Labels{"a", "b"}, {}, Color::none);
        }) == "heat_map: expected 1 row labels, got 2");
  CHECK(message_of([&] { heat_map(w, 1, 2, {}, Labels{"a"}, Color::none); }) ==
        "heat_map: expected 2 column labels, got 1");
  CHECK(message_of([&] {
          heat_map(std::vector<double>{1.0, -2.0}, 2, 1, {}, {}, Color::none);
        }) == "heat_map: expected weights of at least 0, got -2 at (1, 0)");
}

TEST_CASE("colours need a terminal that promises them") {
  Terminal terminal(80);
  Environment no_color("NO_COLOR", nullptr);
  Environment term("TERM", "xterm");
  Environment colorterm("COLORTERM", "truecolor");
  CHECK(is_terminal(terminal.file()));
  CHECK(color_support(terminal.file()) == Color::ansi24);
  {
    Environment wish("NO_COLOR", "1");
    CHECK(color_support(terminal.file()) == Color::none);
  }
  {
    Environment wish("NO_COLOR", "");
    CHECK(color_support(terminal.file()) == Color::ansi24);
  }
  {
    Environment dumb("TERM", "dumb");
    CHECK(color_support(terminal.file()) == Color::none);
  }
  {
    Environment old("COLORTERM", nullptr);
    CHECK(color_support(terminal.file()) == Color::none);
    Environment modern("TERM", "xterm-256color");
    CHECK(color_support(terminal.file()) == Color::ansi24);
  }
  std::FILE* file = std::tmpfile();
  CHECK_FALSE(is_terminal(file));
  CHECK(color_support(file) == Color::none);
  CHECK_FALSE(is_terminal(nullptr));
  std::fclose(file);
}

TEST_CASE("progress writes a line each tenth when it is no terminal") {
  std::FILE* file = std::tmpfile();
  {
    Progress progress(200, file);
    for (int64_t step = 1; step <= 200; ++step) progress.update(step, 1.0 / static_cast<double>(step), 640);
    progress.finish();
    progress.finish();
  }
  const std::string text = contents(file);
  const Labels lines = lines_of(text);
  REQUIRE(lines.size() == 10);
  CHECK(lines[0].starts_with(" 20/200  10%  loss 0.0500  "));
  CHECK(lines[9].starts_with("200/200 100%  loss 0.0050  "));
  CHECK(text.find("tok/s") != std::string::npos);
  CHECK(text.find_first_of("\r\x1b[") == std::string::npos);
  std::fclose(file);
}

TEST_CASE("progress with fewer steps than tenths and one that stops early") {
  std::FILE* file = std::tmpfile();
  {
    Progress progress(3, file);
    for (int64_t step = 1; step <= 3; ++step) progress.update(step, 2.0, 0);
  }
  {
    Progress progress(100, file);
    for (int64_t step = 1; step <= 13; ++step) progress.update(step, 2.0, 0);
  }
  { Progress unused(5, file); }
  const Labels lines = lines_of(contents(file));
  REQUIRE(lines.size() == 5);
  CHECK(lines[0].starts_with("1/3  33%  loss 2.0000  0:00 < 0:00"));
  CHECK(lines[2] == "3/3 100%  loss 2.0000  0:00");
  CHECK(lines[3].starts_with(" 10/100  10%"));
  CHECK(lines[4].starts_with(" 13/100  13%"));
  std::fclose(file);
}

TEST_CASE("progress redraws one line of a terminal and seldom") {
  Terminal terminal(80);
  {
    Progress progress(1000, terminal.file());
    for (int64_t step = 1; step <= 1000; ++step) progress.update(step, 0.5, 100);
  }
  const std::string text = terminal.text();
  // The terminal turns the one newline into "\r\n".
  REQUIRE(text.ends_with("\r\n"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  const Labels drawn = lines_of(text.substr(0, text.size() - 2), '\r');
  CHECK(drawn.size() < 20);
  for (const std::string& line : drawn) CHECK(line.size() < 80);
  CHECK(drawn.back().find("1000/1000 [=") == 0);
  CHECK(drawn.back().find("] 100%  loss 0.5000") != std::string::npos);
}

TEST_CASE("progress fits narrow windows") {
  for (int columns : {1, 10, 30, 50}) {
    Terminal terminal(columns);
    {
      Progress progress(10, terminal.file());
      progress.update(4, 12.5, 9000);
    }
    for (const std::string& line : lines_of(terminal.text(), '\r')) CHECK(static_cast<int>(line.size()) <= columns);
  }
}

TEST_CASE("progress names what does not fit") {
  std::FILE* file = std::tmpfile();
  CHECK(message_of([&] { Progress(0, file); }) == "Progress: expected at least one step, got 0");
  CHECK(message_of([&] { Progress(1, nullptr); }) == "Progress: expected an open file, got none");
  Progress progress(10, file);
  progress.update(5, 1.0, 1);
  CHECK(message_of([&] { progress.update(4, 1.0, 1); }) == "Progress: expected a step from 5 to 10 (total), got 4");
  CHECK(message_of([&] { progress.update(11, 1.0, 1); }) == "Progress: expected a step from 5 to 10 (total), got 11");
  CHECK(message_of([&] { progress.update(6, 1.0, -1); }) == "Progress: expected at least 0 tokens, got -1");
  std::fclose(file);
}
}
