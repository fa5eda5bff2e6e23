// SPDX-License-Identifier: Apache-2.0
// The configuration of Qwen 3, dense and with experts, its command-line fields and the sizes that
// Alibaba published.
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

namespace tessera::qwen3 {

struct TESSERA_API Config {
  int64_t dim = 4096, n_layers = 36, n_heads = 32, n_kv_heads = 8, head_dim = 128;
  int64_t ffn_dim = 12288, vocab_size = 151936, max_seq_len = 40960;
  double rope_theta = 1e6, norm_eps = 1e-6;
  RopeScaling rope_scaling = {};
  bool enable_weight_tying = false;  ///< the head uses the weight of the embedding
  bool fused_qkv = true;             ///< queries, keys and values in one matmul
  config::MoeConfig moe = {};
  int64_t decoder_sparse_step = 1;  ///< every so many layers have experts, if any
  DType dtype = DType::f32;         ///< of parameters
  bool qkv_bias = false, output_bias = false;
  models::Architecture::Spans spans = {.use_sliding_window = false};

  [[nodiscard]] bool has_experts(int64_t layer) const {
    return moe.num_experts > 0 && (layer + 1) % decoder_sparse_step == 0;
  }
  [[nodiscard]] models::Architecture architecture() const;
  void fields(config::Fields& f);
  /// Conflicts between fields.
  [[nodiscard]] std::vector<std::string> conflicts() const;
};

/// 8 layers of 256, as torchtitan's.
TESSERA_API Config debugmodel();
/// debugmodel, 0.6B, 1.7B, 4B, 8B, 14B, 32B; with experts debugmodel_moe as torchtitan's,
/// debugmodel_moe_small, which trains in minutes on two cores, 30B-A3B, 235B-A22B.
TESSERA_API std::span<const models::Flavor<Config>> flavors();
/// ValueError, with the list of flavors, if the name is unknown.
TESSERA_API const Config& flavor(std::string_view name);

}  // namespace tessera::qwen3
