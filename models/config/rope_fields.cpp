// SPDX-License-Identifier: Apache-2.0
// Names are those of published configurations: of Llama 3.1, and of transformers for YaRN and
// LongRoPE. Frequencies between the two frequency factors, or betas, are scaled in part; Llama 4's
// factors are equal, and nothing lies between. A number that the kind of scaling does not read may
// have any value, since presets have all of them; lists are empty unless they are read.
#include "tessera/models/config/rope_fields.h"

#include "tessera/core/message.h"

#include <utility>

namespace tessera::config {
namespace {

using Kind = RopeScaling::Kind;
Limits positive() { return {.min = 0, .max = 1e6, .above_min = true}; }

// `low` is above `high`.
std::string crossed(std::string_view low, double at_low, std::string_view high, double at_high) {
  return concat("[--model.", low, "] ", at_low, " is above --model.", high, " ", at_high);
}

std::vector<std::string> factor_conflicts(const RopeScaling& r, int64_t rotary) {
  std::vector<std::string> faults;
  const bool read = r.kind == Kind::longrope;
  for (const auto& [field, factors] : {std::pair{"rope_short_factors", &r.short_factors},
                                       std::pair{"rope_long_factors", &r.long_factors}}) {
    const int64_t expected = read ? rotary / 2 : 0;
    if (std::ssize(*factors) == expected) continue;
    const std::string given = concat("[--model.", field, "] ", counted(factors->size(), "number"));
    if (read)
      faults.push_back(concat(given, ": expected ", expected, ", one for each pair of a head"));
    else faults.push_back(concat(given, ", which only --model.rope_scaling longrope reads"));
  }
  return faults;
}

}  // namespace

void rope_fields(Fields& f, double& theta, RopeScaling& r) {
  f.add("rope_theta", theta, "base of the RoPE frequencies", {.min = 1, .max = 1e12});
  f.add_choice<Kind>("rope_scaling", r.kind,
                     "scaling of RoPE frequencies for longer contexts; llama: as in Llama 3.1; "
                     "yarn: YaRN; linear: all are divided by the factor; longrope: LongRoPE, each "
                     "is divided by a factor of its own",
                     {{"none", Kind::none},
                      {"llama", Kind::llama3},
                      {"yarn", Kind::yarn},
                      {"linear", Kind::linear},
                      {"longrope", Kind::longrope}});
  f.add("rope_scaling_factor", r.factor, "factor by which the context is extended",
        {.min = 1, .max = 1e6});
  f.add("rope_low_freq_factor", r.low_freq_factor,
        "frequencies below this, in turns per original context, are scaled by the full factor",
        positive());
  f.add("rope_high_freq_factor", r.high_freq_factor,
        "frequencies above this, in turns per original context, are not scaled", positive());
  f.add("rope_original_max_position_embeddings", r.original_max_position,
        "context length before scaling", {.min = 1, .max = 1 << 30, .unit = "tokens"});
  f.add("rope_beta_fast", r.beta_fast,
        "yarn: frequencies above this, in turns per original context, are not scaled", positive());
  f.add("rope_beta_slow", r.beta_slow,
        "yarn: frequencies below this, in turns per original context, are scaled by the full "
        "factor",
        positive());
  f.add("rope_truncate", r.truncate,
        "yarn: round the two pairs of a head at which scaling begins and ends to whole numbers");
  f.add("rope_attention_factor", r.attention_factor,
        "yarn, longrope: number by which cos and sin are multiplied; 0: follows from "
        "rope_scaling_factor",
        {.min = 0, .max = 1e3});
  f.add("rope_mscale", r.mscale,
        "yarn: with rope_mscale_all_dim, the coefficients of DeepSeek's attention factor, (1 + 0.1 "
        "mscale ln s) / (1 + 0.1 mscale_all_dim ln s), where s is rope_scaling_factor; 0: the "
        "attention factor is 1 + 0.1 ln s",
        {.min = 0, .max = 1e3});
  f.add("rope_mscale_all_dim", r.mscale_all_dim,
        "yarn: the second coefficient, see rope_mscale; 0: as there", {.min = 0, .max = 1e3});
  f.add("rope_short_factors", r.short_factors,
        "longrope: divisors of the frequencies in contexts up to the original one, one for each "
        "pair of a head",
        positive());
  f.add("rope_long_factors", r.long_factors, "longrope: the divisors in longer contexts",
        positive());
}

std::vector<std::string> rope_conflicts(const RopeScaling& r, int64_t rotary) {
  std::vector<std::string> faults = factor_conflicts(r, rotary);
  if (r.kind == Kind::llama3 && r.low_freq_factor > r.high_freq_factor) {
    faults.push_back(crossed("rope_low_freq_factor", r.low_freq_factor, "rope_high_freq_factor",
                             r.high_freq_factor));
  }
  if (r.kind == Kind::yarn && r.beta_slow > r.beta_fast)
    faults.push_back(crossed("rope_beta_slow", r.beta_slow, "rope_beta_fast", r.beta_fast));
  return faults;
}

}  // namespace tessera::config
