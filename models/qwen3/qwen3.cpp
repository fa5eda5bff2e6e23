// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/qwen3/qwen3.h"

namespace tessera::qwen3 {

Model::Model(const Config& c)
    : RotaryDecoder({.family = "qwen3",
                     .vocab_size = models::checked(c).vocab_size,
                     .max_seq_len = c.max_seq_len,
                     .n_layers = c.n_layers,
                     .attention_dim = c.n_heads * c.head_dim},
                    {.query = c.n_heads,
                     .key = c.n_kv_heads,
                     .dim = c.head_dim,
                     .rope_theta = c.rope_theta,
                     .rope_scaling = c.rope_scaling,
                     .dtype = c.dtype},
                    c.enable_weight_tying),
      config_(c) {
  const nn::Init init = nn::Init::normal(0.02);
  tok_embeddings.emplace(c.vocab_size, c.dim, init, c.dtype);
  for (int64_t i = 0; i < c.n_layers; ++i) {
    layers.emplace_back(
        nn::Attention::Config{.dim = c.dim,
                              .n_heads = c.n_heads,
                              .n_kv_heads = c.n_kv_heads,
                              .head_dim = c.head_dim,
                              .input = init,
                              .rope_halves = true,
                              .qk_norm_eps = c.norm_eps,
                              .fused_qkv = c.fused_qkv,
                              .dtype = c.dtype},
        nn::FeedForward::Config{.dim = c.dim, .hidden = c.ffn_dim, .gate = init, .dtype = c.dtype},
        c.norm_eps);
  }
  norm.emplace(c.dim, c.norm_eps, c.dtype);
  if (!c.enable_weight_tying) output.emplace(c.dim, c.vocab_size, init, c.dtype);
}

models::Family family() {
  models::Family f = models::family<Model>("qwen3", "Qwen 3 (Alibaba, 2025), dense", flavors());
  f.hugging_face = &hugging_face();
  return f;
}

}  // namespace tessera::qwen3
