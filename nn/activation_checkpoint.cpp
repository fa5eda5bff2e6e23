// SPDX-License-Identifier: Apache-2.0
// Turns a mode into options for each block: every n-th block, ops whose outputs are stored, or a
// budget.
#include "tessera/nn/activation_checkpoint.h"

#include <charconv>

namespace tessera::nn {
namespace {

// Every n-th block is checkpointed; 0: by op.
size_t interval(const std::string& option) {
  if (option == "op") return 0;
  size_t n = 0;
  const auto [end, error] = std::from_chars(option.data(), option.data() + option.size(), n);
  if (error != std::errc() || end != option.data() + option.size() || n == 0) {
    fail<ValueError>("activation_checkpoint", "selective_option is \"", option,
                     "\", expected \"op\" or a positive number of layers");
  }
  return n;
}

}  // namespace

void apply_activation_checkpoint(std::span<Module* const> blocks,
                                 const ActivationCheckpointConfig& c) {
  using Mode = ActivationCheckpointConfig::Mode;
  CheckpointOptions options{.preserve_rng_state = c.preserve_rng_state,
                            .determinism_check = c.determinism_check,
                            .debug = c.debug,
                            .early_stop = c.early_stop};
  size_t every = 1;
  if (c.mode == Mode::selective) {
    every = interval(c.selective_option);
    if (every == 0) {
      options.keep = keep_every_second_matmul(c.force_recompute_paths);
      every = 1;
    }
  } else if (c.mode == Mode::memory_budget) {
    if (!(c.memory_budget >= 0 && c.memory_budget <= 1)) {
      fail<ValueError>("activation_checkpoint", "memory_budget ", c.memory_budget,
                       " is not in [0, 1]");
    }
    options.memory_budget = c.memory_budget;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool on = c.mode != Mode::none && (i + 1) % every == 0;
    blocks[i]->set_checkpoint(on ? std::optional(options) : std::nullopt);
  }
}

}  // namespace tessera::nn
