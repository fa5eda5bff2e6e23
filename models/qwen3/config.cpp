// SPDX-License-Identifier: Apache-2.0
// The defaults are those of Qwen 3 8B; other sizes list their differences. The size of a head does
// not follow from the hidden size: it is 128 in all published sizes. No published size has a bias
// of its routers. The base of 235B-A22B's RoPE is that of its later releases, as in torchtitan.
#include "tessera/models/qwen3/config.h"

#include <array>

namespace tessera::qwen3 {

void Config::fields(config::Fields& f) {
  config::rotary_moe_fields(f, *this);
  f.add("decoder_sparse_step", decoder_sparse_step,
        "the last of every so many layers has experts, if there are any", {.min = 1, .max = 4096});
  f.add("qkv_bias", qkv_bias, "biases of queries, keys and values");
  f.add("output_bias", output_bias, "bias of the output projection of attention");
  models::window_fields(f, spans);
}

std::vector<std::string> Config::conflicts() const {
  std::vector<std::string> faults =
      config::rotary_moe_conflicts(*this, "decoder_sparse_step", decoder_sparse_step);
  for (std::string& fault : models::window_conflicts(spans, n_layers))
    faults.push_back(std::move(fault));
  return faults;
}

namespace {
config::MoeConfig experts(int64_t count, int64_t top_k, int64_t hidden) {
  return {.num_experts = count, .top_k = top_k, .moe_inter_dim = hidden, .route_norm = true};
}
}  // namespace

std::span<const models::Flavor<Config>> flavors() {
  static const std::array<models::Flavor<Config>, 11> all{{
      {"debugmodel",
       {.dim = 256,
        .n_layers = 8,
        .n_heads = 16,
        .ffn_dim = 3072,
        .vocab_size = 2048,
        .max_seq_len = 4096,
        .enable_weight_tying = true}},
      {"0.6B",
       {.dim = 1024, .n_layers = 28, .n_heads = 16, .ffn_dim = 3072, .enable_weight_tying = true}},
      {"1.7B",
       {.dim = 2048, .n_layers = 28, .n_heads = 16, .ffn_dim = 6144, .enable_weight_tying = true}},
      {"4B", {.dim = 2560, .ffn_dim = 9728, .enable_weight_tying = true}},
      {"8B", {}},
      {"14B", {.dim = 5120, .n_layers = 40, .n_heads = 40, .ffn_dim = 17408}},
      {"32B", {.dim = 5120, .n_layers = 64, .n_heads = 64, .ffn_dim = 25600}},
      {"debugmodel_moe",
       {.dim = 256,
        .n_layers = 8,
        .n_heads = 16,
        .ffn_dim = 3072,
        .vocab_size = 2048,
        .max_seq_len = 4096,
        .moe = experts(64, 8, 768)}},
      {"debugmodel_moe_small",
       {.dim = 256,
        .n_layers = 6,
        .n_heads = 8,
        .n_kv_heads = 4,
        .head_dim = 32,
        .ffn_dim = 768,
        .vocab_size = 2048,
        .max_seq_len = 4096,
        .moe = experts(16, 4, 128)}},
      {"30B-A3B",
       {.dim = 2048,
        .n_layers = 48,
        .n_kv_heads = 4,
        .ffn_dim = 6144,
        .moe = experts(128, 8, 768)}},
      {"235B-A22B",
       {.dim = 4096,
        .n_layers = 94,
        .n_heads = 64,
        .n_kv_heads = 4,
        .rope_theta = 5e6,
        .moe = experts(128, 8, 1536)}},
  }};
  return all;
}

const Config& flavor(std::string_view name) {
  return models::find_flavor("qwen3", flavors(), name);
}

Config debugmodel() { return flavor("debugmodel"); }

}  // namespace tessera::qwen3
