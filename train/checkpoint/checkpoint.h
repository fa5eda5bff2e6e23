// SPDX-License-Identifier: Apache-2.0
// Checkpoints: a folder `step-N` of safetensors files and a manifest. It is written with another
// name, synced and renamed, so that `step-N` is complete unless damaged from outside, which the
// manifest detects. Independent of the trainer: a checkpoint is plain tensors and counters.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/nn/io/safetensors.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/checkpoint/manifest.h"

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

struct TESSERA_API CheckpointConfig {
  bool enable = false, last_save_model_only = true, initial_load_model_only = true;
  std::string folder = "checkpoint", initial_load_path, exclude_from_loading;
  std::string export_dtype = "float32";
  int64_t interval = 500, keep_latest_k = 10, load_step = -1;
  void fields(config::Fields& f);
  /// Conflicts between fields.
  [[nodiscard]] std::vector<std::string> conflicts() const;
  /// Whether exclude_from_loading names `part` (optimizer, lr_scheduler, dataloader, train_state).
  [[nodiscard]] bool excludes(std::string_view part) const;
  [[nodiscard]] DType exported_dtype() const;
};

/// The data of a checkpoint. Tensors are plain; names are the same in every run of the model.
struct Checkpoint {
  Progress progress;
  uint64_t seed = 0;
  std::string config;        ///< JSON object
  int64_t data_windows = 0;  ///< as in the manifest
  std::vector<nn::NamedParameter> model;
  std::vector<nn::NamedParameter> optimizer;  ///< empty: only the model
  DataFingerprint data = {};                  ///< as in the manifest
};

using Warn = std::function<void(const std::string&)>;

class CheckpointReader;

/// A run's step folders. Only the holder of the folder's lock may call functions that write.
class TESSERA_API CheckpointFolder {
 public:
  explicit CheckpointFolder(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string folder_of(int64_t step) const;
  /// N of each `step-N`, complete or not, ascending; none if the folder is missing.
  [[nodiscard]] std::vector<int64_t> steps() const;
  /// The latest complete step, or null; damaged ones are skipped with a warning. DataError if there
  /// are step folders but none is complete.
  [[nodiscard]] std::unique_ptr<CheckpointReader> latest(const Warn& warn) const;
  /// This step; DataError says what is wrong with it, or lists the existing steps.
  [[nodiscard]] std::unique_ptr<CheckpointReader> at(int64_t step) const;

  /// Removes leftovers of an interrupted save or purge, and restores a step that a save was
  /// replacing.
  void recover() const;
  /// Writes `step-N`, replacing an earlier one, and returns its size in bytes. IoError: no space,
  /// or a failed write; earlier checkpoints are unchanged.
  uint64_t save(const Checkpoint& checkpoint) const;
  /// Removes all steps, complete or not.
  void clear() const;
  /// Keeps the `keep` latest complete steps (0: all) and always `saved`; removes the others.
  void purge(int64_t keep, int64_t saved) const;

 private:
  std::string path_;
};

/// A complete checkpoint, for reading.
class TESSERA_API CheckpointReader {
 public:
  /// Reads every byte. DataError names each file that is missing or differs from the manifest in
  /// size or checksum.
  explicit CheckpointReader(std::string step_folder);
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] Tensor read(const std::string& tensor) const;
  /// All tensors of a part.
  [[nodiscard]] std::vector<nn::NamedParameter> read_all(std::string_view part) const;

 private:
  std::string path_;
  Manifest manifest_;
  std::vector<std::unique_ptr<io::SafetensorsFile>> files_;  // as the manifest lists them
};

/// The checkpoint at `path`: the step folder itself, or the latest complete one in it or in
/// `path/folder`. DataError if there is none.
[[nodiscard]] TESSERA_API std::unique_ptr<CheckpointReader> open_checkpoint(
    const std::string& path, const Warn& warn,
    const std::string& folder = CheckpointConfig().folder);

/// Differences between `there` and `wanted`: missing and additional tensors, other shapes or
/// dtypes.
[[nodiscard]] TESSERA_API std::vector<std::string> tensor_differences(
    const std::map<std::string, TensorEntry>& there, const std::vector<nn::NamedParameter>& wanted);

struct ConfigDifference {
  std::string field, before, now;  ///< empty where a side does not have the field
};
/// Fields in which two resolved configurations differ.
[[nodiscard]] TESSERA_API std::vector<ConfigDifference> config_differences(std::string_view before,
                                                                           std::string_view now);

}  // namespace tessera::train
