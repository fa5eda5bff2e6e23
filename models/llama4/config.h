// SPDX-License-Identifier: Apache-2.0
// The configuration of Llama 4, its command-line fields and the sizes that Meta published.
#pragma once

#include "tessera/kernels/rope/rope.h"
#include "tessera/models/architecture.h"
#include "tessera/models/config/fields.h"
#include "tessera/models/config/flavor.h"
#include "tessera/models/config/moe_fields.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::llama4 {

struct TESSERA_API Config {
  int64_t dim = 5120, n_layers = 48, n_heads = 40, n_kv_heads = 8, head_dim = 128;
  int64_t ffn_dim = 16384;  ///< of layers without experts
  /// moe_inter_dim is that of the shared expert too.
  config::MoeConfig moe = {.num_experts = 16, .moe_inter_dim = 8192};
  /// Every layer of this many has experts, counted from its end: 1 is all, 2 the second, fourth ...
  int64_t interleave_moe_layer_step = 1;
  int64_t vocab_size = 202048, max_seq_len = 1048576;
  double rope_theta = 5e5, norm_eps = 1e-5;
  RopeScaling rope_scaling = {};
  /// Every layer of this many, counted as above, has no RoPE and sees the whole context; the others
  /// see chunks of attention_chunk_size tokens.
  int64_t nope_layer_interval = 4;
  int64_t attention_chunk_size = 8192;
  bool use_qk_norm = true;  ///< RMS norms without weights of queries and keys, after RoPE
  /// Queries of layers without RoPE are scaled by nn::query_temperature of these numbers.
  bool attn_temperature_tuning = true;
  int64_t floor_scale = 8192;
  double attn_scale = 0.1;
  bool enable_weight_tying = false;  ///< the head uses the weight of the embedding
  bool fused_qkv = true;             ///< queries, keys and values in one matmul
  DType dtype = DType::f32;          ///< of parameters

  [[nodiscard]] bool has_rope(int64_t layer) const {
    return (layer + 1) % nope_layer_interval != 0;
  }
  [[nodiscard]] bool has_experts(int64_t layer) const {
    return moe.num_experts > 0 && (layer + 1) % interleave_moe_layer_step == 0;
  }
  [[nodiscard]] models::Architecture architecture() const;
  void fields(config::Fields& f);
  /// Conflicts between fields.
  [[nodiscard]] std::vector<std::string> conflicts() const;
};

/// 6 layers of 256, every second with 8 experts, as torchtitan's.
TESSERA_API Config debugmodel();
/// debugmodel, 17Bx16E (Scout), 17Bx128E (Maverick).
TESSERA_API std::span<const models::Flavor<Config>> flavors();
/// ValueError, with the list of flavors, if the name is unknown.
TESSERA_API const Config& flavor(std::string_view name);

}  // namespace tessera::llama4
