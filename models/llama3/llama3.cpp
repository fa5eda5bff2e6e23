// SPDX-License-Identifier: Apache-2.0
// Tied embeddings are initialised as a head.
#include "tessera/models/llama3/llama3.h"

#include <cmath>

namespace tessera::llama3 {
namespace {

using nn::Init;

// Layers that add to the residual stream have smaller initial values the deeper they are.
Init residual_init(int64_t layer) {
  return Init::truncated_normal(0.02 / std::sqrt(2.0 * static_cast<double>(layer + 1)));
}

Init head_init(const Config& c) {
  return Init::truncated_normal(1 / std::sqrt(static_cast<double>(c.dim)));
}

}  // namespace

Model::Model(const Config& c) : RotaryDecoder("llama3", models::checked(c)), config_(c) {
  tok_embeddings.emplace(c.vocab_size, c.dim,
                         c.enable_weight_tying ? head_init(c) : Init::normal(1), c.dtype);
  for (int64_t i = 0; i < c.n_layers; ++i) {
    layers.emplace_back(
        nn::Attention::Config{.dim = c.dim,
                              .n_heads = c.n_heads,
                              .n_kv_heads = c.n_kv_heads,
                              .head_dim = c.head_dim(),
                              .output = residual_init(i),
                              .fused_qkv = c.fused_qkv,
                              .dtype = c.dtype},
        nn::FeedForward::Config{
            .dim = c.dim, .hidden = c.ffn_dim, .output = residual_init(i), .dtype = c.dtype},
        c.norm_eps);
  }
  norm.emplace(c.dim, c.norm_eps, c.dtype);
  if (!c.enable_weight_tying) output.emplace(c.dim, c.vocab_size, head_init(c), c.dtype);
}

models::Family family() {
  models::Family f = models::family<Model>("llama3", "Llama 3 (Meta, 2024)", flavors());
  f.hugging_face = {&hugging_face()};
  return f;
}

}  // namespace tessera::llama3
