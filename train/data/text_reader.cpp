// SPDX-License-Identifier: Apache-2.0
// A text file is read at once; JSONL line by line, so it needs memory for the longest line only.
// UTF-8 is checked before any parser sees the text, so that an error names file, line and byte.
#include "tessera/train/data/text_reader.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/data/data_kinds.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <zlib.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhere = "data";

bool is_gz(const std::string& path) { return path.ends_with(".gz"); }

// Why a file or folder of a data folder is passed over; empty: it is not.
std::string_view why_not(const fs::path& path, fs::file_type type) {
  const std::string name = path.filename().string();
  if (name.starts_with('.')) return "hidden";
  if (type == fs::file_type::symlink) return "links";
  const bool folder = type == fs::file_type::directory;
  if (folder && name == "build") return "build folders";
  if (!folder) {
    if (!is_data_file(path.string(), type == fs::file_type::regular)) return "of other suffixes";
    if (type != fs::file_type::regular) return "not files";
  }
  // An unreadable file is an error of its reader; an unreadable folder would be passed over
  // silently.
  if (folder && ::access(path.c_str(), R_OK | X_OK) != 0) return "unreadable";
  return {};
}

// The bytes of a gzip file: members, one behind the other. All of the file is read or refused:
// zlib's gzread would end without a word where the next byte begins no member. Only zeros may
// follow the last member, with which tapes and block devices fill up.
class GzipReader {
 public:
  /// Reads the file of this descriptor, which it does not close; `path` is for errors.
  GzipReader(int fd, std::string path);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  /// Fills `to`; fewer bytes only at the end of the file. IoError: cannot be read. DataError, with
  /// the byte of the file: not gzip, damaged, cut short, or something behind the last member.
  [[nodiscard]] size_t read(std::span<char> to);

 private:
  /// At least `count` bytes wait to be unpacked, unless the file ends before.
  void wait_for(size_t count);
  /// Begins the next member; false at the end of the file.
  [[nodiscard]] bool begin_member();
  void require_zeros();
  /// Of the first byte that waits.
  [[nodiscard]] int64_t at() const { return read_ - static_cast<int64_t>(stream_.avail_in); }
  template <class... Parts> [[noreturn]] void damaged(const Parts&... parts) const;

  int fd_;
  std::string path_;
  std::vector<unsigned char> packed_;
  z_stream stream_{};
  int64_t read_ = 0;      // bytes of the file
  int64_t unpacked_ = 0;  // bytes, of all members
  bool any_ = false;      // a member has begun
  bool inside_ = false;   // and has not ended
};

constexpr size_t kBlock = 1 << 18;
constexpr unsigned char kMagic[] = {0x1F, 0x8B};

GzipReader::GzipReader(int fd, std::string path)
    : fd_(fd), path_(std::move(path)), packed_(kBlock) {
  stream_.next_in = packed_.data();
  constexpr int kGzipAlone = 16;
  if (::inflateInit2(&stream_, MAX_WBITS + kGzipAlone) != Z_OK) throw std::bad_alloc();
}
GzipReader::~GzipReader() { ::inflateEnd(&stream_); }

template <class... Parts> void GzipReader::damaged(const Parts&... parts) const {
  fail<DataError>(kWhere, path_, " is damaged after ", unpacked_, " unpacked bytes, at byte ", at(),
                  " of the file: ", parts..., "; expected a whole gzip file, `gzip -t` checks it");
}

void GzipReader::wait_for(size_t count) {
  if (stream_.avail_in >= count) return;
  std::memmove(packed_.data(), stream_.next_in, stream_.avail_in);
  stream_.next_in = packed_.data();
  while (stream_.avail_in < count) {
    const ssize_t n = ::read(fd_, packed_.data() + stream_.avail_in, kBlock - stream_.avail_in);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail<IoError>(kWhere, "cannot read ", path_, ": ", std::strerror(errno));
    if (n == 0) return;
    read_ += n;
    stream_.avail_in += static_cast<unsigned>(n);
  }
}

