// SPDX-License-Identifier: Apache-2.0
// The parts of a run that follow from its configuration and the current World: made by one
// function, so that a run can be built again on another world and go on from its checkpoint.
#pragma once

#include "tessera/dist/mesh.h"
#include "tessera/dist/world.h"
#include "tessera/models/model.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/optim/optimizer.h"
#include "tessera/train/config/config.h"
#include "tessera/train/data/data.h"
#include "tessera/train/step/feed.h"

#include <memory>
#include <vector>

namespace tessera::train {

/// The options of the World for a run of `config`.
[[nodiscard]] TESSERA_API WorldOptions world_options(const Config& config);

/// The rows that a rank with `share` of them reads for a run of `config`.
[[nodiscard]] TESSERA_API BatchPlan batch_plan(const Config& config, const DataShare& share);

struct RunParts {
  Mesh mesh;
  std::unique_ptr<DataLoader> data;        ///< null: a source takes its place
  std::unique_ptr<DataLoader> validation;  ///< null: the run has none
  std::unique_ptr<models::LanguageModel> model;
  std::vector<Tensor> parameters;  ///< of the model, on this rank
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<Feed> feed;  ///< of `data` or the source, for `model`
  /// Of all gradients of the model, and the factor that clips them. Collective.
  [[nodiscard]] optim::GradNorm grad_norm(double max_norm) const;
  /// Rows of an epoch, which decide the order of the data; 0 without `data`. Waits until it is
  /// read.
  [[nodiscard]] int64_t windows() const { return data ? data->info().windows : 0; }
};

/// Opens the data, then makes the model, with its initial values, and the rest for it. The rank
/// computes on `device`. A `source` replaces the data of dataloader. Collective. ConfigError,
/// DataError, IoError: as make_mesh, DataLoader, build_model and make_optimizer.
[[nodiscard]] TESSERA_API RunParts make_run_parts(const Config& config, Device device,
                                                  const std::shared_ptr<const Tokenizer>& tokenizer,
                                                  BatchSource source = {});

}  // namespace tessera::train
