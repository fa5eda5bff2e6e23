// SPDX-License-Identifier: Apache-2.0
// What differs between a checkpoint and the run that is to load it.
#pragma once

#include "tessera/nn/parameters.h"
#include "tessera/train/checkpoint/manifest.h"

#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// Differences between `there` and `wanted`: missing and additional tensors, other shapes or
/// dtypes.
[[nodiscard]] TESSERA_API std::vector<std::string> tensor_differences(
    const TensorEntries& there, const std::vector<nn::NamedParameter>& wanted);

/// Files in which the tokenizer of a checkpoint and that of the run that is to load it differ.
[[nodiscard]] TESSERA_API std::vector<std::string> tokenizer_differences(
    const std::vector<TokenizerEntry>& there, const std::vector<TokenizerEntry>& here);

struct ConfigDifference {
  std::string field, before, now;  ///< empty where a side does not have the field
};
/// Fields in which two resolved configurations differ.
[[nodiscard]] TESSERA_API std::vector<ConfigDifference> config_differences(std::string_view before,
                                                                           std::string_view now);

}  // namespace tessera::train
