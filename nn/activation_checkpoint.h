// SPDX-License-Identifier: Apache-2.0
// Which blocks of a model are checkpointed, and what of them is kept. Modes and fields are
// torchtitan's.
#pragma once

#include "tessera/nn/module.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::nn {

struct ActivationCheckpointConfig {
  /// none: everything backward needs is stored. full: only the inputs of blocks. selective: by op
  /// or by layer, see selective_option. memory_budget: the best that fits the share memory_budget.
  enum class Mode : uint8_t { none, full, selective, memory_budget } mode = Mode::none;
  /// "op": the outputs of dear ops are kept (dear_ops, every second product); a number n: every
  /// n-th block is checkpointed in full, the others are not.
  std::string selective_option = "op";
  /// With "op": products of modules whose path contains one of these are always computed again.
  std::vector<std::string> force_recompute_paths = {};
  /// Of the bytes stored without checkpointing, in [0, 1].
  double memory_budget = 0.5;
  bool preserve_rng_state = true;
  bool determinism_check = true;
  bool debug = false;
  bool early_stop = true;
};

/// Sets or clears the checkpoint of each block. ValueError: an option that is no number and not
/// "op", a budget outside [0, 1].
TESSERA_API void apply_activation_checkpoint(std::span<Module* const> blocks,
                                             const ActivationCheckpointConfig& config);

}  // namespace tessera::nn
