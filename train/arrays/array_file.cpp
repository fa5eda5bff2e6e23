// SPDX-License-Identifier: Apache-2.0
// Header and size are checked against each other once, before any element is used. Each read checks
// the size again, so that a truncated file is found even if what is read is still there. Ids are
// checked against the vocabulary when they are copied.
#include "tessera/train/arrays/array_file.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/files.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace tessera::train {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are used in file byte order");

constexpr std::string_view kWhere = "data";
constexpr size_t kLongestHeader = 1 << 16;
constexpr size_t kBlock = 1 << 14;  // bytes of a read

template <class T> int64_t element(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));  // not aligned
  return static_cast<int64_t>(value);
}

template <class T>
int64_t copy_checked(const std::byte* from, std::span<int64_t> to, uint64_t limit) {
  uint64_t worst = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = element<T>(from, static_cast<int64_t>(i));
    worst = std::max(worst, static_cast<uint64_t>(to[i]));  // a negative one is far above all
  }
  if (worst < limit) return -1;
  return std::ranges::find_if(to, [&](int64_t v) { return static_cast<uint64_t>(v) >= limit; }) -
         to.begin();
}

// Calls `f` with a value of the elements' type.
template <class F> auto with_type(ElementType type, F&& f) {
  switch (type) {
    case ElementType::u16: return f(uint16_t{});
    case ElementType::i32: return f(int32_t{});
    case ElementType::u32: return f(uint32_t{});
    case ElementType::i64: break;
  }
  return f(int64_t{});
}

}  // namespace

int64_t width_of(ElementType type) {
  return with_type(type, [](auto value) { return static_cast<int64_t>(sizeof value); });
}

std::string ArrayHeader::shape_text() const {
  std::string text;
  for (int64_t n : shape) text += concat(text.empty() ? "" : ", ", n);
  return concat('(', text, shape.size() == 1 ? ",)" : ")");
}

ArrayFile::ArrayFile(const std::string& path) : path_(path) {
  fd_ = io::open_file(path, kWhere);
  try {
    struct stat info {};
    if (::fstat(fd_, &info) != 0)
      fail<IoError>(kWhere, "cannot open ", path, ": ", std::strerror(errno));
    file_bytes_ = static_cast<size_t>(info.st_size);
    if (file_bytes_ == 0) fail<DataError>(kWhere, path, " is empty");
    std::string front(std::min(file_bytes_, kLongestHeader), '\0');
    read_bytes(0, std::as_writable_bytes(std::span(front)));
    header_ =
        path.ends_with(".bin") ? parse_llmc_header(front, path) : parse_npy_header(front, path);
    size_ = 1;
    bool overflow = false;
    for (int64_t n : header_.shape) overflow |= __builtin_mul_overflow(size_, n, &size_);
    int64_t bytes = 0;
    overflow |= __builtin_mul_overflow(size_, width(), &bytes);
    const auto there = static_cast<int64_t>(file_bytes_ - header_.data_offset);
    if (overflow || bytes != there) {
      fail<DataError>(kWhere, path, overflow || bytes > there ? " is cut short" : " is too long",
                      ": its header has shape ", header_.shape_text(), ", ",
                      counted(width(), "byte"), " each, but ", counted(there, "byte"),
                      " follow; copy or write it again");
    }
    if (size_ == 0) {
      fail<DataError>(kWhere, path, " is empty: its shape is ", header_.shape_text());
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

ArrayFile::ArrayFile(ArrayFile&& other) noexcept
    : path_(std::move(other.path_)),
      header_(std::move(other.header_)),
      size_(other.size_),
      fd_(std::exchange(other.fd_, -1)),
      file_bytes_(other.file_bytes_) {}

ArrayFile::~ArrayFile() {
  if (fd_ >= 0) ::close(fd_);
}

void ArrayFile::require_whole() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || static_cast<size_t>(info.st_size) >= file_bytes_) return;
  fail<DataError>(kWhere, path_,
                  " was truncated while it was read: ", counted(info.st_size, "byte"),
                  ", expected ", file_bytes_, "; do not change data during training");
}

void ArrayFile::read_bytes(size_t at, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail<IoError>(kWhere, "cannot read ", path_, ": ", std::strerror(errno));
    if (n == 0) {
      require_whole();
      fail<DataError>(kWhere, path_,
                      " changed while it was read; do not change data during training");
    }
    at += static_cast<size_t>(n);
    to = to.subspan(static_cast<size_t>(n));
  }
}

template <class F> void ArrayFile::for_each_block(int64_t from, int64_t count, F&& f) const {
  std::array<std::byte, kBlock> block;  // NOLINT: filled by each read
  const auto most = static_cast<int64_t>(kBlock) / width();
  for (int64_t done = 0; done < count; done += most) {
    const auto n = static_cast<size_t>(std::min(most, count - done));
    const std::span bytes(block.data(), n * static_cast<size_t>(width()));
    read_bytes(header_.data_offset + static_cast<size_t>((from + done) * width()), bytes);
    f(done, std::span<const std::byte>(bytes));
  }
}

void ArrayFile::read(int64_t from, std::span<int64_t> to, int64_t limit) const {
  require_whole();
  for_each_block(from, std::ssize(to), [&](int64_t done, std::span<const std::byte> bytes) {
    const auto part =
        to.subspan(static_cast<size_t>(done), bytes.size() / static_cast<size_t>(width()));
    const int64_t bad = with_type(header_.type, [&](auto value) {
      return copy_checked<decltype(value)>(bytes.data(), part, static_cast<uint64_t>(limit));
    });
    if (bad < 0) return;
    fail<DataError>(kWhere, path_, ", element ", from + done + bad, ": token ",
                    part[static_cast<size_t>(bad)], " is not in [0, ", limit,
                    "), the model's vocabulary; the data was made by another tokenizer, or "
                    "model.vocab_size must be larger");
  });
}

template <class T> int64_t ArrayFile::first_of(int64_t value) const {
  int64_t begin = 0;
  for (int64_t count = size_; count > 0;) {
    const int64_t half = count / 2;
    T middle{};
    read_bytes(header_.data_offset + static_cast<size_t>(begin + half) * sizeof middle,
               std::as_writable_bytes(std::span(&middle, 1)));
    const bool below = static_cast<int64_t>(middle) < value;
    begin += below ? half + 1 : 0;
    count = below ? count - half - 1 : half;
  }
  return begin;
}

int64_t ArrayFile::lower_bound(int64_t value) const {
  require_whole();
  return with_type(header_.type, [&](auto element) { return first_of<decltype(element)>(value); });
}

void ArrayFile::will_need(int64_t from, int64_t count) const {
  // A hint: a system that cannot follow it reads bytes when they are asked for.
  (void)::posix_fadvise(fd_, static_cast<off_t>(header_.data_offset) + from * width(),
                        count * width(), POSIX_FADV_WILLNEED);
}

uint32_t ArrayFile::crc32c() const {
  require_whole();
  uint32_t sum = 0;
  for_each_block(0, size_, [&](int64_t, std::span<const std::byte> bytes) {
    sum = io::crc32c({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, sum);
  });
  return sum;
}

}  // namespace tessera::train
