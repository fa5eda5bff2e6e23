// SPDX-License-Identifier: Apache-2.0
// The model of a run, made the same way for training, evaluation and generation.
#pragma once

#include "tessera/models/model.h"
#include "tessera/train/run/config.h"

#include <functional>
#include <memory>

namespace tessera::train {

/// The model that `config` names, filled by `fill` (nn::initialize or nn::load), with the
/// activation checkpointing and the precision of the run.
[[nodiscard]] TESSERA_API std::unique_ptr<models::LanguageModel> build_model(
    const Config& config, const std::function<void(nn::Module&)>& fill);

}  // namespace tessera::train
