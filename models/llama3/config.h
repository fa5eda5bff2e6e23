// SPDX-License-Identifier: Apache-2.0
// The configuration of Llama 3, its command-line fields and the sizes that Meta published and
// torchtitan trains.
#pragma once

#include "tessera/kernels/rope/rope.h"
#include "tessera/models/architecture.h"
#include "tessera/models/config/fields.h"
#include "tessera/models/config/flavor.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::llama3 {

struct TESSERA_API Config {
  int64_t dim = 4096, n_layers = 32, n_heads = 32, n_kv_heads = 8, ffn_dim = 14336;
  int64_t vocab_size = 128256, max_seq_len = 131072;
  double rope_theta = 500000, norm_eps = 1e-5;
  RopeScaling rope_scaling = {};
  bool enable_weight_tying = false;  ///< the head uses the weight of the embedding
  bool fused_qkv = true;             ///< queries, keys and values in one matmul
  DType dtype = DType::f32;          ///< of parameters
  int64_t own_head_dim = 0;          ///< size of a head; 0: dim / n_heads
  bool qkv_bias = false, output_bias = false, ffn_bias = false;

  [[nodiscard]] int64_t head_dim() const { return own_head_dim > 0 ? own_head_dim : dim / n_heads; }
  [[nodiscard]] models::Architecture architecture() const;
  void fields(config::Fields& f);
  /// Conflicts between fields.
  [[nodiscard]] std::vector<std::string> conflicts() const;
};

/// 6 layers of 256: trains in minutes on a laptop.
TESSERA_API Config debugmodel();
/// debugmodel, 1B, 3B, 8B, 70B, 405B.
TESSERA_API std::span<const models::Flavor<Config>> flavors();
/// ValueError, with the list of flavors, if the name is unknown.
TESSERA_API const Config& flavor(std::string_view name);

}  // namespace tessera::llama3
