// SPDX-License-Identifier: Apache-2.0
// Integers in a file, read in place: a file of any size opens at once, needs no memory of its own,
// and the ranks of a machine share the system's cache of it. Not mapped: a mapped page whose bytes
// are lost (a file cut short, a disk that fails) kills the process; a read of them is an error. The
// formats are NumPy's .npy (1.0 to 3.0; uint16, int32, uint32 or int64 in C order, one or two
// dimensions) and llm.c's .bin (uint16 or uint32), all little-endian.
#pragma once

#include "tessera/core/api.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

enum class ElementType { u16, i32, u32, i64 };
/// Bytes of an element.
TESSERA_API int64_t width_of(ElementType type);

struct ArrayHeader {
  ElementType type = ElementType::i32;
  std::vector<int64_t> shape;
  size_t data_offset = 0;                                    ///< bytes before the first element
  [[nodiscard]] TESSERA_API std::string shape_text() const;  ///< `(3, 4)`, as NumPy writes it
};
/// Reads the header at the front of `bytes`. DataError, which names `path`: not .npy, or of an
/// unsupported type, order or shape.
TESSERA_API ArrayHeader parse_npy_header(std::string_view bytes, const std::string& path);
/// The header of an .npy file of one dimension; 128 bytes for any number of elements.
TESSERA_API std::string npy_header(ElementType type, int64_t elements);
/// The same as parse_npy_header for the shards of llm.c: 256 int32, which are a magic number, a
/// version, the number of tokens, and zeros.
TESSERA_API ArrayHeader parse_llmc_header(std::string_view bytes, const std::string& path);
/// Whether the file begins as those shards do; false if it cannot be read.
TESSERA_API bool is_llmc_file(const std::string& path);

class TESSERA_API ArrayFile {
 public:
  /// Of the format that the name says: .bin is llm.c's, all else .npy. IoError: cannot be read.
  /// DataError: as the header's parser, empty, or longer or shorter than its header says.
  explicit ArrayFile(const std::string& path);
  ArrayFile(ArrayFile&& other) noexcept;
  ArrayFile& operator=(ArrayFile&& other) = delete;
  ~ArrayFile();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const ArrayHeader& header() const { return header_; }
  [[nodiscard]] int64_t size() const { return size_; }  ///< elements
  [[nodiscard]] int64_t width() const { return width_of(header_.type); }
  /// Reads elements [from, from + to.size()), which must exist. DataError if one is not in [0,
  /// limit), or the file was truncated after it was opened. IoError: cannot be read. From any
  /// thread, as the other functions.
  void read(int64_t from, std::span<int64_t> to, int64_t limit) const;
  /// Where, in ascending elements, the first one of at least `value` is; size() if there is none.
  /// DataError: truncated.
  [[nodiscard]] int64_t lower_bound(int64_t value) const;
  /// Asks the system to read elements [from, from + count), which must exist, soon.
  void will_need(int64_t from, int64_t count) const;
  /// Checksum of the bytes of all elements. DataError: truncated.
  [[nodiscard]] uint32_t crc32c() const;

 private:
  void require_whole() const;
  /// Bytes of the file from `at` on.
  void read_bytes(size_t at, std::span<std::byte> to) const;
  /// Calls f(index of the first, bytes) for elements [from, from + count), in blocks of some.
  template <class F> void for_each_block(int64_t from, int64_t count, F&& f) const;
  template <class T> [[nodiscard]] int64_t first_of(int64_t value) const;
  std::string path_;
  ArrayHeader header_;
  int64_t size_ = 0;
  int fd_ = -1;
  size_t file_bytes_ = 0;
};

}  // namespace tessera::train
