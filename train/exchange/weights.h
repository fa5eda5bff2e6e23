// SPDX-License-Identifier: Apache-2.0
// The folder of a model of Hugging Face: config.json, weights in one safetensors file or in several
// with an index, tokenizer files. All of it is untrusted: no name in it leads out of the folder.
// Tensors are read by ranges. Those that are stored quantised look like plain ones in f32:
// - `w` in F8_E4M3 with `w_scale_inv` in F32, a factor per 128 x 128 elements (DeepSeek V3);
// - `w_blocks` and `w_scales` in U8 (GPT-OSS): MXFP4 of (experts, out, in), two elements of `in` in
//   a byte, the lower four bits first, and a power of two per 32 of them. As in transformers, `w`
//   is then (experts, in, out).
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

/// The path of a file in the folder, without links. DataError: it is not a plain name, or a link
/// that leads out of the folder (but for `blobs` two above, where a hub cache keeps its files);
/// empty: there is none.
[[nodiscard]] TESSERA_API std::string hf_file(const std::string& folder, std::string_view name);

/// Whether a model is in the folder, which may be away or an empty mount point.
[[nodiscard]] TESSERA_API bool has_hf_config(const std::string& folder);

/// Opened files, of whose tensors any range is read. Threads may share it.
class TESSERA_API HfWeights {
 public:
  /// The tensors of model.safetensors, or of all files that an index names. DataError: there are
  /// none, index and files do not agree, a tensor is in two files with other values, or what
  /// quantised tensors are stored in does not belong together. IoError: unreadable.
  explicit HfWeights(const std::string& folder);

  enum class Storage : uint8_t { plain, f8_blocks, mxfp4 };
  /// A tensor as it is read.
  struct Stored {
    Storage storage = Storage::plain;
    std::string dtype;  ///< as in the file
    std::vector<int64_t> shape;
    std::string values, scales;  ///< the tensors of files that hold it; scales: if quantised
  };
  [[nodiscard]] const std::map<std::string, Stored>& tensors() const { return tensors_; }
  /// The elements [begin, begin + size) of one of tensors(), contiguous. DataError: of a dtype that
  /// is not supported. IoError: unreadable.
  [[nodiscard]] Tensor read(const std::string& name, const Shape& begin, const Shape& size) const;

 private:
  // A tensor of a file.
  struct Entry {
    std::string name;  // of the file
    const io::SafetensorsFile* file;
    const io::SafetensorsFile::Entry* entry;
  };
  [[nodiscard]] static std::map<std::string, std::string> read_index(const std::string& index);
  void add_file(const std::string& folder, const std::string& name, const std::string& path);
  void find_tensors(const std::string& folder);
  void read_range(const std::string& name, const Shape& begin, const Shape& size, void* to) const;
  [[nodiscard]] Tensor read_f8_blocks(const Stored& stored, const Shape& begin,
                                      const Shape& size) const;
  [[nodiscard]] Tensor read_mxfp4(const Stored& stored, const Shape& begin,
                                  const Shape& size) const;
  std::map<std::string, std::unique_ptr<io::SafetensorsFile>> files_;  // by name
  std::map<std::string, Entry> entries_;
  std::map<std::string, Stored> tensors_;
};

}  // namespace tessera::train
