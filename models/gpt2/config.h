// SPDX-License-Identifier: Apache-2.0
// The configuration of GPT-2, its command-line fields and the sizes that OpenAI published.
#pragma once

#include "tessera/core/dtype.h"
#include "tessera/models/architecture.h"
#include "tessera/models/config/fields.h"
#include "tessera/models/config/flavor.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::gpt2 {

struct TESSERA_API Config {
  int64_t dim = 768, n_layers = 12, n_heads = 12;
  int64_t vocab_size = 50257, max_seq_len = 1024;
  double norm_eps = 1e-5;
  double embedding_dropout = 0;  ///< on the sum of the two embeddings
  double residual_dropout = 0;   ///< on attention and feed-forward outputs
  double attention_dropout = 0;  ///< on attention weights; only 0 is supported
  bool fused_qkv = true;         ///< queries, keys and values in one matmul
  DType dtype = DType::f32;      ///< of parameters
  int64_t own_ffn_dim = 0;       ///< hidden size of the feed-forward layers; 0: 4 * dim
  nn::Nonlinearity activation = nn::Nonlinearity::gelu_tanh;  ///< or gelu
  bool enable_weight_tying = true;  ///< the head uses the weight of the embedding

  [[nodiscard]] int64_t head_dim() const { return dim / n_heads; }
  [[nodiscard]] int64_t ffn_dim() const { return own_ffn_dim > 0 ? own_ffn_dim : 4 * dim; }
  [[nodiscard]] models::Architecture architecture() const;
  void fields(config::Fields& f);
  /// Conflicts between fields.
  [[nodiscard]] std::vector<std::string> conflicts() const;
};

/// 6 layers of 256: trains in minutes on a laptop.
TESSERA_API Config debugmodel();
/// debugmodel, 124M, 355M, 774M, 1558M.
TESSERA_API std::span<const models::Flavor<Config>> flavors();
/// ValueError, with the list of flavors, if the name is unknown.
TESSERA_API const Config& flavor(std::string_view name);

}  // namespace tessera::gpt2
