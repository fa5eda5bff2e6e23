// SPDX-License-Identifier: Apache-2.0
// safetensors: named tensors in one file (u64 header length, JSON header, bytes). Files are
// untrusted input: every rule of the format is checked before a byte is used. Writes are atomic.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/parameters.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::io {

using Metadata = std::map<std::string, std::string>;

class TESSERA_API SafetensorsFile {
 public:
  struct Entry {
    std::string dtype;  ///< as in the file: "F32", "BF16", ...
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0;  ///< bytes from the end of the header
  };
  /// Opens and checks the whole header. IoError: unreadable. DataError: breaks a rule of the
  /// format; it says which.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  [[nodiscard]] const std::map<std::string, Entry>& entries() const { return entries_; }
  [[nodiscard]] const Metadata& metadata() const { return metadata_; }
  [[nodiscard]] bool has(const std::string& name) const { return entries_.contains(name); }
  /// The bytes before those of the tensors, and their checksum.
  [[nodiscard]] FileSum header() const { return header_; }
  /// DataError: no such tensor, or an unsupported dtype.
  [[nodiscard]] Tensor read(const std::string& name) const;
  /// Bytes [begin, begin + bytes) of a tensor, which must have them. DataError: no such tensor.
  void read_bytes(const std::string& name, uint64_t begin, uint64_t bytes, void* to) const;
  /// All tensors, by name.
  [[nodiscard]] std::vector<nn::NamedParameter> read_all() const;

 private:
  [[noreturn]] void corrupt(const std::string& what) const;
  [[nodiscard]] const Entry& entry(const std::string& name) const;
  void parse(std::string_view header, uint64_t buffer_bytes);
  std::string path_;
  std::map<std::string, Entry> entries_;
  Metadata metadata_;
  int fd_ = -1;
  FileSum header_;
};

/// The dtype as the format spells it: "F32", "BF16", ...
[[nodiscard]] TESSERA_API std::string_view file_type_name(DType dtype);
/// The dtype of such a name; none: it is not one of ours.
[[nodiscard]] TESSERA_API std::optional<DType> dtype_of_file_type(std::string_view name);

/// Writes CPU or device tensors; adds `format: pt` to the metadata unless it has a format, because
/// other readers require one.
TESSERA_API void write_safetensors(const std::string& path,
                                   const std::vector<nn::NamedParameter>& tensors,
                                   Metadata metadata = {}, FileMode mode = {});

/// A tensor as its elements in host memory, row-major.
struct TensorBytes {
  std::string name;
  DType dtype = DType::f32;
  Shape shape = {};
  const void* data = nullptr;
};
struct SafetensorsSums {
  uint64_t bytes = 0;               ///< of the file
  FileSum header;                   ///< as SafetensorsFile::header
  std::vector<uint32_t> tensors{};  ///< checksum of each tensor's bytes, in the given order
};
/// The same from memory. Needs no Context, so any thread may call it. With `data_of`, the bytes of
/// tensor i are what data_of(i) returns, until it is called again, so that one at a time may exist.
TESSERA_API SafetensorsSums write_safetensors(const std::string& path,
                                              const std::vector<TensorBytes>& tensors,
                                              Metadata metadata = {});
TESSERA_API SafetensorsSums write_safetensors(const std::string& path,
                                              const std::vector<TensorBytes>& tensors,
                                              Metadata metadata,
                                              const std::function<const void*(size_t)>& data_of,
                                              FileMode mode = {});

}  // namespace tessera::io
