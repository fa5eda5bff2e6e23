// SPDX-License-Identifier: Apache-2.0
// The folder of a run's checkpoints: which steps it holds, and how one appears, replaces another
// and goes.
#pragma once

#include "tessera/train/checkpoint/config.h"
#include "tessera/train/checkpoint/reader.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

using Warn = std::function<void(const std::string&)>;

/// Whether a damaged step is passed over with a warning, or is an error.
enum class IfDamaged : uint8_t { skip, fail };
/// Step folders to choose from, the latest first.
struct StepFolders {
  std::vector<std::string> paths;
  IfDamaged if_damaged = IfDamaged::skip;
};

/// A run's step folders. Only the holder of the folder's lock may call functions that write.
class TESSERA_API CheckpointFolder {
 public:
  /// New files get this mode, and their folders may be entered by those who may read them.
  explicit CheckpointFolder(std::string path, io::FileMode mode = {})
      : path_(std::move(path)), mode_(mode) {}
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string folder_of(int64_t step) const;
  /// N of each `step-N`, complete or not, ascending; none if the folder is missing.
  [[nodiscard]] std::vector<int64_t> steps() const;
  /// The folders of steps(), the latest first.
  [[nodiscard]] std::vector<std::string> latest_first() const;
  /// The folder of this step; DataError, with the steps that there are, if there is none.
  [[nodiscard]] std::string existing(int64_t step) const;

  /// Removes leftovers of an interrupted save or purge, and restores a step that a save was
  /// replacing.
  void recover() const;
  /// Creates `step-N.partial`, which a save fills, and returns its path. IoError if it cannot.
  [[nodiscard]] std::string begin(int64_t step) const;
  /// Makes it `step-N`, in place of an earlier one. IoError if it cannot.
  void finish(int64_t step) const;
  /// Gives a folder of a step, and all in it, the mode. IoError if it cannot.
  void set_mode(const std::string& folder) const;
  /// Removes all steps, complete or not.
  void clear() const;
  /// Keeps the `keep` latest complete steps (0: all) and always `saved`; removes the others.
  void purge(int64_t keep, int64_t saved) const;

 private:
  [[nodiscard]] std::string partial_of(int64_t step) const;
  std::string path_;
  io::FileMode mode_;
};

/// The steps at `path`: `path` itself if it is a step's folder, which must be whole, or those in it
/// or in `path/folder`. DataError if there is none.
[[nodiscard]] TESSERA_API StepFolders
steps_at(const std::string& path, const std::string& folder = CheckpointConfig().folder);
/// steps_at that returns no steps in place of the error.
[[nodiscard]] TESSERA_API StepFolders
any_steps_at(const std::string& path, const std::string& folder = CheckpointConfig().folder);
/// Throws what is wrong with a checkpoint.
using Check = std::function<void(const CheckpointReader&)>;
/// The first one that is whole by `check`, which reads every byte unless another is given; null if
/// there are none. Not collective: loading.h is.
[[nodiscard]] TESSERA_API std::unique_ptr<CheckpointReader> first_whole(
    const StepFolders& steps, const Warn& warn, const Check& check = &CheckpointReader::verify);
/// DataError: none of so many steps in `folder` is whole.
[[noreturn]] TESSERA_API void fail_none_whole(size_t steps, const std::string& folder);

}  // namespace tessera::train
