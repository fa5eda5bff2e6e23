// SPDX-License-Identifier: Apache-2.0
// safetensors: named tensors in one file (u64 header length, JSON header, bytes). Files are
// untrusted input: every rule of the format is checked before a byte is used. Writes are atomic.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/parameters.h"

#include <map>
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
  /// DataError: no such tensor, or an unsupported dtype.
  [[nodiscard]] Tensor read(const std::string& name) const;
  /// All tensors, by name.
  [[nodiscard]] std::vector<nn::NamedParameter> read_all() const;

 private:
  [[noreturn]] void corrupt(const std::string& what) const;
  void parse(std::string_view header, uint64_t buffer_bytes);
  std::string path_;
  std::map<std::string, Entry> entries_;
  Metadata metadata_;
  int fd_ = -1;
  uint64_t buffer_ = 0;  // where the bytes begin
};

/// Writes CPU or device tensors; adds `format: pt` to the metadata unless it has a format, because
/// other readers require one. Returns the file's checksum.
TESSERA_API FileSum write_safetensors(const std::string& path,
                                      const std::vector<nn::NamedParameter>& tensors,
                                      Metadata metadata = {});

}  // namespace tessera::io
