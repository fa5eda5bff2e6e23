// SPDX-License-Identifier: Apache-2.0
// What a GPT-2 is made of, its fields on the command line and the sizes that OpenAI published.
#pragma once

#include "tessera/core/dtype.h"
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
  double embedding_dropout = 0;  ///< of the sum of the two embeddings
  double residual_dropout = 0;   ///< of what each layer adds to the residual stream
  double attention_dropout = 0;  ///< of attention's probabilities: 0 alone is supported
  bool fused_qkv = true;         ///< queries, keys and values by one product
  DType dtype = DType::f32;      ///< of parameters

  [[nodiscard]] int64_t head_dim() const { return dim / n_heads; }
  [[nodiscard]] int64_t ffn_dim() const { return 4 * dim; }
  void fields(config::Fields& f);
  /// Faults that no single field shows.
  [[nodiscard]] std::vector<std::string> conflicts() const;
};

/// 6 layers of 256: trains in minutes on a laptop.
TESSERA_API Config debugmodel();
/// debugmodel, 124M, 355M, 774M, 1558M.
TESSERA_API std::span<const models::Flavor<Config>> flavors();
/// ValueError, with the list, if there is no flavor of this name.
TESSERA_API const Config& flavor(std::string_view name);

}  // namespace tessera::gpt2
