// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/llama3/llama3.h"

namespace tessera::llama3 {

models::Architecture Config::architecture() const {
  using A = models::Architecture;
  return {.family = "llama3",
          .dim = dim,
          .n_layers = n_layers,
          .vocab_size = vocab_size,
          .max_seq_len = max_seq_len,
          .dtype = dtype,
          .attention = {.n_heads = n_heads,
                        .n_kv_heads = n_kv_heads,
                        .head_dim = own_head_dim,
                        .qkv_bias = qkv_bias,
                        .output_bias = output_bias,
                        .fused_qkv = fused_qkv},
          .positions = {.kind = A::Positions::Kind::pairs,
                        .theta = rope_theta,
                        .scaling = rope_scaling},
          .feed_forward = {.dim = ffn_dim, .bias = ffn_bias},
          .norm = {.eps = norm_eps},
          .embeddings = {.tied = enable_weight_tying},
          .initial = {.truncated = true,
                      .depth = A::Initial::Depth::own,
                      .feed_forward_by_depth = true,
                      .unit_embeddings = true}};
}

models::Family family() {
  models::Family f = models::family<Model>("llama3", "Llama 3 (Meta, 2024)", flavors());
  f.hugging_face = {&hugging_face()};
  return f;
}

}  // namespace tessera::llama3
