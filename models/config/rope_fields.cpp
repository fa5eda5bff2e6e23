// SPDX-License-Identifier: Apache-2.0
// Names are those of Llama 3.1's published configuration. The two frequency factors bound the pairs
// that are stretched in part, so the lower must lie below the higher.
#include "tessera/models/config/rope_fields.h"

namespace tessera::config {

void rope_fields(Fields& f, double& theta, RopeScaling& r) {
  using Kind = RopeScaling::Kind;
  f.add("rope_theta", theta, "base of the rotary angles", {.min = 1, .max = 1e12});
  f.add_choice<Kind>("rope_scaling", r.kind,
                     "how rotary angles are stretched; llama: as Llama 3.1's",
                     {{"none", Kind::none}, {"llama", Kind::llama3}});
  f.add("rope_scaling_factor", r.factor, "the context is longer by this much",
        {.min = 1, .max = 1e6});
  f.add("rope_low_freq_factor", r.low_freq_factor,
        "pairs that turn at most so often in the original context are stretched in full",
        {.min = 0, .max = 1e6, .above_min = true});
  f.add("rope_high_freq_factor", r.high_freq_factor, "pairs that turn at least so often stay",
        {.min = 0, .max = 1e6, .above_min = true});
  f.add("rope_original_max_position_embeddings", r.original_max_position,
        "the context before it was stretched", {.min = 1, .max = 1 << 30, .unit = "tokens"});
}

std::vector<std::string> rope_conflicts(const RopeScaling& r) {
  if (r.kind != RopeScaling::Kind::llama3 || r.low_freq_factor < r.high_freq_factor) return {};
  return {concat("[--model.rope_low_freq_factor] ", r.low_freq_factor,
                 " is not below --model.rope_high_freq_factor ", r.high_freq_factor)};
}

}  // namespace tessera::config
