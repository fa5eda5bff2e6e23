// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/llama3/llama3.h"

#include "tessera/dist/dtensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/parameters.h"

#include <cmath>

namespace tessera::llama3 {
namespace {

using nn::Init;

// Layers that write to the residual stream start smaller the deeper they lie.
Init residual_init(int64_t layer) {
  return Init::truncated_normal(0.02 / std::sqrt(2.0 * static_cast<double>(layer + 1)));
}

const Config& checked(const Config& c) {
  const auto require = [](bool ok, const auto&... message) {
    if (!ok) fail<ValueError>("llama3", message...);
  };
  require(c.dim > 0 && c.n_layers > 0 && c.n_heads > 0 && c.ffn_dim > 0 && c.vocab_size > 0,
          "dim, n_layers, n_heads, ffn_dim and vocab_size must be positive");
  require(c.dim % c.n_heads == 0, "dim ", c.dim, " is not a multiple of n_heads ", c.n_heads);
  require(c.max_seq_len > 0, "max_seq_len ", c.max_seq_len, " must be positive");
  return c;
}

}  // namespace

Config debugmodel() {
  return {.dim = 256,
          .n_layers = 6,
          .n_heads = 16,
          .n_kv_heads = 16,
          .ffn_dim = 768,
          .vocab_size = 2048,
          .max_seq_len = 131072,
          .rope_theta = 500000,
          .norm_eps = 1e-5};
}

Block::Block(const Config& c, int64_t layer)
    : attention({.dim = c.dim,
                 .n_heads = c.n_heads,
                 .n_kv_heads = c.n_kv_heads,
                 .head_dim = c.head_dim(),
                 .output = residual_init(layer)}),
      feed_forward({.dim = c.dim, .hidden = c.ffn_dim, .output = residual_init(layer)}),
      attention_norm(c.dim, c.norm_eps),
      ffn_norm(c.dim, c.norm_eps) {}

void Block::visit(nn::Visitor& visitor) {
  visitor.child("attention", attention);
  visitor.child("feed_forward", feed_forward);
  visitor.child("attention_norm", attention_norm);
  visitor.child("ffn_norm", ffn_norm);
}

Tensor Block::forward(const Tensor& x, const nn::AttentionMetadata& metadata) const {
  return run(x, [this, metadata](const Tensor& in) {
    const Tensor h = in + attention.forward(attention_norm.forward(in), metadata);
    return h + feed_forward.forward(ffn_norm.forward(h));
  });
}

Model::Model(const Config& c)
    : tok_embeddings(checked(c).vocab_size, c.dim, Init::normal(1)),
      norm(c.dim, c.norm_eps),
      output(c.dim, c.vocab_size,
             Init::truncated_normal(1 / std::sqrt(static_cast<double>(c.dim)))),
      config_(c) {
  for (int64_t i = 0; i < c.n_layers; ++i) layers.push_back(std::make_unique<Block>(c, i));
}

void Model::visit(nn::Visitor& visitor) {
  visitor.child("tok_embeddings", tok_embeddings);
  visitor.children("layers", layers);
  visitor.child("norm", norm);
  visitor.child("output", output);
}

nn::AttentionMetadata Model::attention_metadata(int64_t length, int64_t start) const {
  if (start < 0 || length < 1 || start + length > config_.max_seq_len) {
    fail<ValueError>("llama3", "positions ", start, " to ", start + length,
                     " do not lie within max_seq_len ", config_.max_seq_len);
  }
  nn::AttentionMetadata metadata =
      nn::causal_metadata(length, config_.head_dim(), config_.rope_theta, start);
  // Tables lie where the parameters do, on every rank of their mesh.
  const Tensor& weight = tok_embeddings.weight;
  for (Tensor* table : {&metadata.cos, &metadata.sin}) {
    if (weight.device().is_cuda()) *table = to_device(*table, weight.device());
    if (weight.is_distributed())
      *table = distribute(*table, Layout::replicated(layout_of(weight)->mesh()));
  }
  return metadata;
}

Tensor Model::forward(const Tensor& tokens, const nn::AttentionMetadata& metadata) const {
  if (tokens.rank() != 2) {
    fail<ShapeError>("llama3", "tokens are ", tokens.meta(), ", expected i64 (B, T)");
  }
  return run(tokens, [this, metadata](const Tensor& ids) {
    Tensor x = tok_embeddings.forward(ids);  // (B, T, dim)
    for (const auto& layer : layers) x = layer->forward(x, metadata);
    return output.forward(norm.forward(x));  // (B, T, V)
  });
}

Tensor Model::forward(const Tensor& tokens) const {
  return forward(tokens, attention_metadata(tokens.size(-1)));
}

double flops_per_token(Model& model, int64_t seq_len) {
  const Config& c = model.config();
  const int64_t weights = nn::parameter_count(model) - c.vocab_size * c.dim;
  const int64_t attention = c.n_layers * c.n_heads * 2 * c.head_dim() * seq_len;
  return 6.0 * static_cast<double>(weights + attention);
}

}  // namespace tessera::llama3
