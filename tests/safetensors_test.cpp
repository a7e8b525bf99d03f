#include <tapedeck/core/random.h>
#include <tapedeck/nn/safetensors.h>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>

#include "scratch_folder.h"

using namespace tapedeck;

namespace {

// A file as other writers make it: header text and raw data, no checksum.
std::string image(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

template <class T>
std::string raw(std::initializer_list<T> values) {
  std::string bytes;
  for (T v : values) bytes.append(reinterpret_cast<const char*>(&v), sizeof v);
  return bytes;
}

TensorFile sample(float first) {
  TensorFile file;
  file.tensors = {{"flags", tensor({true, false, true})},
                  {"layers.0.weight", tensor({{first, -2.5f}, {3e-42f, 4.0f}, {5.0f, 6.0f}})},
                  {"ids", tensor({{-1, 2}}, DType::i64)},
                  {"precise", tensor({0.1, 1e300}, DType::f64)},
                  {"scalar", Tensor::full({}, 7, DType::f32)},
                  {"nothing", Tensor::zeros({0, 3})}};
  file.metadata = {{"hidden", "32"}, {"note", "quotes \" and \\ and ü"}};
  return file;
}

// The error's text; empty if there was none.
std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string read_error(const std::string& path) {
  return error_of([&] { read_safetensors(path); });
}

std::vector<std::string> checkpoints(const ScratchFolder& folder) {
  std::vector<std::string> result;
  for (const std::string& name : folder.names()) {
    if (name.ends_with(".safetensors") && name[0] != '.') result.push_back(name);
  }
  return result;
}

// The exit code of f() in a child process; -signal if one ended it.
int in_child(const std::function<int()>& f) {
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(f());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

TEST_SUITE("safetensors") {
TEST_CASE("safetensors: names and order and bits and metadata come back") {
  ScratchFolder folder;
  TensorFile file = sample(1.5f);
  write_safetensors(folder.file("a.safetensors"), file);
  TensorFile read = read_safetensors(folder.file("a.safetensors"));
  CHECK(read.has_crc);
  CHECK(read.metadata == file.metadata);
  REQUIRE(read.tensors.size() == file.tensors.size());
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    const Tensor &value = file.tensors[i].second, &other = read.tensors[i].second;
    CHECK(read.tensors[i].first == file.tensors[i].first);
    REQUIRE(other.dtype() == value.dtype());
    REQUIRE(other.shape() == value.shape());
    CHECK(dispatch(value.dtype(), [&]<class T> { return value.to_vector<T>() == other.to_vector<T>(); }));
  }
  write_safetensors(folder.file("b.safetensors"), read);
  CHECK(read_bytes(folder.file("a.safetensors")) == read_bytes(folder.file("b.safetensors")));
  CHECK(folder.names().size() == 2);
}

TEST_CASE("safetensors: NaN payloads and signed zeros keep their bits") {
  ScratchFolder folder;
  uint32_t bits[] = {0x7fc12345u, 0xff800001u, 0x80000000u, 0xff800000u};
  float values[4];
  std::memcpy(values, bits, sizeof bits);
  write_safetensors(folder.file("x"), {{{"x", Tensor::from(std::span<const float>(values), {4})}}, {}});
  Tensor x = read_safetensors(folder.file("x")).tensors[0].second;
  CHECK(std::memcmp(x.data<float>(), bits, sizeof bits) == 0);
}

TEST_CASE("safetensors: views are stored as they read") {
  ScratchFolder folder;
  Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  write_safetensors(folder.file("x"),
                    {{{"t", x.transpose()}, {"s", x.slice(1, 0, 3, 2)}, {"e", x.select(0, 1).expand({2, 3})}}, {}});
  TensorFile file = read_safetensors(folder.file("x"));
  CHECK(file.tensors[0].second.to_vector<int64_t>() == std::vector<int64_t>{1, 4, 2, 5, 3, 6});
  CHECK(file.tensors[1].second.to_vector<int64_t>() == std::vector<int64_t>{1, 3, 4, 6});
  CHECK(file.tensors[2].second.to_vector<int64_t>() == std::vector<int64_t>{4, 5, 6, 4, 5, 6});
  CHECK(file.tensors[0].second.shape() == Shape{3, 2});
}

TEST_CASE("safetensors: the format in bytes with every tensor aligned") {
  ScratchFolder folder;
  write_safetensors(folder.file("x"),
                    {{{"b", tensor({true})}, {"w", tensor({1.5f, 2.5f})}, {"d", tensor({4.0}, DType::f64)}}, {}});
  std::string bytes = read_bytes(folder.file("x"));
  uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  CHECK(length % 8 == 0);
  std::string header = bytes.substr(8, length), data = bytes.substr(8 + length);
  CHECK(header.starts_with("{\"__metadata__\":{\"tapedeck.format\":\"1\",\"tapedeck.crc32\":\""));
  CHECK(header.find("\"b\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[16,17]},"
                    "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
                    "\"d\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}") != std::string::npos);
  CHECK(data == raw<double>({4.0}) + raw<float>({1.5f, 2.5f}) + "\1");
}

TEST_CASE("safetensors: files of other writers are read without a checksum") {
  ScratchFolder folder;
  write_bytes(folder.file("x"), image("{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"shape\":[],\"dtype\":\"I64\","
                                      "\"data_offsets\":[8, 16]},\n\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],"
                                      "\"data_offsets\":[0,8]}}   ",
                                      raw<float>({1, 2}) + raw<int64_t>({-3})));
  TensorFile file = read_safetensors(folder.file("x"));
  CHECK_FALSE(file.has_crc);
  CHECK(file.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  CHECK(file.tensors[0].first == "b");
  CHECK(file.tensors[0].second.item() == -3);
  CHECK(file.tensors[1].second.to_vector<float>() == std::vector<float>{1, 2});
  write_bytes(folder.file("x"), image("{}", ""));
  CHECK(read_safetensors(folder.file("x")).tensors.empty());
}

TEST_CASE("safetensors: damaged files are refused with a reason") {
  ScratchFolder folder;
  auto entry = [](const std::string& text) { return "{\"a\":" + text + "}"; };
  std::string good = "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", data(8, '\0');
  std::string deep = std::string(5000, '[') + std::string(5000, ']');
  struct Case {
    std::string bytes;
    const char* reason;
  };
  for (const Case& c : std::vector<Case>{
           {"", "is empty"},
           {"abc", "3 bytes"},
           {std::string(100, 'x'), "header length of 8680820740569200760"},
           {image("{}", "").substr(0, 9), "header of 2 bytes, 1 in the file"},
           {std::string("\x80\2c}q\0\0\0") + "(X..", "is no safetensors file"},  // a pickle
           {image("[]", ""), "does not begin with {"},
           {image("{\"a\"", ""), "not JSON"},
           {image("{} x", ""), "not JSON"},
           {image("{\"a\xff\":{}}", ""), "not JSON"},
           {image(entry("1"), ""), "\"a\" has no dtype"},
           {image(entry("{}"), ""), "\"a\" has no dtype"},
           {image(entry("{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}"), std::string(4, '\0')),
            "tensor \"a\" of dtype \"BF16\"; only F32, F64, I64 and BOOL"},
           {image(entry("{\"dtype\":3,\"shape\":[2],\"data_offsets\":[0,4]}"), data), "dtype 3"},
           {image(entry("{\"dtype\":\"F32\",\"data_offsets\":[0,8]}"), data), "\"a\" has no shape"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}"), data), "shape 2"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}"), data), "has shape [-2]"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}"), data), "has shape [2.0]"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}"), data),
            "at most 8 axes"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}"), data),
            "has shape [4294967296,4294967296]"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[18446744073709551615,0],\"data_offsets\":[0,0]}"), ""),
            "has shape"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[2]}"), data), "\"a\" has no data_offsets"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}"), data), "data_offsets [0]"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}"), data), "needs 8 bytes"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}"), data), "needs 8 bytes"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}"), data), "data_offsets [-8,0]"},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]}"), data), "is cut off: tensor \"a\""},
           {image(entry("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]}"), data + "x"), "begins at byte 1"},
           {image(entry(good), data + "x"), "1 bytes follow the last tensor"},
           {image(entry(good), data.substr(1)), "ends at byte 8 of the data, the file at 7"},
           {image("{\"a\":" + good + ",\"b\":" + good + "}", data), "\"b\" begins at byte 0"},
           {image("{\"a\":" + good + ",\"a\":" + good + "}", data), "the name \"a\" twice"},
           {image(entry("{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"), data),
            "\"dtype\" twice"},
           {image("{\"__metadata__\":[]}", ""), "__metadata__ is not an object"},
           {image("{\"__metadata__\":{\"a\":1}}", ""), "\"a\" is not a string"},
           {image(entry(deep), ""), "nested too deeply"},
           {image(entry("{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}"), "\1\2"),
            "the byte 2 at element 1"},
           {image("{\"__metadata__\":{\"tapedeck.format\":\"2\",\"tapedeck.crc32\":\"00000000\"}}", ""),
            "has format 2"},
           {image("{\"__metadata__\":{\"tapedeck.format\":\"1\"}}", ""), "without tapedeck.crc32"},
           {image("{\"__metadata__\":{\"tapedeck.crc32\":\"00000000\"}}", ""), "without tapedeck.format"},
           {image("{\"__metadata__\":{\"tapedeck.format\":\"one\",\"tapedeck.crc32\":\"00000000\"}}", ""),
            "is \"one\""},
           {image("{\"__metadata__\":{\"tapedeck.format\":\"1\",\"tapedeck.crc32\":\"0\"}}", ""), "is \"0\""},
           {image("{\"__metadata__\":{\"tapedeck.format\":\"1\",\"tapedeck.crc32\":\"00000000\"}}", ""),
            "its checksum is 00000000"},
       }) {
    write_bytes(folder.file("x"), c.bytes);
    std::string message = read_error(folder.file("x"));
    CAPTURE(c.reason);
    CAPTURE(message);
    CHECK(message.find(c.reason) != std::string::npos);
    CHECK(message.find(folder.file("x")) != std::string::npos);
    CHECK(message.size() < 500);
  }
  CHECK(read_error(folder.file("missing")).find("No such file") != std::string::npos);
  CHECK(read_error(folder.path).find("not a regular file") != std::string::npos);
}

