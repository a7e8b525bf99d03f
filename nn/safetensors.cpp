#include <tapedeck/nn/safetensors.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

// The file, all numbers little-endian:
//
//   8 bytes         n, the length of the header
//   n bytes         the header, JSON, filled up with blanks to a multiple of 8:
//                     {"__metadata__": {"key": "text", ...}, "name": {"dtype": "F32", "shape": [2, 3],
//                      "data_offsets": [begin, end]}, ...}    offsets count from the end of the header
//   the rest        the elements, row-major; no byte belongs to no tensor or to two
//
// Our files have two metadata entries more: "tapedeck.format", the version of this layout, and "tapedeck.crc32", the
// CRC-32 of the whole file, taken with zeros in place of its own eight digits. The first tells a damaged second from an
// absent one.

namespace tapedeck {

namespace {

using nlohmann::ordered_json;
static_assert(std::endian::native == std::endian::little, "elements are written as they are in memory");

constexpr std::string_view reserved = "tapedeck.", format_key = "tapedeck.format", crc_key = "tapedeck.crc32";
constexpr int format_version = 1;
constexpr std::string_view no_crc = "00000000";
constexpr uint64_t max_header = 100'000'000;  // as the format's other readers

struct Dialect {
  DType dtype;
  std::string_view name;
};
constexpr Dialect dialect[] = {{DType::f32, "F32"}, {DType::f64, "F64"}, {DType::i64, "I64"}, {DType::boolean, "BOOL"}};

// JSON for an error message.
std::string quoted(const ordered_json& value) {
  std::string text = value.dump();
  return text.size() <= 100 ? text : text.substr(0, 100) + "...";
}

std::string system_reason() { return std::generic_category().message(errno); }

// A file descriptor that is closed at the end.
class File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0) : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

std::byte* bytes_of(Tensor& x) {
  return dispatch(x.dtype(), [&]<class T> { return reinterpret_cast<std::byte*>(x.mutable_data<T>()); });
}
const std::byte* bytes_of(const Tensor& x) {
  return dispatch(x.dtype(), [&]<class T> { return reinterpret_cast<const std::byte*>(x.data<T>()); });
}
uint64_t byte_count(const Tensor& x) { return static_cast<uint64_t>(x.numel() * size_of(x.dtype())); }

uint32_t crc_of(uint32_t crc, const void* data, size_t n) {
  return static_cast<uint32_t>(crc32_z(crc, static_cast<const unsigned char*>(data), n));
}

// Where the digits of the checksum are in a header; npos if nowhere. Quotes inside JSON strings are escaped, so no name
// and no text can look like this.
size_t find_crc(std::string_view header) {
  std::string pattern = fmt::format("\"{}\":\"", crc_key);
  size_t at = header.find(pattern);
  if (at == std::string_view::npos || at + pattern.size() + no_crc.size() > header.size())
    return std::string_view::npos;
  return at + pattern.size();
}

// ---- Reading ----

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path, O_RDONLY) {
    if (!file_.is_open()) refuse("cannot be opened: {}", system_reason());
    struct stat status;
    if (::fstat(file_.fd(), &status) != 0) refuse("cannot be examined: {}", system_reason());
    if (!S_ISREG(status.st_mode)) refuse("is not a regular file");
    size_ = static_cast<uint64_t>(status.st_size);
  }

  TensorFile read() {
    std::string header = read_header();
    std::vector<Entry> entries = parse(header);
    check_layout(entries);
    read_data(entries, header);
    TensorFile result;
    for (Entry& entry : entries) result.tensors.emplace_back(std::move(entry.name), std::move(entry.value));
    for (auto& [key, text] : metadata_) {
      if (!key.starts_with(reserved)) result.metadata.emplace(key, std::move(text));
    }
    result.has_crc = has_crc_;
    return result;
  }

 private:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
    uint64_t begin, end;
    Tensor value;
  };

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    fail("read_safetensors: {} {}", path_, fmt::format(text, std::forward<Args>(args)...));
  }

  void read_bytes(void* to, uint64_t n) {
    auto* next = static_cast<std::byte*>(to);
    while (n > 0) {
      ssize_t got = ::read(file_.fd(), next, std::min<uint64_t>(n, 1 << 30));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) refuse("cannot be read: {}", system_reason());
      if (got == 0) refuse("ended while it was read");
      next += got;
      n -= static_cast<uint64_t>(got);
    }
  }

  std::string read_header() {
    if (size_ == 0) refuse("is empty");
    if (size_ < 8) refuse("is cut off or no safetensors file: {} bytes, the format begins with 8", size_);
    uint64_t length = 0;
    read_bytes(&length, 8);
    if (length > max_header) refuse("is no safetensors file: it begins with a header length of {}", length);
    if (length > size_ - 8) {
      refuse("is cut off or no safetensors file: header of {} bytes, {} in the file behind its length", length,
             size_ - 8);
    }
    data_size_ = size_ - 8 - length;
    std::string header(length, '\0');
    read_bytes(header.data(), length);
    if (!header.starts_with('{')) refuse("is no safetensors file: its header does not begin with {{");
    return header;
  }

  std::vector<Entry> parse(const std::string& header) {
    std::vector<std::set<std::string>> keys;  // of the objects that are open
    auto watch = [&](int depth, ordered_json::parse_event_t event, ordered_json& value) {
      using Event = ordered_json::parse_event_t;
      if (event == Event::object_start) {
        keys.emplace_back();
      } else if (event == Event::object_end) {
        keys.pop_back();
      } else if (event == Event::key) {
        const std::string& key = value.get_ref<const std::string&>();
        if (!keys.back().insert(key).second) refuse("is damaged: its header has the name \"{}\" twice", key);
      }
      if (depth > 3) refuse("is damaged: its header is nested too deeply");
      return true;
    };
    ordered_json root;
    try {
      root = ordered_json::parse(header, watch);
    } catch (const ordered_json::exception& error) {
      refuse("is damaged: its header is not JSON: {}", error.what());
    }
    std::vector<Entry> entries;
    for (const auto& [name, value] : root.items()) {
      if (name == "__metadata__")
        read_metadata(value);
      else
        entries.push_back(parse_entry(name, value));
    }
    check_format(header);
    return entries;
  }

  void read_metadata(const ordered_json& object) {
    if (!object.is_object()) refuse("is damaged: __metadata__ is not an object");
    for (const auto& [key, text] : object.items()) {
      if (!text.is_string()) refuse("is damaged: __metadata__ \"{}\" is not a string", key);
      metadata_[key] = text.get<std::string>();
    }
  }

  // A file with either of our entries must have both.
  void check_format(const std::string& header) {
    auto format = metadata_.find(std::string(format_key)), crc = metadata_.find(std::string(crc_key));
    has_crc_ = format != metadata_.end() || crc != metadata_.end();
    if (!has_crc_) return;
    if (format == metadata_.end() || crc == metadata_.end()) {
      refuse("is damaged: it has {} without {}", format == metadata_.end() ? crc_key : format_key,
             format == metadata_.end() ? format_key : crc_key);
    }
    size_t digits = 0;
    int version = 0;
    for (char c : format->second) {
      if (c < '0' || c > '9' || ++digits > 6) refuse("is damaged: {} is \"{}\"", format_key, format->second);
      version = version * 10 + (c - '0');
    }
    if (version > format_version) {
      refuse("has format {}, of a later tapedeck; this one reads up to {}", version, format_version);
    }
    if (crc->second.size() != no_crc.size() || find_crc(header) == std::string_view::npos) {
      refuse("is damaged: {} is \"{}\"", crc_key, crc->second);
    }
  }

  Entry parse_entry(const std::string& name, const ordered_json& value) {
    auto field = [&](const char* key) -> const ordered_json& {
      auto found = value.find(key);
      if (!value.is_object() || found == value.end()) refuse("is damaged: tensor \"{}\" has no {}", name, key);
      return *found;
    };
    auto number = [&](const ordered_json& x, const char* key) {
      if (!x.is_number_unsigned()) refuse("is damaged: tensor \"{}\" has {} {}", name, key, quoted(field(key)));
      return x.get<uint64_t>();
    };
    Entry entry;
    entry.name = name;

    const ordered_json& dtype = field("dtype");
    const auto* known =
        std::find_if(std::begin(dialect), std::end(dialect), [&](const Dialect& d) { return dtype == d.name; });
    if (known == std::end(dialect)) {
      refuse("holds tensor \"{}\" of dtype {}; only F32, F64, I64 and BOOL can be read", name, quoted(dtype));
    }
    entry.dtype = known->dtype;

    const ordered_json& shape = field("shape");
    if (!shape.is_array() || shape.size() > max_rank) {
      refuse("holds tensor \"{}\" of shape {}; at most {} axes can be read", name, quoted(shape), max_rank);
    }
    uint64_t bytes = static_cast<uint64_t>(size_of(entry.dtype));
    bool empty = false, too_large = false;
    for (const ordered_json& extent : shape) {
      uint64_t n = number(extent, "shape");
      too_large |= n > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      empty |= n == 0;
      if (n > 0) too_large |= __builtin_mul_overflow(bytes, n, &bytes);
      entry.shape.push_back(static_cast<int64_t>(n));
    }
    if (too_large) refuse("is damaged: tensor \"{}\" has shape {}", name, quoted(shape));
    if (empty) bytes = 0;

    const ordered_json& offsets = field("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) {
      refuse("is damaged: tensor \"{}\" has data_offsets {}", name, quoted(offsets));
    }
    entry.begin = number(offsets[0], "data_offsets");
    entry.end = number(offsets[1], "data_offsets");
    if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
      refuse("is damaged: tensor \"{}\" ({} {}) needs {} bytes, its data_offsets are {}", name, known->name,
             entry.shape, bytes, quoted(offsets));
    }
    if (entry.end > data_size_) {
      refuse("is cut off: tensor \"{}\" ends at byte {} of the data, the file at {}", name, entry.end, data_size_);
    }
    return entry;
  }

  static std::vector<Entry*> by_place(std::vector<Entry>& entries) {
    std::vector<Entry*> order;
    order.reserve(entries.size());
    for (Entry& entry : entries) order.push_back(&entry);
    std::sort(order.begin(), order.end(),
              [](Entry* a, Entry* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
    return order;
  }

  void check_layout(std::vector<Entry>& entries) {
    uint64_t place = 0;
    for (const Entry* entry : by_place(entries)) {
      if (entry->begin != place) {
        refuse("is damaged: tensor \"{}\" begins at byte {} of the data, the one before ends at {}", entry->name,
               entry->begin, place);
      }
      place = entry->end;
    }
    if (place != data_size_) refuse("is damaged: {} bytes follow the last tensor", data_size_ - place);
  }

  void read_data(std::vector<Entry>& entries, std::string& header) {
    uint64_t length = header.size();
    std::string stored;
    if (has_crc_) {
      size_t at = find_crc(header);
      stored = header.substr(at, no_crc.size());
      header.replace(at, no_crc.size(), no_crc);
    }
    uint32_t crc = crc_of(crc_of(0, &length, 8), header.data(), header.size());
    for (Entry* entry : by_place(entries)) {
      entry->value = Tensor::empty(entry->shape, entry->dtype);
      std::byte* data = bytes_of(entry->value);
      uint64_t n = entry->end - entry->begin;
      read_bytes(data, n);
      if (has_crc_) crc = crc_of(crc, data, n);
      if (entry->dtype != DType::boolean) continue;
      auto* wrong = std::find_if(data, data + n, [](std::byte b) { return b > std::byte{1}; });
      if (wrong != data + n) {
        refuse("is damaged: tensor \"{}\" is BOOL and has the byte {} at element {}", entry->name,
               std::to_integer<int>(*wrong), wrong - data);
      }
    }
    if (!has_crc_) return;
    std::string computed = fmt::format("{:08x}", crc);
    if (computed != stored) refuse("is damaged: its checksum is {}, that of its contents {}", stored, computed);
  }

  std::string path_;
  File file_;
  uint64_t size_ = 0, data_size_ = 0;
  std::map<std::string, std::string> metadata_;
  bool has_crc_ = false;
};

// ---- Writing ----

// Header and tensors (dense, in the order of their data), ready to be written.
struct Image {
  std::string head;  // length and header
  std::vector<Tensor> data;
};

Image make_image(const std::string& path, const TensorFile& file) {
  std::set<std::string_view> names;
  for (const auto& [name, value] : file.tensors) {
    if (name == "__metadata__") fail("write_safetensors: {}: a tensor cannot have the name __metadata__", path);
    if (!names.insert(name).second) fail("write_safetensors: {}: two tensors have the name \"{}\"", path, name);
    if (!value.defined()) fail("write_safetensors: {}: tensor \"{}\" is undefined", path, name);
  }
  ordered_json root = ordered_json::object();
  ordered_json& metadata = root["__metadata__"] = ordered_json::object();
  metadata[std::string(format_key)] = std::to_string(format_version);
  metadata[std::string(crc_key)] = no_crc;
  for (const auto& [key, text] : file.metadata) {
    if (key.starts_with(reserved)) {
      fail("write_safetensors: {}: metadata keys that begin with \"{}\" are reserved, got \"{}\"", path, reserved, key);
    }
    metadata[key] = text;
  }
  // Large elements first, so that every tensor is aligned; the header keeps the given order.
  Image image;
  std::vector<uint64_t> begin(file.tensors.size());
  uint64_t place = 0;
  for (int64_t size : {8, 4, 1}) {
    for (size_t i = 0; i < file.tensors.size(); ++i) {
      const Tensor& value = file.tensors[i].second;
      if (size_of(value.dtype()) != size) continue;
      begin[i] = place;
      place += byte_count(value);
      image.data.push_back(value.contiguous());
    }
  }
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    const auto& [name, value] = file.tensors[i];
    ordered_json shape = ordered_json::array();
    for (int64_t extent : value.shape()) shape.push_back(extent);
    root[name] = {{"dtype", dialect[static_cast<int>(value.dtype())].name},
                  {"shape", shape},
                  {"data_offsets", {begin[i], begin[i] + byte_count(value)}}};
  }
  std::string header;
  try {
    header = root.dump();
  } catch (const ordered_json::exception&) {
    fail("write_safetensors: {}: a name or a metadata text is not UTF-8", path);
  }
  header.resize((header.size() + 7) / 8 * 8, ' ');
  uint64_t length = header.size();
  if (length > max_header)
    fail("write_safetensors: {}: the header would have {} bytes, the format allows {}", path, length, max_header);
  uint32_t crc = crc_of(crc_of(0, &length, 8), header.data(), header.size());
  for (const Tensor& value : image.data) crc = crc_of(crc, bytes_of(value), byte_count(value));
  header.replace(find_crc(header), no_crc.size(), fmt::format("{:08x}", crc));
  image.head.assign(reinterpret_cast<const char*>(&length), 8);
  image.head += header;
  return image;
}

