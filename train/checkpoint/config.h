// SPDX-License-Identifier: Apache-2.0
// The fields of a run's checkpoints.
#pragma once

#include "tessera/core/dtype.h"
#include "tessera/models/config/fields.h"
#include "tessera/nn/io/files.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// Whether training waits while a checkpoint is written.
enum class AsyncMode : uint8_t { disabled, async };

struct TESSERA_API CheckpointConfig {
  AsyncMode async_mode = AsyncMode::disabled;
  bool enable_first_step_checkpoint = false;
  bool initial_load_in_hf = false, last_save_in_hf = false;
  bool enable = false, last_save_model_only = false, initial_load_model_only = true;
  std::string folder = "checkpoint", initial_load_path, exclude_from_loading;
  std::string export_dtype = "float32", file_mode;
  int64_t interval = 500, keep_latest_k = 10, load_step = -1;
  void fields(config::Fields& f);
  /// Conflicts between fields.
  [[nodiscard]] std::vector<std::string> conflicts() const;
  /// Fields that are given and not used.
  [[nodiscard]] std::vector<std::string> warnings() const;
  /// Whether exclude_from_loading names `part` (optimizer, lr_scheduler, dataloader, train_state).
  [[nodiscard]] bool excludes(std::string_view part) const;
  [[nodiscard]] DType exported_dtype() const;
  /// Of file_mode, which must be valid.
  [[nodiscard]] io::FileMode mode() const;
};

}  // namespace tessera::train