TEST_CASE("safetensors: a file cut at any byte or with any bit flipped is refused") {
  ScratchFolder folder;
  std::string path = folder.file("x");
  TensorFile file = sample(1.5f);
  write_safetensors(path, file);
  const std::string bytes = read_bytes(path);
  int accepted = 0;
  for (size_t n = 0; n < bytes.size(); ++n) {
    write_bytes(path, bytes.substr(0, n));
    accepted += read_error(path).empty();
  }
  CHECK(accepted == 0);
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      write_bytes(path, flipped);
      if (!read_error(path).empty()) continue;
      ++accepted;
      CAPTURE(i);
      CAPTURE(bit);
      CHECK(flipped == bytes);
    }
  }
  CHECK(accepted == 0);
  write_bytes(path, bytes);
  CHECK(read_error(path) == "");
}

TEST_CASE("safetensors: what cannot be written is refused before anything is touched") {
  ScratchFolder folder;
  std::string path = folder.file("x");
  Tensor one = Tensor::ones({1});
  auto error = [&](const TensorFile& file) { return error_of([&] { write_safetensors(path, file); }); };
  CHECK(error({{{"a", one}, {"a", one}}, {}}).find("two tensors have the name \"a\"") != std::string::npos);
  CHECK(error({{{"__metadata__", one}}, {}}).find("__metadata__") != std::string::npos);
  CHECK(error({{{"a", Tensor()}}, {}}).find("\"a\" is undefined") != std::string::npos);
  CHECK(error({{}, {{"tapedeck.crc32", "0"}}}).find("reserved") != std::string::npos);
  CHECK(error({{{"a\xff", one}}, {}}).find("not UTF-8") != std::string::npos);
  CHECK(folder.names().empty());
  CHECK(error({{{"a\"}\n", one}}, {{"", "\"tapedeck.crc32\":\"00000000\""}}}) == "");
  CHECK(read_safetensors(path).tensors[0].first == "a\"}\n");
}

