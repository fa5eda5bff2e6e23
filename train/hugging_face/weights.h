// SPDX-License-Identifier: Apache-2.0
// The folder of a model of Hugging Face: config.json, weights in one safetensors file or in several
// with an index, tokenizer files. All of it is untrusted: no name in it leads out of the folder.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/nn/io/safetensors.h"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

inline constexpr std::string_view kHfConfig = "config.json", kHfWeights = "model.safetensors",
                                  kHfIndex = "model.safetensors.index.json",
                                  kHfGeneration = "generation_config.json";

/// The tokenizer's and the generation's files, which are copied as they are.
[[nodiscard]] TESSERA_API std::span<const std::string_view> hf_copied_files();

/// The path of a file in the folder. DataError: it is not a plain name, or a link that leads out of
/// the folder (but for `blobs` two above, where a hub cache keeps its files); empty: there is none.
[[nodiscard]] TESSERA_API std::string hf_file(const std::string& folder, std::string_view name);

/// Opened files, whose tensors are read one at a time.
class TESSERA_API HfWeights {
 public:
  /// DataError: there are no weights, or index and files do not agree. IoError: unreadable.
  explicit HfWeights(const std::string& folder);

  struct Entry {
    const io::SafetensorsFile* file;
    const io::SafetensorsFile::Entry* entry;
  };
  [[nodiscard]] const std::map<std::string, Entry>& entries() const { return entries_; }
  /// DataError: no such tensor, or of a dtype that is not supported.
  [[nodiscard]] Tensor read(const std::string& name) const;

 private:
  void read_index(const std::string& folder, const std::string& index);
  std::vector<std::unique_ptr<io::SafetensorsFile>> files_;
  std::map<std::string, Entry> entries_;
};

}  // namespace tessera::train
