// SPDX-License-Identifier: Apache-2.0
// Header and size are checked against each other once, before any element is used. Each read checks
// the size again, since reading a page beyond the end of a truncated file kills the process. Ids
// are checked against the vocabulary when they are copied.
#include "tessera/train/arrays/array_file.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/files.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace tessera::train {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are used in file byte order");

constexpr std::string_view kWhere = "data";
constexpr size_t kLongestHeader = 1 << 16;

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

template <class T> int64_t first_of(const std::byte* data, int64_t size, int64_t value) {
  int64_t begin = 0;
  for (int64_t count = size; count > 0;) {
    const int64_t half = count / 2;
    const bool below = element<T>(data, begin + half) < value;
    begin += below ? half + 1 : 0;
    count = below ? count - half - 1 : half;
  }
  return begin;
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
    header_ =
        path.ends_with(".bin") ? parse_llmc_header(front, path) : parse_npy_header(front, path);
    size_ = 1;
    bool overflow = false;
    for (int64_t n : header_.shape) overflow |= __builtin_mul_overflow(size_, n, &size_);
    int64_t bytes = 0;
    overflow |= __builtin_mul_overflow(size_, width(), &bytes);
    const auto there = static_cast<int64_t>(mapped_ - header_.data_offset);
    if (overflow || bytes != there) {
      fail<DataError>(kWhere, path, overflow || bytes > there ? " is cut short" : " is too long",
                      ": its header has shape ", header_.shape_text(), ", ", width(),
                      " bytes each, but ", there, " bytes follow; copy or write it again");
    }
    if (size_ == 0) {
      fail<DataError>(kWhere, path, " is empty: its shape is ", header_.shape_text());
    }
  } catch (...) {
    ::munmap(map, mapped_);
    ::close(fd_);
    throw;
  }
}

ArrayFile::ArrayFile(ArrayFile&& other) noexcept
    : path_(std::move(other.path_)),
      header_(std::move(other.header_)),
      size_(other.size_),
      fd_(std::exchange(other.fd_, -1)),
      map_(std::exchange(other.map_, nullptr)),
      mapped_(other.mapped_) {}

ArrayFile::~ArrayFile() {
  if (map_ == nullptr) return;
  ::munmap(const_cast<std::byte*>(map_), mapped_);
  ::close(fd_);
}

// Reading pages beyond the end of a truncated file kills the process.
void ArrayFile::require_whole() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || static_cast<size_t>(info.st_size) >= mapped_) return;
  fail<DataError>(kWhere, path_, " was truncated while it was read: ", info.st_size,
                  " bytes, expected ", mapped_, "; do not change data during training");
}

void ArrayFile::read(int64_t from, std::span<int64_t> to, int64_t limit) const {
  require_whole();
  const std::byte* first = data() + from * width();
  const int64_t bad = with_type(header_.type, [&](auto value) {
    return copy_checked<decltype(value)>(first, to, static_cast<uint64_t>(limit));
  });
  if (bad < 0) return;
  fail<DataError>(kWhere, path_, ", element ", from + bad, ": token ", to[static_cast<size_t>(bad)],
                  " is not in [0, ", limit,
                  "), the model's vocabulary; the data was made by another tokenizer, or "
                  "model.vocab_size must be larger");
}

int64_t ArrayFile::lower_bound(int64_t value) const {
  require_whole();
  return with_type(header_.type,
                   [&](auto element) { return first_of<decltype(element)>(data(), size_, value); });
}

void ArrayFile::will_need(int64_t from, int64_t count) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = header_.data_offset + static_cast<size_t>(from * width());
  const size_t first = begin / page * page;
  // A hint: where the system cannot follow it, pages are read when they are touched.
  (void)::madvise(const_cast<std::byte*>(map_) + first,
                  begin + static_cast<size_t>(count * width()) - first, MADV_WILLNEED);
}

std::string_view ArrayFile::bytes() const {
  require_whole();
  return {reinterpret_cast<const char*>(data()), static_cast<size_t>(size_ * width())};
}

}  // namespace tessera::train
