// SPDX-License-Identifier: Apache-2.0
// A sequence that is no longer than a chunk needs no chunks, and causal attention is the fastest.
#include "tessera/models/llama4/llama4.h"

#include <cmath>

namespace tessera::llama4 {
namespace {

using nn::Init;

enum Kind : size_t { kRope, kNoRope };

// Layers that add to the residual stream have smaller initial values the deeper they are.
Init residual_init(int64_t layer) {
  return Init::truncated_normal(0.02 / std::sqrt(2.0 * static_cast<double>(layer + 1)));
}

nn::Attention::Config attention_of(const Config& c, int64_t layer) {
  const bool rope = c.has_rope(layer);
  return {.dim = c.dim,
          .n_heads = c.n_heads,
          .n_kv_heads = c.n_kv_heads,
          .head_dim = c.head_dim,
          .output = residual_init(layer),
          .rotary = rope,
          .qk_l2_norm_eps = c.use_qk_norm && rope ? c.norm_eps : 0,
          .fused_qkv = c.fused_qkv,
          .dtype = c.dtype};
}

nn::FeedForward::Config feed_forward_of(const Config& c, int64_t layer) {
  return {.dim = c.dim, .hidden = c.ffn_dim, .output = residual_init(layer), .dtype = c.dtype};
}

// Shares multiply the input of an expert, not its output.
nn::MoE::Config experts_of(const Config& c, int64_t layer) {
  nn::Router::Config router = models::router_config(c.moe, c.dim, c.dtype);
  router.gate = residual_init(layer);
  return {.router = router,
          .hidden = c.moe.moe_inter_dim,
          .shared_experts = 1,
          .score_before_experts = true,
          .balance = c.moe.load_balance_coeff > 0,
          .output = residual_init(layer)};
}

}  // namespace

Model::Model(const Config& c) : RotaryDecoder("llama4", models::checked(c)), config_(c) {
  const Init head = Init::truncated_normal(1 / std::sqrt(static_cast<double>(c.dim)));
  tok_embeddings.emplace(c.vocab_size, c.dim, c.enable_weight_tying ? head : Init::normal(1),
                         c.dtype);
  for (int64_t i = 0; i < c.n_layers; ++i) {
    if (c.has_experts(i)) layers.emplace_back(attention_of(c, i), experts_of(c, i), c.norm_eps);
    else layers.emplace_back(attention_of(c, i), feed_forward_of(c, i), c.norm_eps);
  }
  norm.emplace(c.dim, c.norm_eps, c.dtype);
  if (!c.enable_weight_tying) output.emplace(c.dim, c.vocab_size, head, c.dtype);
}

size_t Model::kind(size_t i) const {
  return config_.has_rope(static_cast<int64_t>(i)) ? kRope : kNoRope;
}

models::Metadata Model::plain_metadata(int64_t length, int64_t start) const {
  const Config& c = config_;
  models::Metadata m = RotaryDecoder::plain_metadata(length, start);
  m.kinds.push_back({.start = start});
  for (nn::AttentionMetadata& k : m.kinds) k.layers = 0;
  for (int64_t i = 0; i < c.n_layers; ++i) ++m.kinds[kind(static_cast<size_t>(i))].layers;
  if (start + length > c.attention_chunk_size)
    m.kinds[kRope].mask = m.kinds[kRope].mask & AttentionMask::chunk(c.attention_chunk_size);
  if (c.attn_temperature_tuning) {
    m.kinds[kNoRope].query_scale =
        nn::query_temperature(length, start, c.floor_scale, c.attn_scale,
                              c.dtype == DType::f64 ? DType::f64 : DType::f32);
  }
  return m;
}

// Of a document alone. The mask counts chunks from the start of the row, where documents are
// packed: one that begins within a chunk may be cut at other places, and has somewhat other pairs.
double Model::pairs(int64_t length) {
  const auto causal = [](int64_t n) {
    return static_cast<double>(n) * static_cast<double>(n + 1) / 2;
  };
  const int64_t chunk = config_.attention_chunk_size;
  const double chunked =
      static_cast<double>(length / chunk) * causal(chunk) + causal(length % chunk);
  double sum = 0;
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers.has(i)) sum += kind(i) == kRope ? chunked : causal(length);
  return sum;
}

models::Family family() {
  models::Family f = models::family<Model>("llama4", "Llama 4 (Meta, 2025), text", flavors());
  f.hugging_face = {&hugging_face()};
  return f;
}

}  // namespace tessera::llama4