TEST_CASE("safetensors: a folder that is missing or no folder or a target that is no file") {
  ScratchFolder folder;
  TensorFile file = sample(1);
  auto error = [&](const std::string& path) { return error_of([&] { write_safetensors(path, file); }); };
  CHECK(error(folder.file("no/x")).find("creating") != std::string::npos);
  CHECK(error(folder.file("no/x")).find("No such file or directory") != std::string::npos);
  write_bytes(folder.file("file"), "");
  CHECK(error(folder.file("file/x")).find("Not a directory") != std::string::npos);
  CHECK(error(folder.path).find("not a regular file") != std::string::npos);
  REQUIRE(mkfifo(folder.file("pipe").c_str(), 0600) == 0);
  CHECK(error(folder.file("pipe")).find("not a regular file") != std::string::npos);
  if (geteuid() != 0) {
    REQUIRE(chmod(folder.path.c_str(), 0500) == 0);
    CHECK(error(folder.file("x")).find("Permission denied") != std::string::npos);
    REQUIRE(chmod(folder.path.c_str(), 0700) == 0);
  }
  CHECK(folder.names().size() == 2);
}

TEST_CASE("safetensors: links stay links and permissions stay") {
  ScratchFolder folder;
  write_safetensors(folder.file("real"), sample(1));
  REQUIRE(chmod(folder.file("real").c_str(), 0640) == 0);
  REQUIRE(symlink("real", folder.file("link").c_str()) == 0);
  write_safetensors(folder.file("link"), sample(2));
  CHECK(std::filesystem::is_symlink(folder.file("link")));
  CHECK(read_safetensors(folder.file("real")).tensors[1].second.at({0, 0}) == 2);
  struct stat status;
  REQUIRE(stat(folder.file("real").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
  CHECK(folder.names().size() == 2);
}

TEST_CASE("safetensors: with the disk full at any byte the old file stays") {
  ScratchFolder folder;
  std::string path = folder.file("x.safetensors");
  write_safetensors(path, sample(1));
  const std::string before = read_bytes(path);
  for (size_t limit :
       {size_t{0}, size_t{1}, size_t{8}, size_t{9}, before.size() / 2, before.size() - 25, before.size() - 1}) {
    int code = in_child([&] {
      signal(SIGXFSZ, SIG_IGN);
      rlimit full{limit, limit};
      if (setrlimit(RLIMIT_FSIZE, &full) != 0) return 9;
      std::string message = error_of([&] { write_safetensors(path, sample(2)); });
      if (message.empty()) return 1;
      for (const char* part : {path.c_str(), "writing", "File too large", "the old file is unchanged"}) {
        if (message.find(part) == std::string::npos) return 2;
      }
      return 0;
    });
    CAPTURE(limit);
    CHECK(code == 0);
    CHECK(read_bytes(path) == before);
    CHECK(folder.names().size() == 1);
  }
}

TEST_CASE("safetensors: killed at any moment the old file or the new one is whole") {
  ScratchFolder folder;
  std::string path = folder.file("x.safetensors");
  auto large = [](float value) {
    return TensorFile{{{"a", Tensor::full({100'000}, value)}, {"b", Tensor::full({100'000}, value)}}, {}};
  };
  write_safetensors(path, large(0));
  Rng rng(1);
  for (int round = 0; round < 15; ++round) {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (int i = 1;; ++i) write_safetensors(path, large(static_cast<float>(i)));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(20'000)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    TensorFile file = read_safetensors(path);
    REQUIRE(file.tensors.size() == 2);
    CHECK(file.tensors[0].second.at({0}) == file.tensors[1].second.at({99'999}));
    CHECK(checkpoints(folder) == std::vector<std::string>{"x.safetensors"});
  }
}
}
