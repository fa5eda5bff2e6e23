// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/parallel/activation_checkpoint.h"

namespace tessera::train {

using Mode = nn::ActivationCheckpointConfig::Mode;

void ActivationCheckpointFields::fields(config::Fields& f) {
  f.add_choice("mode", c.mode, "which activations are recomputed in backward instead of stored",
               {{"none", Mode::none},
                {"full", Mode::full},
                {"selective", Mode::selective},
                {"memory_budget", Mode::memory_budget}});
  f.add("selective_ac_option", c.selective_option,
        "selective mode: op stores the outputs of attention and of every second matmul; a number n "
        "recomputes every n-th layer in full");
  f.add("force_recompute_paths", c.force_recompute_paths,
        "selective mode op: matmuls in modules whose path contains one of these texts are always "
        "recomputed");
  f.add("memory_budget", c.memory_budget,
        "memory_budget mode: fraction of the activation memory without checkpointing that may be "
        "used",
        {.min = 0, .max = 1});
  f.add("early_stop", c.early_stop, "stop recomputing once backward has all tensors that it needs");
  f.add("preserve_rng_state", c.preserve_rng_state,
        "recompute repeats the dropout masks of forward; false: it draws new ones, so gradients "
        "do not match the loss");
  f.add_choice("determinism_check", c.determinism_check,
               "check that recompute saves tensors of the same shapes and dtypes as forward",
               {{"default", true}, {"none", false}});
  f.add("debug", c.debug,
        "record the ops of forward and of recompute, and list both when they differ");
}

ParallelPass ActivationCheckpointing::row() {
  return {.apply =
              [](models::LanguageModel& part, const PassSettings& s, const Mesh&) {
                nn::apply_activation_checkpoint(part.units(), s.activation_checkpoint);
              },
          .remedies =
              [](const PassSettings& s) {
                std::vector<Remedy> all;
                if (s.activation_checkpoint.mode != Mode::full)
                  all.push_back({{{"activation_checkpoint.mode", "full"}}});
                return all;
              }};
}

}  // namespace tessera::train
