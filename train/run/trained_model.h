// SPDX-License-Identifier: Apache-2.0
// A trained model, from what a run leaves behind: its dump folder, with checkpoints or with
// model.safetensors, or one step's folder.
#pragma once

#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/run/config.h"

#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

/// Opened once for all ranks, which read on their own.
class TESSERA_API TrainedModel {
 public:
  Config config;
  /// In the dtype of config.model. DataError, IoError: they cannot be read.
  [[nodiscard]] std::vector<nn::NamedParameter> tensors() const;

 private:
  friend TrainedModel open_trained_model(const std::string& path, const Warn& warn,
                                         const Catalogue& catalogue);
  std::shared_ptr<const CheckpointReader> checkpoint_;
  std::shared_ptr<const io::SafetensorsFile> file_;  // where there is no checkpoint
};
/// Of a dump folder the latest: a whole checkpoint, or model.safetensors where its step is higher.
/// Checks the bytes of a checkpoint, but makes no tensors. IoError, DataError: nothing there, or it
/// is damaged.
[[nodiscard]] TESSERA_API TrainedModel open_trained_model(const std::string& path, const Warn& warn,
                                                          const Catalogue& catalogue = {});

}  // namespace tessera::train
