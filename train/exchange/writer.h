// SPDX-License-Identifier: Apache-2.0
// Writes the folder that transformers loads, of a model that is read a tensor at a time.
#pragma once

#include "tessera/models/hugging_face.h"
#include "tessera/train/checkpoint/reader.h"
#include "tessera/train/exchange/special_tokens.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace tessera::train {

/// Told while tensors are converted: bytes so far, and of all.
using BytesDone = std::function<void(uint64_t bytes, uint64_t of)>;

/// One of their tensors, of those of a checkpoint. DataError: a part is missing, damaged or of
/// another shape.
[[nodiscard]] TESSERA_API Tensor read_joined(const CheckpointReader& from,
                                             const models::HfTensor& tensor);
/// The dtype of a checkpoint's floating-point tensors: that of the first one.
[[nodiscard]] TESSERA_API DType stored_dtype(const CheckpointReader& from);

/// What of a folder is not in a checkpoint.
struct HfOutput {
  std::string folder;           ///< a new one
  std::string field = "--out";  ///< that names it, for errors
  DType dtype = DType::f32;
  uint64_t max_shard_bytes = uint64_t{5'000'000'000};  ///< of the tensors in a file
  std::shared_ptr<const Tokenizer> tokenizer = {};     ///< its files are copied; null: none
  std::string assets = {};  ///< a folder whose other files are copied; may be missing
  SpecialTokensConfig special_tokens = {};  ///< what the model's folder said
  int64_t answer_end = -1;  ///< the mark that ends an answer, to end texts too; below 0: none
};
/// Writes config.json, generation_config.json, the tokenizer's files, and model.safetensors, or
/// several files with an index if one would be larger. The folder appears complete or not at all.
/// Returns the bytes of the tensors. ConfigError: the family has no names of Hugging Face. IoError:
/// the folder exists or cannot be written. DataError: `from` is damaged or of another model.
TESSERA_API uint64_t write_hugging_face(const HfOutput& output, const models::ModelConfig& config,
                                        const CheckpointReader& from, const BytesDone& progress);

}  // namespace tessera::train
