// SPDX-License-Identifier: Apache-2.0
// Header and size are checked against each other once, before any element is used. Each read checks
// the size again, since reading a page beyond the end of a truncated file kills the process. Ids
// are checked against the vocabulary when they are copied.
#include "tessera/train/data/npy.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/utf8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace tessera::train {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are used in file byte order");

constexpr std::string_view kWhere = "data";
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kLongestHeader = 1 << 16;

struct TypeName {
  std::string_view descr;
  NpyType type;
  int64_t width;
};
constexpr std::array<TypeName, 4> kTypes{{{"<u2", NpyType::u16, 2},
                                          {"<i4", NpyType::i32, 4},
                                          {"<u4", NpyType::u32, 4},
                                          {"<i8", NpyType::i64, 8}}};

// The header is a Python dict of three known keys; this reads such dicts and nothing else.
class HeaderText {
 public:
  HeaderText(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  NpyHeader parse() {
    NpyHeader header;
    std::optional<std::string_view> descr;
    std::optional<bool> fortran;
    bool shaped = false;
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !descr) descr = peek() == '[' ? rest() : quoted();
      else if (key == "fortran_order" && !fortran) fortran = boolean();
      else if (key == "shape" && !shaped) header.shape = tuple(), shaped = true;
      else fault(concat("key '", io::excerpt(key), "'"));
      if (structured_) break;
      if (!take(',') && peek() != '}') fault("no comma between two keys");
    }
    if (!descr || (!structured_ && (!fortran || !shaped)))
      fault("descr, fortran_order or shape is missing");
    const auto type = std::ranges::find(kTypes, *descr, &TypeName::descr);
    if (type == kTypes.end()) {
      fail<DataError>(kWhere, path_, " holds elements of type ", io::excerpt(*descr),
                      ", expected <u2, <i4, <u4 or <i8 (uint16, int32, uint32 or int64); convert "
                      "it with numpy.save(FILE, array.astype('<i4'))");
    }
    header.type = type->type;
    if (*fortran) {
      fail<DataError>(kWhere, path_,
                      " is in Fortran order; save it in C order with numpy.save(FILE, "
                      "numpy.ascontiguousarray(array))");
    }
    return header;
  }

 private:
  [[noreturn]] void fault(std::string_view what) const {
    fail<DataError>(kWhere, path_, " has a header that is not NumPy's, at byte ", at_, " of '",
                    io::excerpt(text_, 100), "': ", what, "; write the file with numpy.save");
  }
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fault(concat("no '", c, '\''));
  }
  std::string_view quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fault("no quote");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fault("a quote without end");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return inside;
  }
  // The fields of a structured type, which is always refused.
  std::string_view rest() {
    structured_ = true;
    return text_.substr(at_, 40);
  }
  bool boolean() {
    peek();
    for (const auto& [word, value] : {std::pair{"True", true}, {"False", false}}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += std::strlen(word);
      return value;
    }
    fault("neither True nor False");
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect('(');
    while (!take(')')) {
      peek();
      int64_t value = 0;
      const auto [end, error] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
      if (error != std::errc{} || value < 0) fault("not a size");
      at_ = static_cast<size_t>(end - text_.data());
      values.push_back(value);
      if (!take(',') && peek() != ')') fault("no comma between two sizes");
    }
    return values;
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
  bool structured_ = false;
};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t n : shape) text += concat(text.empty() ? "" : ", ", n);
  return concat('(', text, shape.size() == 1 ? ",)" : ")");
}

template <class T>
int64_t copy_checked(const std::byte* from, std::span<int64_t> to, uint64_t limit) {
  uint64_t worst = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));  // data need not be aligned
    to[i] = static_cast<int64_t>(value);
    worst = std::max(worst, static_cast<uint64_t>(to[i]));  // a negative one is far above all
  }
  if (worst < limit) return -1;
  return std::ranges::find_if(to, [&](int64_t v) { return static_cast<uint64_t>(v) >= limit; }) -
         to.begin();
}

}  // namespace

