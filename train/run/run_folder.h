// SPDX-License-Identifier: Apache-2.0
// The dump folder of a run: locked by rank 0 while the run lives, and refused if it holds another
// run's results. Its contents decide on all ranks, before any work.
#pragma once

#include "tessera/nn/io/files.h"
#include "tessera/train/checkpoint/folder.h"
#include "tessera/train/run/run_facts.h"

#include <memory>
#include <string>
#include <string_view>

namespace tessera::train {

class TESSERA_API RunFolder {
 public:
  /// Locks and checks the folder, for a run that removes other results if config.overwrite says so.
  /// Collective. ConfigError on all ranks: it holds results that this run would replace, or
  /// `overwrite` would remove the model that the run begins with. IoError: it is locked or cannot
  /// be written.
  RunFolder(const Config& config, const Print& print);

  /// The path of a file in it.
  [[nodiscard]] std::string file(std::string_view name) const;
  /// The folder of the run's own checkpoints.
  [[nodiscard]] const CheckpointFolder& checkpoints() const { return checkpoints_; }
  [[nodiscard]] bool overwrites() const { return overwrite_; }
  /// If the run overwrites, rank 0 removes the earlier results. IoError.
  void remove_old_results();

 private:
  [[nodiscard]] std::string results_in_the_way(const Config& config, const Print& print) const;
  [[nodiscard]] std::string source_in_the_way(const Config& config) const;

  std::string path_;
  bool overwrite_;
  CheckpointFolder checkpoints_;
  std::unique_ptr<io::FolderLock> lock_, checkpoint_lock_;  // rank 0's
};

}  // namespace tessera::train
