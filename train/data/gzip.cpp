// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/error.h"
#include "tessera/train/data/gzip_impl.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <unistd.h>
#include <utility>

namespace tessera::train {
namespace {

constexpr std::string_view kWhere = "data";
constexpr size_t kBlock = 1 << 18;
constexpr unsigned char kMagic[] = {0x1F, 0x8B};

}  // namespace

GzipReader::GzipReader(int fd, std::string path)
    : fd_(fd), path_(std::move(path)), packed_(kBlock) {
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

}  // namespace tessera::train
