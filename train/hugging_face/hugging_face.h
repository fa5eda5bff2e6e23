// SPDX-License-Identifier: Apache-2.0
// Models of Hugging Face to checkpoints and back. Both stream: one tensor is in memory at a time.
// What is written appears complete or not at all.
#pragma once

#include "tessera/core/dtype.h"
#include "tessera/train/checkpoint/folder.h"
#include "tessera/train/run/config.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::train {

struct ImportOptions {
  std::string from;          ///< folder with config.json and safetensors
  std::string out;           ///< new folder
  DType dtype = DType::f32;  ///< of the parameters: f32, bf16 or f64
};
/// Writes `out` as a run leaves its dump folder: config.json of a run that starts from the model,
/// checkpoint/step-0 with the model alone, and the tokenizer's files. Returns the bytes of the
/// tensors. `note` gets what the user should know. DataError: config.json or the weights do not
/// describe a model of a family, with every fault. IoError: unreadable, `out` exists or cannot be
/// written. Needs a Context.
TESSERA_API uint64_t import_hugging_face(const ImportOptions& options, const Catalogue& catalogue,
                                         const Warn& note);

struct ExportOptions {
  std::string checkpoint;           ///< dump folder of a run, or one of its checkpoints
  std::string out;                  ///< new folder
  std::optional<DType> dtype = {};  ///< none: as it is stored
  uint64_t max_shard_bytes = uint64_t{5'000'000'000};  ///< of the tensors in a file
};
/// Writes a folder that transformers loads: config.json, generation_config.json, the tokenizer's
/// files, and model.safetensors, or several files with an index if one would be larger. Returns the
/// bytes of the tensors. DataError, IoError: as open_trained_model; `out` exists or cannot be
/// written. ConfigError: the family has no table of names. Needs a Context.
TESSERA_API uint64_t export_hugging_face(const ExportOptions& options, const Catalogue& catalogue,
                                         const Warn& note);

}  // namespace tessera::train
