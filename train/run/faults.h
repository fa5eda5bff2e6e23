// SPDX-License-Identifier: Apache-2.0
// Everything that is wrong with a configuration, found before any rank waits for another.
#pragma once

#include "tessera/train/config/config.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tessera::train {

/// Faults of single fields; if there are none, conflicts between fields, with the model, which is
/// made once on the meta device, and with the number of ranks (0: `ranks` of the configuration; if
/// that is 0 too, they are not known). ConfigError, DataError: the folder of `model.initial_hf` is
/// away or holds no model, and the run has no checkpoint to go on from.
[[nodiscard]] TESSERA_API std::vector<std::string> faults(const Config& config, int64_t ranks = 0);
/// parse_config for a run. ConfigError: every fault, a line each.
[[nodiscard]] TESSERA_API Config
checked_config(std::span<const std::string> arguments, const Catalogue& catalogue = {},
               const std::function<void(const std::string&)>& note = {});

}  // namespace tessera::train
