// SPDX-License-Identifier: Apache-2.0
// Checkpoints: a folder `step-N` of safetensors files, one per rank, and a manifest. It is written
// with another name, synced and renamed, so that `step-N` is complete unless damaged from outside,
// which checksums detect. It may be loaded on any mesh and any number of ranks.
//
// Independent of the trainer: save and load below are all that a training loop of its own needs,
// on one rank or on many. What they are made of is in the headers included here.
#pragma once

#include "tessera/nn/module.h"
#include "tessera/nn/optim/optimizer.h"
#include "tessera/train/checkpoint/config.h"
#include "tessera/train/checkpoint/differences.h"
#include "tessera/train/checkpoint/folder.h"
#include "tessera/train/checkpoint/loading.h"
#include "tessera/train/checkpoint/manifest.h"
#include "tessera/train/checkpoint/reader.h"
#include "tessera/train/checkpoint/saving.h"

#include <optional>
#include <string>

namespace tessera::train {

/// Saves a model and its optimizer as `folder/step-N`, N being progress.step, in place of an
/// earlier one; progress.optimizer_steps is taken from the optimizer. All ranks call it; each
/// writes a part, and what several hold is written once. On all ranks: IoError if the folder cannot
/// be written, is used by another run or is not the same on all hosts; earlier steps are unchanged.
/// Returns the bytes written. `config`, Config::json() of a Config with this model, is what the
/// commands that make the model anew need (generate, eval, export-hf); load does not.
TESSERA_API uint64_t save(nn::Module& model, const optim::Optimizer& optimizer,
                          const std::string& folder, Progress progress,
                          const std::string& config = "{}");
/// Loads the latest complete step of `folder`, of the run with this dump folder, or the step whose
/// own folder it is, into an initialised model and its optimizer, on any mesh; each rank reads what
/// it holds. Damaged steps are skipped with a warning on rank 0, unless one is named. Empty if
/// there is none. All ranks call it. DataError on all of them, before anything changes: no step is
/// complete, or it does not fit, with every tensor that differs.
[[nodiscard]] TESSERA_API std::optional<Progress> load(nn::Module& model,
                                                       optim::Optimizer& optimizer,
                                                       const std::string& folder,
                                                       const Warn& warn = {});

}  // namespace tessera::train