bool write_bytes(int fd, const void* from, uint64_t n) {
  const auto* next = static_cast<const std::byte*>(from);
  while (n > 0) {
    ssize_t done = ::write(fd, next, std::min<uint64_t>(n, 1 << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return false;
    next += done;
    n -= static_cast<uint64_t>(done);
  }
  return true;
}

// The file a path means: what a symbolic link points to, so that the link stays a link.
std::filesystem::path resolve(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  return error ? std::filesystem::path(path) : target;
}

}  // namespace

TensorFile read_safetensors(const std::string& path) { return Reader(path).read(); }

void write_safetensors(const std::string& path, const TensorFile& file) {
  Image image = make_image(path, file);
  std::filesystem::path target = resolve(path);
  struct stat old;
  bool replaces = ::stat(target.c_str(), &old) == 0;
  if (replaces && !S_ISREG(old.st_mode)) fail("write_safetensors: {} exists and is not a regular file", path);

  static std::atomic<uint32_t> serial{0};
  std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
  std::string sibling =
      folder / fmt::format(".{}.{}-{}.tmp", target.filename().string(), ::getpid(), serial.fetch_add(1));
  auto give_up = [&](const char* step) {
    std::string reason = system_reason();
    ::unlink(sibling.c_str());
    fail("write_safetensors: {}: {} {} failed: {}{}", path, step, sibling, reason,
         replaces ? "; the old file is unchanged" : "");
  };
  ::unlink(sibling.c_str());  // of a process that had our number and was killed
  File out(sibling, O_WRONLY | O_CREAT | O_EXCL, 0666);
  if (!out.is_open()) give_up("creating");
  if (replaces && ::fchmod(out.fd(), old.st_mode & 0777) != 0) give_up("setting the permissions of");
  bool written = write_bytes(out.fd(), image.head.data(), image.head.size());
  for (const Tensor& value : image.data) written = written && write_bytes(out.fd(), bytes_of(value), byte_count(value));
  if (!written) give_up("writing");
  if (::fsync(out.fd()) != 0) give_up("flushing");
  if (!out.close()) give_up("closing");
  if (::rename(sibling.c_str(), target.c_str()) != 0) give_up("renaming");

  File directory(folder.string(), O_RDONLY | O_DIRECTORY);
  if (!directory.is_open()) return;  // a folder that may be written but not read
  if (::fsync(directory.fd()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail("write_safetensors: {} was written, but flushing its folder failed: {}", path, system_reason());
  }
}

}  // namespace tapedeck
