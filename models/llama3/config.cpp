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
  f.add("n_layers", n_layers, "number of layers", {.min = 1, .max = 4096});
  f.add("n_heads", n_heads, "number of query heads", {.min = 1, .max = 4096});
  f.add("n_kv_heads", n_kv_heads, "number of key and value heads", {.min = 1, .max = 4096});
  f.add("ffn_dim", ffn_dim, "hidden size of the feed-forward layers", {.min = 1, .max = 1 << 24});
  f.add("vocab_size", vocab_size, "vocabulary size", {.min = 1, .max = 1 << 24});
  f.add("max_seq_len", max_seq_len, "maximum sequence length",
        {.min = 1, .max = 1 << 30, .unit = "tokens"});
  f.add("norm_eps", norm_eps, "eps of RMSNorm", {.min = 0, .max = 1});
  f.add("enable_weight_tying", enable_weight_tying,
        "share the weights of the token embedding and the output head");
  f.add("fused_qkv", fused_qkv, "compute queries, keys and values in one matmul");
  config::rope_fields(f, rope_theta, rope_scaling);
}

std::vector<std::string> Config::conflicts() const {
  std::vector<std::string> faults;
  if (n_heads < 1 || dim % n_heads != 0 || dim / n_heads % 2 != 0) {
    faults.push_back(
        concat("[--model.dim] ", dim, " is not an even multiple of --model.n_heads ", n_heads));
  }
  if (n_kv_heads < 1 || n_heads % n_kv_heads != 0) {
    faults.push_back(concat("[--model.n_heads] ", n_heads,
                            " is not a multiple of --model.n_kv_heads ", n_kv_heads));
  }
  for (std::string& fault : config::rope_conflicts(rope_scaling))
    faults.push_back(std::move(fault));
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
