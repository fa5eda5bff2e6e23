// SPDX-License-Identifier: Apache-2.0
// Where layers have experts, what adds to the residual stream begins smaller the more layers there
// are, as in torchtitan.
#include "tessera/models/qwen3/qwen3.h"

namespace tessera::qwen3 {

models::Architecture Config::architecture() const {
  using A = models::Architecture;
  using Depth = A::Initial::Depth;
  return {.family = "qwen3",
          .dim = dim,
          .n_layers = n_layers,
          .vocab_size = vocab_size,
          .max_seq_len = max_seq_len,
          .dtype = dtype,
          .attention = {.n_heads = n_heads,
                        .n_kv_heads = n_kv_heads,
                        .head_dim = head_dim,
                        .qkv_bias = qkv_bias,
                        .output_bias = output_bias,
                        .qk_norm = A::Attention::QkNorm::heads,
                        .fused_qkv = fused_qkv},
          .positions = {.theta = rope_theta, .scaling = rope_scaling},
          .spans = spans,
          .feed_forward = {.dim = ffn_dim},
          .experts = {.moe = moe, .step = decoder_sparse_step},
          .norm = {.eps = norm_eps},
          .embeddings = {.tied = enable_weight_tying},
          .initial = {.depth = moe.num_experts > 0 ? Depth::layers : Depth::none}};
}

models::Family family() {
  models::Family f = models::family<Model>("qwen3", "Qwen 3 (Alibaba, 2025)", flavors());
  f.hugging_face = {&hugging_face(), &hugging_face_moe()};
  return f;
}

}  // namespace tessera::qwen3
