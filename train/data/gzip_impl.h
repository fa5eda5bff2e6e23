// SPDX-License-Identifier: Apache-2.0
// The bytes of a gzip file: members, one behind the other. All of the file is read or refused:
// zlib's gzread would end without a word where the next byte begins no member. Only zeros may
// follow the last member, with which tapes and block devices fill up.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>
#include <zlib.h>

namespace tessera::train {

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

}  // namespace tessera::train