void GzipReader::require_zeros() {
  for (; stream_.avail_in > 0; wait_for(1)) {
    for (; stream_.avail_in > 0; --stream_.avail_in, ++stream_.next_in)
      if (*stream_.next_in != 0) damaged("bytes follow the zeros behind the last member");
  }
}

bool GzipReader::begin_member() {
  wait_for(sizeof kMagic);
  if (stream_.avail_in == 0) return false;
  if (any_ && *stream_.next_in == 0) {
    require_zeros();
    return false;
  }
  const size_t known = std::min<size_t>(stream_.avail_in, sizeof kMagic);
  if (!std::equal(kMagic, kMagic + known, stream_.next_in)) {
    if (any_) damaged("no gzip member begins there");
    fail<DataError>(kWhere, path_,
                    " is not gzip, as its name says; compress it or rename it without .gz");
  }
  ::inflateReset(&stream_);
  any_ = inside_ = true;
  return true;
}

size_t GzipReader::read(std::span<char> to) {
  size_t filled = 0;
  while (filled < to.size()) {
    if (!inside_ && !begin_member()) break;
    wait_for(1);
    if (stream_.avail_in == 0) damaged("the file ends early");
    const auto room = static_cast<unsigned>(std::min<size_t>(to.size() - filled, 1U << 30));
    stream_.next_out = reinterpret_cast<unsigned char*>(to.data()) + filled;
    stream_.avail_out = room;
    const int code = ::inflate(&stream_, Z_NO_FLUSH);
    filled += room - stream_.avail_out;
    unpacked_ += room - stream_.avail_out;
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    if (code == Z_STREAM_END) inside_ = false;
    else if (code != Z_OK && code != Z_BUF_ERROR)
      damaged(stream_.msg != nullptr ? stream_.msg : "it needs a dictionary");
  }
  return filled;
}

// The bytes of a file, plain or by gzip, a block at a time.
class Blocks {
 public:
  explicit Blocks(const std::string& path) : path_(path), buffer_(1 << 20, '\0') {
    file_.fd = io::open_file(path, kWhere);
    if (::fstat(file_.fd, &info_) != 0)
      fail<IoError>(kWhere, "cannot open ", path_, ": ", std::strerror(errno));
    if (is_gz(path)) gzip_.emplace(file_.fd, path);
  }

  /// Empty at the end.
  [[nodiscard]] std::string_view next() {
    return {buffer_.data(), gzip_ ? gzip_->read(buffer_) : plain()};
  }
  /// Bytes as stored: a lower bound of what is in a plain file.
  [[nodiscard]] size_t stored() const { return static_cast<size_t>(info_.st_size); }

 private:
  struct File {
    int fd = -1;
    File() = default;
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File() {
      if (fd >= 0) ::close(fd);
    }
  };
  size_t plain() {
    for (;;) {
      const ssize_t n = ::read(file_.fd, buffer_.data(), buffer_.size());
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) {
        fail<IoError>(kWhere, "cannot read ", path_, ": ", std::strerror(errno));
      }
    }
  }

  std::string path_, buffer_;
  struct stat info_ {};
  File file_;
  std::optional<GzipReader> gzip_;
};

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Files that are no text, by how they begin, and what to do with them.
struct Foreign {
  std::string_view begin, name, help;
};
constexpr size_t kMostMagic = 8;  // bytes
constexpr Foreign kForeign[] = {
    {"PAR1", "Parquet", "write its text as .jsonl, a document per line"},
    {"\x28\xB5\x2F\xFD", "zstd", "decompress it with `zstd -d`"},
    {"BZh", "bzip2", "decompress it with `bunzip2`"},
    {std::string_view("\xFD"
                      "7zXZ\0",
                      6),
     "xz", "decompress it with `unxz`"},
    {"PK\x03\x04", "zip", "decompress it with `unzip`"},
    {"\x1F\x8B", "gzip", "give its name the ending .gz"},
    {"\xFF\xFE", "UTF-16", "convert it with `iconv -f UTF-16 -t UTF-8`"},
    {"\xFE\xFF", "UTF-16", "convert it with `iconv -f UTF-16 -t UTF-8`"},
};

