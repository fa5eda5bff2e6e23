// SPDX-License-Identifier: Apache-2.0
// Which parts of a model each stage of a pipeline keeps. The default is torchtitan's: equally many
// layers, where the embedding and the head count as some layers each.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::models {

/// The parts that each stage keeps, by stage.
using Split = std::vector<std::vector<std::string>>;

/// For how many layers the parts before the first layer and behind the last one count.
struct SplitWeights {
  int64_t first = 1, last = 1;
};

/// Whether a part is one of the layers.
[[nodiscard]] TESSERA_API bool is_layer(const std::string& part);
/// Splits `parts` (LanguageModel::parts) into stages: all get equally many layers, those at the
/// front one more if some are left; the first may have the embedding alone, and the last one the
/// head. ValueError: more stages than that allows; it says how many fit.
[[nodiscard]] TESSERA_API Split split_parts(std::span<const std::string> parts, int64_t stages,
                                            const SplitWeights& weights = {});
/// What is wrong with a split that was written by hand, a sentence; empty: nothing. A part in two
/// stages or in none, or out of order; a name that is no part; a stage without parts.
[[nodiscard]] TESSERA_API std::string split_fault(std::span<const std::string> parts,
                                                  const Split& split);

}  // namespace tessera::models
