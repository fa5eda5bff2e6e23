// SPDX-License-Identifier: Apache-2.0
// Opens a trained model: from the dump folder of a run, with checkpoints or model.safetensors, or
// from a step folder.
#pragma once

#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/run/config.h"

#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

/// Opened once for all ranks; each rank reads tensors itself.
class TESSERA_API TrainedModel {
 public:
  Config config;
  /// Tensors in the dtype of config.model. DataError, IoError: they cannot be read.
  [[nodiscard]] std::vector<nn::NamedParameter> tensors() const;
  /// Loads them to a model without bytes, with these layouts (a FillModel). Errors as tensors().
  void fill(nn::Module& model, const nn::LayoutOf& layout_of) const;

 private:
  friend TrainedModel open_trained_model(const std::string& path, const Warn& warn,
                                         const Catalogue& catalogue);
  std::shared_ptr<const CheckpointReader> checkpoint_;
  std::shared_ptr<const io::SafetensorsFile> file_;  // if there is no checkpoint
};
/// Opens the latest model of a dump folder: a complete checkpoint, or model.safetensors if its step
/// is higher. Checks the bytes of a checkpoint, but creates no tensors. IoError, DataError: missing
/// or damaged.
[[nodiscard]] TESSERA_API TrainedModel open_trained_model(const std::string& path, const Warn& warn,
                                                          const Catalogue& catalogue = {});

}  // namespace tessera::train
