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

/// The model that `config` names, filled by `fill` (nn::initialize or nn::load), with the
/// activation checkpointing and mixed precision of the run.
[[nodiscard]] TESSERA_API std::unique_ptr<models::LanguageModel> build_model(
    const Config& config, const std::function<void(nn::Module&)>& fill);
/// The parameters and persistent buffers of a model, which are what a checkpoint contains.
[[nodiscard]] TESSERA_API std::vector<nn::NamedParameter> model_tensors(nn::Module& model);

}  // namespace tessera::train
