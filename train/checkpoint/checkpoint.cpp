// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/checkpoint/checkpoint.h"

#include "tessera/train/ranks/ranks.h"

#include <memory>

namespace tessera::train {

uint64_t save(nn::Module& model, const optim::Optimizer& optimizer, const std::string& folder,
              Progress progress, const std::string& config) {
  const CheckpointFolder steps(folder);
  std::unique_ptr<io::FolderLock> lock;
  on_all_or_none([&] {
    if (own_rank() != 0) return;
    lock = std::make_unique<io::FolderLock>(folder, "checkpoint");
    steps.recover();
  });
  progress.optimizer_steps = optimizer.steps();
  return save(steps, {.progress = progress,
                      .config = config,
                      .model = model_tensors(model),
                      .optimizer = optimizer.state().tensors});
}

std::optional<Progress> load(nn::Module& model, optim::Optimizer& optimizer,
                             const std::string& folder, const Warn& warn) {
  const Patience patience;
  StepFolders steps;
  on_all_or_none([&] {
    if (own_rank() == 0) steps = any_steps_at(folder);
  });
  LoadTarget target(model, &optimizer);
  const auto wanted = [&](const CheckpointReader& from) {
    if (const auto faults = target.differences(from.manifest()); !faults.empty()) {
      fail<DataError>("checkpoint", from.path(),
                      " does not fit this model and optimizer: ", first_few(faults));
    }
    return target.tensors(from.manifest());
  };
  const auto from = load_first_whole(steps, wanted, warn);
  if (!from) return std::nullopt;
  target.set_steps(from->manifest().progress.optimizer_steps);
  return from->manifest().progress;
}

}  // namespace tessera::train
