// SPDX-License-Identifier: Apache-2.0
// Chooses the blocks of a model that are checkpointed and the outputs that they store. Modes and
// fields are torchtitan's.
#pragma once

#include "tessera/nn/module.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::nn {

struct ActivationCheckpointConfig {
  /// none: all activations are stored. full: only the inputs of blocks. selective: by op or by
  /// layer, see selective_option. memory_budget: the best choice within memory_budget.
  enum class Mode : uint8_t { none, full, selective, memory_budget } mode = Mode::none;
  /// "op": the outputs of expensive ops are stored (of every second matmul); a number n:
  /// every n-th block is checkpointed in full, the others are not.
  std::string selective_option = "op";
  /// With "op": matmuls of modules whose path contains one of these are always recomputed.
  std::vector<std::string> force_recompute_paths = {};
  /// Fraction of the activation bytes without checkpointing that may be stored, in [0, 1].
  double memory_budget = 0.5;
  bool preserve_rng_state = true;  ///< as in CheckpointOptions, like the next three
  bool determinism_check = true;
  bool debug = false;
  bool early_stop = true;
};

/// Sets or clears the checkpoint of each block. ValueError: an option that is neither a positive
/// number nor "op", a budget outside [0, 1].
TESSERA_API void apply_activation_checkpoint(std::span<Module* const> blocks,
                                             const ActivationCheckpointConfig& config);

}  // namespace tessera::nn
