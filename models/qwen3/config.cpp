// SPDX-License-Identifier: Apache-2.0
// The defaults are those of Qwen 3 8B; other sizes list their differences. The size of a head does
// not follow from the hidden size: it is 128 in all published sizes.
#include "tessera/models/qwen3/config.h"

#include "tessera/models/config/rope_fields.h"

#include <array>

namespace tessera::qwen3 {

void Config::fields(config::Fields& f) {
  f.add("dim", dim, "hidden size", {.min = 1, .max = 1 << 20});
  f.add("n_layers", n_layers, "number of layers", {.min = 1, .max = 4096});
  f.add("n_heads", n_heads, "number of query heads", {.min = 1, .max = 4096});
  f.add("n_kv_heads", n_kv_heads, "number of key and value heads", {.min = 1, .max = 4096});
  f.add("head_dim", head_dim, "size of a head", {.min = 2, .max = 1 << 16});
  f.add("ffn_dim", ffn_dim, "hidden size of the feed-forward layers", {.min = 1, .max = 1 << 24});
  f.add("vocab_size", vocab_size, "vocabulary size", {.min = 1, .max = 1 << 24});
  f.add("max_seq_len", max_seq_len, "maximum sequence length",
        {.min = 1, .max = 1 << 30, .unit = "tokens"});
  f.add("norm_eps", norm_eps, "eps of RMSNorm", {.min = 1e-30, .max = 1});
  f.add("enable_weight_tying", enable_weight_tying,
        "share the weights of the token embedding and the output head");
  f.add("fused_qkv", fused_qkv, "compute queries, keys and values in one matmul");
  config::rope_fields(f, rope_theta, rope_scaling);
}

std::vector<std::string> Config::conflicts() const {
  std::vector<std::string> faults;
  if (head_dim % 2 != 0) {
    faults.push_back(
        concat("[--model.head_dim] ", head_dim, " is not even, but RoPE rotates pairs"));
  }
  if (n_kv_heads < 1 || n_heads % n_kv_heads != 0) {
    faults.push_back(concat("[--model.n_heads] ", n_heads,
                            " is not a multiple of --model.n_kv_heads ", n_kv_heads));
  }
  for (std::string& fault : config::rope_conflicts(rope_scaling))
    faults.push_back(std::move(fault));
  return faults;
}

std::span<const models::Flavor<Config>> flavors() {
  static const std::array<models::Flavor<Config>, 7> all{{
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
  }};
  return all;
}

const Config& flavor(std::string_view name) {
  return models::find_flavor("qwen3", flavors(), name);
}

Config debugmodel() { return flavor("debugmodel"); }

}  // namespace tessera::qwen3