[[noreturn]] void not_utf8(const std::string& path, std::string_view beginning, int64_t line,
                           size_t offset, char byte) {
  for (const Foreign& foreign : kForeign) {
    if (beginning.starts_with(foreign.begin))
      fail<DataError>(kWhere, path, " is ", foreign.name, ", not text; ", foreign.help);
  }
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  const auto b = static_cast<unsigned char>(byte);
  fail<DataError>(kWhere, path, ", line ", line, ", byte ", offset, " of the file: 0x",
                  kDigits[b >> 4], kDigits[b & 15],
                  " is not UTF-8; if it is Latin-1, convert it with `iconv -f LATIN1 -t UTF-8`");
}

// Text without the mark that some programs write at the beginning of a file.
std::string_view without_mark(std::string_view text) {
  return text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
}

void read_text(const std::string& path, const std::function<void(std::string_view)>& document,
               const std::stop_token& stop) {
  Blocks blocks(path);
  std::string text;
  if (!is_gz(path)) text.reserve(blocks.stored());
  for (std::string_view block = blocks.next(); !block.empty(); block = blocks.next()) {
    if (stop.stop_requested()) return;
    text += block;
  }
  if (const size_t bad = io::first_invalid_utf8(text); bad != std::string_view::npos) {
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(bad), '\n');
    not_utf8(path, text, line, bad, text[bad]);
  }
  if (const std::string_view words = without_mark(text); !words.empty()) document(words);
}

constexpr size_t kExcerpt = 40;  // characters: an error also shows path, line and fields

class JsonLines {
 public:
  JsonLines(const std::string& path, const std::string& field,
            const std::function<void(std::string_view)>& document)
      : path_(path), field_(field), document_(document) {}

  void line(std::string_view text, int64_t number) {
    line_ = number;
    const nlohmann::json value = parsed(text);
    if (!value.is_object()) {
      fault("is ", io::kind_text(value.type()), ", expected an object such as {\"",
            io::excerpt(field_), "\": \"...\"}: ", io::excerpt(text, kExcerpt),
            "; write one document per line");
    }
    const auto found = value.find(field_);
    if (found == value.end()) fault("has no field '", io::excerpt(field_), "'; ", fields_of(value));
    if (!found->is_string()) {
      fault("field '", io::excerpt(field_), "' is ", io::kind_text(found->type()),
            ", expected a string; ", fields_of(value));
    }
    const auto& document = found->get_ref<const std::string&>();
    if (!document.empty()) document_(document);
  }

 private:
  template <class... Parts> [[noreturn]] void fault(const Parts&... parts) const {
    fail<DataError>(kWhere, path_, ", line ", line_, ": ", parts...);
  }
  // The line may be long, so the error shows the position, not the beginning.
  [[noreturn]] void not_json(std::string_view text, size_t at) const {
    fault("not JSON at byte ", at + 1, " of the line, near '",
          io::excerpt(text.substr(at < 10 ? 0 : at - 10), kExcerpt),
          "'; write one document per line as {\"", io::excerpt(field_), "\": \"...\"}");
  }
  nlohmann::json parsed(std::string_view text) const {
    // The parser would end there and leave out the rest.
    if (const size_t nul = text.find('\0'); nul != text.npos) not_json(text, nul);
    try {
      return nlohmann::json::parse(text);
    } catch (const nlohmann::json::parse_error& error) {
      const size_t at = std::min(error.byte == 0 ? 0 : error.byte - 1, text.size());
      not_json(text, at);
    } catch (const nlohmann::json::exception&) {
      fault("a number is too large for a double");
    }
  }
  static std::string fields_of(const nlohmann::json& value) {
    std::string names;
    constexpr size_t kMost = 20;
    size_t count = 0;
    for (const auto& [name, member] : value.items()) {
      if (++count > kMost) break;
      names += (names.empty() ? "" : ", ") + io::excerpt(name, kExcerpt) +
               (member.is_string() ? "" : " (no text)");
    }
    if (count > kMost) names += ", ...";
    if (names.empty()) return "the object is empty";
    return concat("it has: ", names, "; choose one with text_field");
  }