NpyHeader parse_npy_header(std::string_view bytes, const std::string& path) {
  if (!bytes.starts_with(kMagic)) {
    fail<DataError>(kWhere, path, " does not begin as .npy files do; write it with numpy.save");
  }
  const auto byte = [&](size_t i) {
    return i < bytes.size() ? static_cast<size_t>(static_cast<unsigned char>(bytes[i])) : 0;
  };
  const size_t major = byte(6), minor = byte(7);
  if (bytes.size() > 7 && (major < 1 || major > 3 || minor != 0)) {
    fail<DataError>(kWhere, path, " is of .npy format ", major, '.', minor,
                    ", expected 1.0, 2.0 or 3.0; write it with numpy.save");
  }
  const size_t start = major == 1 ? 10 : 12;
  const size_t length = byte(8) | byte(9) << 8 | (major == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (bytes.size() < start || length > bytes.size() - start) {
    fail<DataError>(kWhere, path, " ends within its header: ", bytes.size(), " bytes, expected ",
                    start + length, " and the tokens; copy or write it again");
  }
  NpyHeader header = HeaderText(bytes.substr(start, length), path).parse();
  header.data_offset = start + length;
  if (header.shape.size() != 1 && header.shape.size() != 2) {
    fail<DataError>(kWhere, path, " is of shape ", shape_text(header.shape),
                    ", expected one dimension (a stream of tokens) or two (rows of seq_len + 1)");
  }
  return header;
}

NpyFile::NpyFile(const std::string& path) : path_(path) {
  fd_ = io::open_file(path, kWhere);
  const auto io_error = [&](std::string_view what) {
    const int error = errno;
    ::close(fd_);
    fail<IoError>(kWhere, "cannot ", what, ' ', path, ": ", std::strerror(error));
  };
  struct stat info {};
  if (::fstat(fd_, &info) != 0) io_error("open");
  mapped_ = static_cast<size_t>(info.st_size);
  if (mapped_ == 0) {
    ::close(fd_);
    fail<DataError>(kWhere, path, " is empty");
  }
  void* map = ::mmap(nullptr, mapped_, PROT_READ, MAP_PRIVATE, fd_, 0);
  if (map == MAP_FAILED) io_error("map");
  map_ = static_cast<const std::byte*>(map);
  try {
    const std::string_view front(reinterpret_cast<const char*>(map_),
                                 std::min(mapped_, kLongestHeader));
    header_ = parse_npy_header(front, path);
    size_ = 1;
    bool overflow = false;
    for (int64_t n : header_.shape) overflow |= __builtin_mul_overflow(size_, n, &size_);
    int64_t bytes = 0;
    overflow |= __builtin_mul_overflow(size_, width(), &bytes);
    const auto there = static_cast<int64_t>(mapped_ - header_.data_offset);
    if (overflow || bytes != there) {
      fail<DataError>(kWhere, path, overflow || bytes > there ? " is cut short" : " is too long",
                      ": its header has shape ", shape_text(header_.shape), ", ", width(),
                      " bytes each, but ", there, " bytes follow; copy or write it again");
    }
    if (size_ == 0) {
      fail<DataError>(kWhere, path, " is empty: its shape is ", shape_text(header_.shape));
    }
  } catch (...) {
    ::munmap(map, mapped_);
    ::close(fd_);
    throw;
  }
}

NpyFile::NpyFile(NpyFile&& other) noexcept
    : path_(std::move(other.path_)),
      header_(std::move(other.header_)),
      size_(other.size_),
      fd_(std::exchange(other.fd_, -1)),
      map_(std::exchange(other.map_, nullptr)),
      mapped_(other.mapped_) {}

NpyFile::~NpyFile() {
  if (map_ == nullptr) return;
  ::munmap(const_cast<std::byte*>(map_), mapped_);
  ::close(fd_);
}

int64_t NpyFile::width() const { return kTypes[static_cast<size_t>(header_.type)].width; }

// Reading pages beyond the end of a truncated file kills the process.
void NpyFile::require_whole() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || static_cast<size_t>(info.st_size) >= mapped_) return;
  fail<DataError>(kWhere, path_, " was truncated while it was read: ", info.st_size,
                  " bytes, expected ", mapped_, "; do not change data during training");
}

void NpyFile::read(int64_t from, std::span<int64_t> to, int64_t limit) const {
  require_whole();
  const std::byte* data = map_ + header_.data_offset + from * width();
  const auto top = static_cast<uint64_t>(limit);
  int64_t bad = -1;
  switch (header_.type) {
    case NpyType::u16: bad = copy_checked<uint16_t>(data, to, top); break;
    case NpyType::i32: bad = copy_checked<int32_t>(data, to, top); break;
    case NpyType::u32: bad = copy_checked<uint32_t>(data, to, top); break;
    case NpyType::i64: bad = copy_checked<int64_t>(data, to, top); break;
  }
  if (bad < 0) return;
  fail<DataError>(kWhere, path_, ", element ", from + bad, ": token ", to[static_cast<size_t>(bad)],
                  " is not in [0, ", limit,
                  "), the model's vocabulary; the data was made by another tokenizer, or "
                  "model.vocab_size must be larger");
}

}  // namespace tessera::train
