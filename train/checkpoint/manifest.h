// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint: its contents, the progress of the run, and the size and checksum of
// each file. It is written last, so a folder whose manifest matches its files is complete. It ends
// with its own checksum, so that any flipped bit is detected.
#pragma once

#include "tessera/nn/io/files.h"
#include "tessera/train/data/fingerprint.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// Properties of a tensor that must match when it is loaded.
struct TensorEntry {
  std::string dtype;  ///< "f32"
  std::vector<int64_t> shape;
  bool operator==(const TensorEntry&) const = default;
};

/// A file of a checkpoint. A part is loaded as one and may have several files.
struct CheckpointFile {
  std::string name, part;  ///< part: "model" or "optimizer"
  io::FileSum sum;
  std::map<std::string, TensorEntry> tensors;
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
  std::string products = {};  ///< product_route() of the run; empty: unknown
  DataFingerprint data = {};  ///< of the training data; empty: unknown
  /// Of version 1, which counted global batches instead of rows: how many were taken; data_rows is
  /// then 0.
  std::optional<int64_t> data_batches = {};

  /// Whether a file of this part is listed.
  [[nodiscard]] bool has(std::string_view part) const;
  /// The tensors of a part.
  [[nodiscard]] std::map<std::string, TensorEntry> tensors(std::string_view part) const;
  bool operator==(const Manifest&) const = default;
};

inline constexpr std::string_view kManifestFile = "manifest.json";

[[nodiscard]] TESSERA_API std::string manifest_text(const Manifest& manifest);
/// DataError, which begins with `where`: not the complete text of a manifest of version 1 or 2.
[[nodiscard]] TESSERA_API Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace tessera::train
