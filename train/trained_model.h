// SPDX-License-Identifier: Apache-2.0
// A trained model, from what a run leaves behind: its dump folder, with checkpoints or with
// model.safetensors, or one step's folder.
#pragma once

#include "tessera/train/checkpoint.h"
#include "tessera/train/config.h"

#include <string>
#include <vector>

namespace tessera::train {

struct TrainedModel {
  Config config;
  std::vector<nn::NamedParameter> tensors;  ///< in the dtype of config.model
};
/// Of a dump folder the latest: a whole checkpoint, or model.safetensors where its step is higher.
/// IoError, DataError: nothing there, or it is damaged.
[[nodiscard]] TESSERA_API TrainedModel open_trained_model(const std::string& path,
                                                          const Warn& warn);

}  // namespace tessera::train
