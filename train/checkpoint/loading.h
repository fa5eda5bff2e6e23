// SPDX-License-Identifier: Apache-2.0
// Loading a checkpoint by all ranks of the World, or by the caller alone, on any mesh: each rank
// reads what it holds. Nothing changes before all ranks have checked all that they need; a fault on
// one of them is known to all.
#pragma once

#include "tessera/nn/io/model_file.h"
#include "tessera/nn/optim/optimizer.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/checkpoint/folder.h"
#include "tessera/train/checkpoint/reader.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

using nn::model_tensors;

/// What a checkpoint has besides the tensors of these names, and besides states of them.
[[nodiscard]] TESSERA_API TensorEntries without(TensorEntries entries,
                                                const std::vector<std::string>& names);

/// The tensors of a model, and of an optimizer if one is given, that a checkpoint fills.
class TESSERA_API LoadTarget {
 public:
  /// `elsewhere`: names of the whole model that other ranks of a pipeline have.
  explicit LoadTarget(nn::Module& model, optim::Optimizer* optimizer = nullptr,
                      std::vector<std::string> elsewhere = {});
  /// What of the checkpoint does not fit them: missing and additional tensors, other shapes and
  /// dtypes.
  [[nodiscard]] std::vector<std::string> differences(const Manifest& manifest) const;
  /// What is to be filled: also the steps of parameters that had no gradient in some of them.
  [[nodiscard]] std::vector<nn::NamedParameter> tensors(const Manifest& manifest);
  /// After it: sets the optimizer's steps, and those of parameters with steps of their own.
  void set_steps(int64_t steps) const;

 private:
  std::vector<nn::NamedParameter> model_, states_;
  optim::Optimizer* optimizer_;
  std::vector<std::string> elsewhere_;
  std::vector<nn::NamedParameter> own_steps_;  // by parameter; undefined: all steps
};

/// The tensors to fill from a checkpoint, decided by each rank from its manifest. Throws if it does
/// not fit.
using Wanted = std::function<std::vector<nn::NamedParameter>(const CheckpointReader&)>;

/// Collective: fills what is wanted from the first whole one of rank 0's `steps`; null if there are
/// none. Damaged ones are skipped with a warning on rank 0, or are an error. DataError on all
/// ranks: what is wrong by file, tensor and range, or that none is whole; errors of `wanted`.
[[nodiscard]] TESSERA_API std::unique_ptr<CheckpointReader> load_first_whole(
    const StepFolders& steps, const Wanted& wanted, const Warn& warn);

}  // namespace tessera::train
