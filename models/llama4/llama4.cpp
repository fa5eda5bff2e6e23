// SPDX-License-Identifier: Apache-2.0
// Shares multiply the input of an expert, not its output.
#include "tessera/models/llama4/llama4.h"

namespace tessera::llama4 {

models::Architecture Config::architecture() const {
  using A = models::Architecture;
  A a{.family = "llama4",
      .dim = dim,
      .n_layers = n_layers,
      .vocab_size = vocab_size,
      .max_seq_len = max_seq_len,
      .dtype = dtype,
      .attention = {.n_heads = n_heads,
                    .n_kv_heads = n_kv_heads,
                    .head_dim = head_dim,
                    .qk_norm = use_qk_norm ? A::Attention::QkNorm::l2 : A::Attention::QkNorm::none,
                    .fused_qkv = fused_qkv},
      .positions = {.kind = A::Positions::Kind::pairs,
                    .theta = rope_theta,
                    .scaling = rope_scaling,
                    .nope_layer_interval = nope_layer_interval,
                    .temperature = {.scale = attn_temperature_tuning ? attn_scale : 0,
                                    .floor_scale = floor_scale}},
      .spans = {.chunk = attention_chunk_size},
      .feed_forward = {.dim = ffn_dim},
      .experts = {.moe = moe,
                  .step = interleave_moe_layer_step,
                  .shared_experts = 1,
                  .score = nn::Router::Score::sigmoid,
                  .score_before_experts = true},
      .norm = {.eps = norm_eps},
      .embeddings = {.tied = enable_weight_tying},
      .initial = {.truncated = true,
                  .depth = A::Initial::Depth::own,
                  .feed_forward_by_depth = true,
                  .unit_embeddings = true}};
  for (int64_t i = 0; i < n_layers; ++i)
    a.spans.layer_types.emplace_back(has_rope(i) ? "chunked_attention" : "full_attention");
  return a;
}

models::Family family() {
  models::Family f = models::family<Model>("llama4", "Llama 4 (Meta, 2025), text", flavors());
  f.hugging_face = {&hugging_face()};
  return f;
}

}  // namespace tessera::llama4
