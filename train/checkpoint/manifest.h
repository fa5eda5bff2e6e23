// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint: its tensors and in which files their elements lie, the progress of
// the run, and checksums of all bytes. It is written last, so a folder whose manifest matches its
// files is complete. It ends with its own checksum, so that any flipped bit is detected.
#pragma once

#include "tessera/nn/io/files.h"
#include "tessera/train/checkpoint/box.h"
#include "tessera/train/data/fingerprint.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

/// A part of a tensor, as it lies in a file.
struct ChunkEntry {
  size_t file = 0;  ///< of Manifest::files
  Box box;
  uint32_t crc32c = 0;  ///< of its bytes
  bool operator==(const ChunkEntry&) const = default;
};

struct TensorEntry {
  DType dtype = DType::f32;
  Shape shape = {};
  std::vector<ChunkEntry> chunks = {};  ///< cover the tensor once
  bool operator==(const TensorEntry&) const = default;
};
using TensorEntries = std::map<std::string, TensorEntry>;

/// A safetensors file of a checkpoint: `head` is its header, or, in a checkpoint of whole tensors,
/// the file.
struct CheckpointFile {
  std::string name;
  uint64_t bytes = 0;
  io::FileSum head = {};
  bool operator==(const CheckpointFile&) const = default;
};

/// Progress of a run. The steps differ only after a checkpoint was loaded in part.
struct Progress {
  int64_t step = 0;             ///< steps done
  int64_t optimizer_steps = 0;  ///< as the optimizer's bias correction counts
  int64_t schedule_step = 0;    ///< of the learning rate's schedule
  int64_t data_rows = 0;        ///< rows (sequences) taken from the data
  bool operator==(const Progress&) const = default;
};

struct TESSERA_API Manifest {
  Progress progress;
  uint64_t seed = 0;         ///< of initialisation, data order and random numbers
  std::string config;        ///< the run's resolved configuration, a JSON object
  int64_t data_windows = 0;  ///< number of windows of the data, which decides the order; 0: unknown
  std::vector<CheckpointFile> files;
  TensorEntries model, optimizer, train_state;  ///< names are unique among all of them
  std::string products = {};  ///< what computed matmuls of the run; empty: unknown
  DataFingerprint data = {};  ///< of the training data; empty: unknown
  std::string mesh = {};      ///< of the run, for people: any other may load it; empty: unknown
  /// Of the run's tokenizer; without files, a token is a byte. Absent: unknown.
  std::optional<std::vector<TokenizerEntry>> tokenizer = {};
  /// Of versions 1 and 2: each tensor is one chunk, named as the tensor, and has no checksum of its
  /// own, since that of its file covers it.
  bool whole_tensors = false;
  /// Of version 1, which counted global batches instead of rows: how many were taken; data_rows is
  /// then 0.
  std::optional<int64_t> data_batches = {};

  /// Without the optimizer, training cannot resume from it.
  [[nodiscard]] bool has_optimizer() const { return !optimizer.empty(); }
  /// The parts by their names, in the order above.
  [[nodiscard]] std::array<std::pair<const char*, const TensorEntries*>, 3> parts() const {
    return {{{"model", &model}, {"optimizer", &optimizer}, {"train_state", &train_state}}};
  }
  /// Of any part, or null.
  [[nodiscard]] const TensorEntry* find(const std::string& tensor) const;
  bool operator==(const Manifest&) const = default;
};

inline constexpr std::string_view kManifestFile = "manifest.json";

/// The N of `step-N`, without leading zeros.
[[nodiscard]] TESSERA_API std::optional<int64_t> step_of(std::string_view name);
/// The tensor of a data file that holds a chunk: `w[0:4,8:16]`.
[[nodiscard]] TESSERA_API std::string chunk_name(const std::string& tensor, const Box& box);

/// Of version 3; UsageError for one of whole tensors, which is only read.
[[nodiscard]] TESSERA_API std::string manifest_text(const Manifest& manifest);
/// DataError, which begins with `where`: not the complete text of a manifest of version 1 to 3, or
/// chunks that overlap or leave a gap.
[[nodiscard]] TESSERA_API Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace tessera::train
