// SPDX-License-Identifier: Apache-2.0
// Names are those of Llama 3.1's published configuration. Frequencies between the two frequency
// factors are scaled in part; Llama 4's are equal, and nothing lies between.
#include "tessera/models/config/rope_fields.h"

namespace tessera::config {

void rope_fields(Fields& f, double& theta, RopeScaling& r) {
  using Kind = RopeScaling::Kind;
  f.add("rope_theta", theta, "base of the RoPE frequencies", {.min = 1, .max = 1e12});
  f.add_choice<Kind>("rope_scaling", r.kind,
                     "scaling of RoPE frequencies for longer contexts; llama: as in Llama 3.1",
                     {{"none", Kind::none}, {"llama", Kind::llama3}});
  f.add("rope_scaling_factor", r.factor, "factor by which the context is extended",
        {.min = 1, .max = 1e6});
  f.add("rope_low_freq_factor", r.low_freq_factor,
        "frequencies below this, in turns per original context, are scaled by the full factor",
        {.min = 0, .max = 1e6, .above_min = true});
  f.add("rope_high_freq_factor", r.high_freq_factor,
        "frequencies above this, in turns per original context, are not scaled",
        {.min = 0, .max = 1e6, .above_min = true});
  f.add("rope_original_max_position_embeddings", r.original_max_position,
        "context length before scaling", {.min = 1, .max = 1 << 30, .unit = "tokens"});
}

std::vector<std::string> rope_conflicts(const RopeScaling& r) {
  if (r.kind != RopeScaling::Kind::llama3 || r.low_freq_factor <= r.high_freq_factor) return {};
  return {concat("[--model.rope_low_freq_factor] ", r.low_freq_factor,
                 " is above --model.rope_high_freq_factor ", r.high_freq_factor)};
}

}  // namespace tessera::config
