// SPDX-License-Identifier: Apache-2.0
// Models of others to checkpoints and back. All of it streams: one tensor is in memory at a time.
// What is written appears complete or not at all.
#pragma once

#include "tessera/core/dtype.h"
#include "tessera/train/checkpoint/folder.h"
#include "tessera/train/config/config.h"
#include "tessera/train/exchange/gguf_file.h"
#include "tessera/train/exchange/writer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::train {

struct ImportOptions {
  std::string from;                                ///< folder with config.json and safetensors
  std::string out;                                 ///< new folder
  DType dtype = DType::f32;                        ///< of the parameters: f32, bf16 or f64
  std::vector<std::string> ignore_hf_fields = {};  ///< of config.json, as of a run
};
/// Writes `out` as a run leaves its dump folder: config.json of a run that starts from the model,
/// checkpoint/step-0 with the model and its tokenizer, and the tokenizer's files. Returns the bytes
/// of the tensors. `note` gets what the user should know. DataError: config.json or the weights do
/// not describe a model of a family, with every fault. IoError: unreadable, `out` exists or cannot
/// be written. Needs a Context.
TESSERA_API uint64_t import_hugging_face(const ImportOptions& options, const Catalogue& catalogue,
                                         const Warn& note, const BytesDone& progress = {});

struct ExportOptions {
  std::string checkpoint;           ///< dump folder of a run, or one of its checkpoints
  std::string out;                  ///< new folder
  std::optional<DType> dtype = {};  ///< none: as it is stored
  uint64_t max_shard_bytes = HfOutput().max_shard_bytes;
  std::string drop = {};  ///< a buffer to leave out, by the end of its name; empty: none
};
/// What of a model `drop` leaves out of a folder of transformers. ConfigError: it names nothing
/// that the model has and the folder has not, or something has no place there and is not named.
[[nodiscard]] TESSERA_API std::vector<models::HfFixedOurs> dropped_by(
    const std::string& drop, const models::ModelConfig& model);
/// Writes the folder of write_hugging_face, of the model without what dropped_by says. Errors as of
/// these and of open_trained_model. Needs a Context.
TESSERA_API uint64_t export_hugging_face(const ExportOptions& options, const Catalogue& catalogue,
                                         const Warn& note, const BytesDone& progress = {});

struct GgufOptions {
  std::string checkpoint;         ///< dump folder of a run, or one of its checkpoints
  std::string out;                ///< new file
  GgufType type = GgufType::f32;  ///< of matrices; vectors and what is only added stay in f32
};
/// Writes a file for llama.cpp: the model, and its tokenizer if that is byte-level BPE; `note` says
/// if it is not, and which matrices stay in f32 because a row is no multiple of kQ8Block. Returns
/// the bytes of the tensors. ConfigError: the family has no names there. Other errors as
/// open_trained_model; IoError: `out` exists or cannot be written. Needs a Context.
TESSERA_API uint64_t export_gguf(const GgufOptions& options, const Catalogue& catalogue,
                                 const Warn& note, const BytesDone& progress = {});

}  // namespace tessera::train
