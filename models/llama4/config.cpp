// SPDX-License-Identifier: Apache-2.0
// The defaults are what the published sizes share; they list their differences. Scout's scaling of
// RoPE has equal frequency factors: a step instead of a ramp.
#include "tessera/models/llama4/config.h"

#include <array>

namespace tessera::llama4 {

void Config::fields(config::Fields& f) {
  config::rotary_moe_fields(f, *this);
  f.add("interleave_moe_layer_step", interleave_moe_layer_step,
        "one layer in this many has experts", {.min = 1, .max = 4096});
  f.add("nope_layer_interval", nope_layer_interval,
        "one layer in this many has no RoPE and attends to the whole context",
        {.min = 1, .max = 4096});
  f.add("attention_chunk_size", attention_chunk_size,
        "the other layers attend within chunks of this size",
        {.min = 1, .max = 1 << 30, .unit = "tokens"});
  f.add("use_qk_norm", use_qk_norm, "norm queries and keys after RoPE");
  f.add("attn_temperature_tuning", attn_temperature_tuning,
        "scale queries of layers without RoPE by their position");
  f.add("floor_scale", floor_scale, "positions in which that scale stays the same",
        {.min = 1, .max = 1 << 30, .unit = "tokens"});
  f.add("attn_scale", attn_scale, "growth of that scale with the logarithm of the position",
        {.min = 0, .max = 1e3});
}

std::vector<std::string> Config::conflicts() const {
  return config::rotary_moe_conflicts(*this, "interleave_moe_layer_step",
                                      interleave_moe_layer_step);
}

std::span<const models::Flavor<Config>> flavors() {
  constexpr RopeScaling kScaling{
      .kind = RopeScaling::Kind::llama3, .factor = 16, .low_freq_factor = 1, .high_freq_factor = 1};
  static const std::array<models::Flavor<Config>, 3> all{{
      {"debugmodel",
       {.dim = 256,
        .n_layers = 6,
        .n_heads = 16,
        .n_kv_heads = 16,
        .head_dim = 16,
        .ffn_dim = 768,
        .moe = {.num_experts = 8, .moe_inter_dim = 512},
        .interleave_moe_layer_step = 2,
        .vocab_size = 2048,
        .rope_scaling = kScaling,
        .attention_chunk_size = 256}},
      {"17Bx16E", {.max_seq_len = 10485760, .rope_scaling = kScaling}},
      {"17Bx128E",
       {.moe = {.num_experts = 128, .moe_inter_dim = 8192},
        .interleave_moe_layer_step = 2,
        .use_qk_norm = false}},
  }};
  return all;
}

const Config& flavor(std::string_view name) {
  return models::find_flavor("llama4", flavors(), name);
}

Config debugmodel() { return flavor("debugmodel"); }

}  // namespace tessera::llama4