  const std::string& path_;
  const std::string& field_;
  const std::function<void(std::string_view)>& document_;
  int64_t line_ = 0;
};

void read_jsonl(const std::string& path, const std::string& field,
                const std::function<void(std::string_view)>& document,
                const std::stop_token& stop) {
  JsonLines lines(path, field, document);
  read_lines(
      path, [&](std::string_view text, int64_t number) { lines.line(text, number); }, stop);
}

}  // namespace

DataFolder data_files(const std::string& folder) {
  DataFolder all;
  std::error_code error;
  const auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator at(folder, options, error), end; !error && at != end;
       at.increment(error)) {
    const std::string path = at->path().string();
    const fs::file_type type = at->symlink_status(error).type();
    if (error) break;
    const std::string_view why = why_not(at->path(), type);
    const bool is_folder = type == fs::file_type::directory;
    if (!why.empty()) all.passed_over.push_back({path, why});
    else if (!is_folder) all.files.push_back(path);
    if (!why.empty() && is_folder) at.disable_recursion_pending();
  }
  if (error) fail<IoError>(kWhere, "cannot list folder ", folder, ": ", error.message());
  std::ranges::sort(all.files);
  std::ranges::sort(all.passed_over, {}, &DataFolder::PassedOver::path);
  return all;
}

std::string DataFolder::text(const std::string& folder) const {
  constexpr size_t kMost = 6;
  const auto names = [&](const std::vector<std::string>& paths) {
    std::string list;
    for (size_t i = 0; i < std::min(paths.size(), kMost); ++i) {
      const fs::path name = fs::path(paths[i]).lexically_relative(folder);
      list += (list.empty() ? "" : ", ") + io::excerpt(name.string(), kExcerpt);
    }
    return paths.size() > kMost ? list + ", ..." : list;
  };
  std::string line = concat(files.size(), " taken");
  if (!files.empty()) line += concat(" (", names(files), ')');
  std::map<std::string_view, std::vector<std::string>> by_reason;
  for (const PassedOver& p : passed_over) by_reason[p.why].push_back(p.path);
  std::string_view before = "; passed over: ";
  for (const auto& [why, paths] : by_reason) {
    line += concat(before, paths.size(), ' ', why, " (", names(paths), ')');
    before = ", ";
  }
  return line;
}

void read_documents(const std::string& path, const std::string& field,
                    const std::function<void(std::string_view)>& document,
                    const std::stop_token& stop) {
  if (format_of(path).lines) read_jsonl(path, field, document, stop);
  else read_text(path, document, stop);
}

void read_lines(const std::string& path, const std::function<void(std::string_view, int64_t)>& line,
                const std::stop_token& stop, size_t most_bytes) {
  Blocks blocks(path);
  int64_t number = 0;
  size_t offset = 0;
  std::string beginning;
  const auto take = [&](std::string_view text) {
    if (++number == 1) beginning = text.substr(0, kMostMagic);
    const size_t start = offset;
    offset += text.size() + 1;
    const std::string_view words = number == 1 ? without_mark(text) : text;
    if (words.find_first_not_of(" \t\r") == std::string_view::npos) return;
    if (const size_t bad = io::first_invalid_utf8(text); bad != std::string_view::npos)
      not_utf8(path, beginning, number, start + bad, text[bad]);
    line(words, number);
  };
  std::string pending;  // of a line that goes on in the next block
  for (std::string_view block = blocks.next(); !block.empty(); block = blocks.next()) {
    for (size_t end = block.find('\n'); end != std::string_view::npos; end = block.find('\n')) {
      if (stop.stop_requested()) return;
      if (pending.empty()) {
        take(block.substr(0, end));
      } else {
        pending += block.substr(0, end);
        take(pending);
        pending.clear();
      }
      block.remove_prefix(end + 1);
    }
    if (pending.size() + block.size() > most_bytes)
      fail<DataError>(kWhere, path, ", line ", number + 1, " is longer than ",
                      counted(most_bytes, "byte"));
    pending += block;
    if (stop.stop_requested()) return;
  }
  if (!pending.empty()) take(pending);
}

}  // namespace tessera::train
