// SPDX-License-Identifier: Apache-2.0
// Tied embeddings are initialised as a head. RoPE tables are made for a range of positions on the
// device of the parameters, so that layers never move them.
#include "tessera/models/llama3/llama3.h"

#include "tessera/kernels/pointwise/pointwise.h"

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

Block::Block(const Config& c, int64_t layer)
    : attention({.dim = c.dim,
                 .n_heads = c.n_heads,
                 .n_kv_heads = c.n_kv_heads,
                 .head_dim = c.head_dim(),
                 .output = residual_init(layer),
                 .fused_qkv = c.fused_qkv,
                 .dtype = c.dtype}),
      feed_forward(
          {.dim = c.dim, .hidden = c.ffn_dim, .output = residual_init(layer), .dtype = c.dtype}),
      attention_norm(c.dim, c.norm_eps, c.dtype),
      ffn_norm(c.dim, c.norm_eps, c.dtype) {}

void Block::visit(nn::Visitor& visitor) {
  visitor.child("attention", attention);
  visitor.child("feed_forward", feed_forward);
  visitor.child("attention_norm", attention_norm);
  visitor.child("ffn_norm", ffn_norm);
}

Tensor Block::forward(const Tensor& x, const nn::AttentionMetadata& metadata,
                      nn::KvCache* cache) const {
  const Tensor h = x + attention(attention_norm(x), metadata, cache);
  return h + feed_forward(ffn_norm(h));
}

Model::Model(const Config& c)
    : UniformDecoder({.family = "llama3",
                      .vocab_size = models::checked(c).vocab_size,
                      .max_seq_len = c.max_seq_len,
                      .n_layers = c.n_layers,
                      .attention_dim = c.n_heads * c.head_dim()}),
      config_(c) {
  tok_embeddings.emplace(c.vocab_size, c.dim,
                         c.enable_weight_tying ? head_init(c) : Init::normal(1), c.dtype);
  norm.emplace(c.dim, c.norm_eps, c.dtype);
  for (int64_t i = 0; i < c.n_layers; ++i) layers.emplace_back(c, i);
  if (!c.enable_weight_tying) output.emplace(c.dim, c.vocab_size, head_init(c), c.dtype);
}

void Model::visit(nn::Visitor& visitor) {
  if (tok_embeddings) visitor.child("tok_embeddings", *tok_embeddings);
  visitor.children("layers", layers);
  if (norm) visitor.child("norm", *norm);
  if (output) visitor.child("output", *output);
}

models::Metadata Model::metadata(int64_t length, int64_t start) const {
  check_positions(length, start);
  nn::AttentionMetadata m = nn::causal_metadata(
      length, config_.head_dim(), config_.rope_theta, start, config_.rope_scaling,
      config_.dtype == DType::f64 ? DType::f64 : DType::f32);
  for (Tensor* table : {&m.cos, &m.sin}) *table = placed(*table);
  return {{std::move(m)}};
}

Tensor Model::embed(const Tensor& tokens, const models::Metadata&) const {
  return (*tok_embeddings)(tokens);
}

Model::Head Model::head() const {
  if (output) return {&*output, output->weight};
  if (config_.enable_weight_tying && tok_embeddings)
    return {&*tok_embeddings, tok_embeddings->weight};
  return {};
}

models::Family family() {
  models::Family f = models::family<Model>("llama3", "Llama 3 (Meta, 2024)", flavors());
  f.hugging_face = &hugging_face();
  return f;
}

}  // namespace tessera::llama3
