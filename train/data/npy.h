// SPDX-License-Identifier: Apache-2.0
// Integers of NumPy's .npy files (format 1.0 to 3.0), memory-mapped: a file of any size opens at
// once, needs no memory of its own, and the ranks of a machine share its pages. Little-endian
// uint16, int32, uint32 and int64, in C order, of one or two dimensions.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

enum class NpyType { u16, i32, u32, i64 };

struct NpyHeader {
  NpyType type = NpyType::i32;
  std::vector<int64_t> shape;
  size_t data_offset = 0;  ///< bytes before the first element
};
/// Reads the header at the front of `bytes`. DataError, which names `path`: not .npy, or of an
/// unsupported type, order or shape.
TESSERA_API NpyHeader parse_npy_header(std::string_view bytes, const std::string& path);

class TESSERA_API NpyFile {
 public:
  /// IoError: cannot be read. DataError: as parse_npy_header, empty, or longer or shorter than its
  /// header says.
  explicit NpyFile(const std::string& path);
  NpyFile(NpyFile&& other) noexcept;
  NpyFile& operator=(NpyFile&& other) = delete;
  ~NpyFile();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const NpyHeader& header() const { return header_; }
  [[nodiscard]] int64_t size() const { return size_; }  ///< elements
  /// Bytes of an element.
  [[nodiscard]] int64_t width() const;
  /// Reads elements [from, from + to.size()), which must exist. DataError if one is not in [0,
  /// limit), or the file was truncated after it was opened.
  void read(int64_t from, std::span<int64_t> to, int64_t limit) const;

 private:
  void require_whole() const;
  std::string path_;
  NpyHeader header_;
  int64_t size_ = 0;
  int fd_ = -1;
  const std::byte* map_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace tessera::train
