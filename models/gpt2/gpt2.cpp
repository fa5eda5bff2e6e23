// SPDX-License-Identifier: Apache-2.0
// Positions are 0, 1, ... unless the batch is packed. Dropout with p = 0 is left out and draws no
// random numbers.
#include "tessera/models/gpt2/gpt2.h"

namespace tessera::gpt2 {

models::Architecture Config::architecture() const {
  using A = models::Architecture;
  return {
      .family = "gpt2",
      .dim = dim,
      .n_layers = n_layers,
      .vocab_size = vocab_size,
      .max_seq_len = max_seq_len,
      .dtype = dtype,
      .attention = {.n_heads = n_heads,
                    .n_kv_heads = n_heads,
                    .qkv_bias = true,
                    .output_bias = true,
                    .fused_qkv = fused_qkv},
      .positions = {.kind = A::Positions::Kind::learned},
      .feed_forward = {.dim = ffn_dim(), .gated = false, .bias = true, .nonlinearity = activation},
      .norm = {.kind = nn::Norm::Kind::layer, .eps = norm_eps},
      .residual = {.dropout = residual_dropout},
      .embeddings = {.tied = enable_weight_tying, .dropout = embedding_dropout},
      .initial = {.depth = A::Initial::Depth::layers, .feed_forward_by_depth = true}};
}

models::Family family() {
  models::Family f = models::family<Model>("gpt2", "GPT-2 (OpenAI, 2019)", flavors());
  f.hugging_face = {&hugging_face()};
  return f;
}

}  // namespace tessera::gpt2
