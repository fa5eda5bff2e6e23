// SPDX-License-Identifier: Apache-2.0
// Builds the model of a run, for training, evaluation and generation.
#pragma once

#include "tessera/models/model.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/run/config.h"

#include <functional>
#include <memory>
#include <vector>

namespace tessera::train {

/// Fills a model without bytes: nn::initialize, nn::load, nn::lay_out.
using FillModel = std::function<void(models::LanguageModel& model, const nn::LayoutOf& layout_of)>;

/// The model that `config` names, wrapped for `mesh` by the passes of the run (tensor parallelism,
/// then fully_shard or replicate, with mixed precision and activation checkpointing), then filled
/// by `fill` with the layouts that the passes gave its tensors. UsageError of the passes.
[[nodiscard]] TESSERA_API std::unique_ptr<models::LanguageModel> build_model(const Config& config,
                                                                             const Mesh& mesh,
                                                                             const FillModel& fill);
}  // namespace tessera::train
