// SPDX-License-Identifier: Apache-2.0
// The defaults are those of Llama 3 8B; other sizes list their differences, all use Llama 3.1's
// scaling. Conflicts between fields: RoPE needs an even head size, and n_heads must be a multiple
// of n_kv_heads.
#include "tessera/models/llama3/config.h"

#include "tessera/models/config/rope_fields.h"

#include <array>

namespace tessera::llama3 {

void Config::fields(config::Fields& f) {
  f.add("dim", dim, "hidden size", {.min = 2, .max = 1 << 20});
  config::rotary_fields(f, *this, 0);
  f.add("head_dim", own_head_dim, "size of a head; 0: dim / n_heads", {.min = 0, .max = 1 << 16});
  f.add("qkv_bias", qkv_bias, "biases of queries, keys and values");
  f.add("output_bias", output_bias, "bias of the output projection of attention");
  f.add("ffn_bias", ffn_bias, "biases of the feed-forward layers");
}

std::vector<std::string> Config::conflicts() const {
  std::vector<std::string> faults = config::rotary_conflicts(*this, n_heads < 1 ? 0 : head_dim());
  if (own_head_dim % 2 != 0) {
    faults.push_back(
        concat("[--model.head_dim] ", own_head_dim, " is not even, but RoPE rotates pairs"));
  }
  if (own_head_dim == 0 && (n_heads < 1 || dim % n_heads != 0 || dim / n_heads % 2 != 0)) {
    faults.push_back(
        concat("[--model.dim] ", dim, " is not an even multiple of --model.n_heads ", n_heads));
  }
  return faults;
}

namespace {
constexpr RopeScaling kScaling{.kind = RopeScaling::Kind::llama3, .factor = 8};
}  // namespace

std::span<const models::Flavor<Config>> flavors() {
  static const std::array<models::Flavor<Config>, 6> all{{
      {"debugmodel",
       {.dim = 256,
        .n_layers = 6,
        .n_heads = 16,
        .n_kv_heads = 16,
        .ffn_dim = 768,
        .vocab_size = 2048,
        .rope_scaling = kScaling}},
      {"1B",
       {.dim = 2048,
        .n_layers = 16,
        .n_heads = 32,
        .ffn_dim = 8192,
        .rope_scaling = kScaling,
        .enable_weight_tying = true}},
      {"3B",
       {.dim = 3072,
        .n_layers = 28,
        .n_heads = 24,
        .ffn_dim = 8192,
        .rope_scaling = kScaling,
        .enable_weight_tying = true}},
      {"8B", {.rope_scaling = kScaling}},
      {"70B",
       {.dim = 8192, .n_layers = 80, .n_heads = 64, .ffn_dim = 28672, .rope_scaling = kScaling}},
      {"405B",
       {.dim = 16384, .n_layers = 126, .n_heads = 128, .ffn_dim = 53248, .rope_scaling = kScaling}},
  }};
  return all;
}

const Config& flavor(std::string_view name) {
  return models::find_flavor("llama3", flavors(), name);
}

Config debugmodel() { return flavor("debugmodel"); }

}  // namespace tessera::llama3
