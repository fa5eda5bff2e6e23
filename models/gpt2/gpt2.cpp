// SPDX-License-Identifier: Apache-2.0
// Positions are 0, 1, ... unless the batch is packed; they are created on the device of the tokens.
// Dropout with p = 0 draws no random numbers.
#include "tessera/models/gpt2/gpt2.h"

#include "tessera/dist/dtensor.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <cmath>

namespace tessera::gpt2 {
namespace {

using nn::Init;

constexpr double kStd = 0.02;

// Two layers of each block add to the residual stream.
Init residual_init(const Config& c) {
  return Init::normal(kStd / std::sqrt(2.0 * static_cast<double>(c.n_layers)));
}

}  // namespace

Block::Block(const Config& c)
    : attention({.dim = c.dim,
                 .n_heads = c.n_heads,
                 .n_kv_heads = c.n_heads,
                 .head_dim = c.head_dim(),
                 .input = Init::normal(kStd),
                 .output = residual_init(c),
                 .qkv_bias = true,
                 .output_bias = true,
                 .rotary = false,
                 .fused_qkv = c.fused_qkv,
                 .dtype = c.dtype}),
      feed_forward({.dim = c.dim,
                    .hidden = c.ffn_dim(),
                    .input = Init::normal(kStd),
                    .output = residual_init(c),
                    .nonlinearity = nn::Nonlinearity::gelu_tanh,
                    .dtype = c.dtype}),
      attention_norm(c.dim, c.norm_eps, c.dtype),
      ffn_norm(c.dim, c.norm_eps, c.dtype),
      dropout(c.residual_dropout) {}

void Block::visit(nn::Visitor& visitor) {
  visitor.child("attention", attention);
  visitor.child("feed_forward", feed_forward);
  visitor.child("attention_norm", attention_norm);
  visitor.child("ffn_norm", ffn_norm);
  visitor.child("dropout", dropout);
}

Tensor Block::forward(const Tensor& x, const nn::AttentionMetadata& metadata,
                      nn::KvCache* cache) const {
  const Tensor h = x + dropout(attention(attention_norm(x), metadata, cache));  // (B, T, dim)
  return h + dropout(feed_forward(ffn_norm(h)));
}

Model::Model(const Config& c)
    : UniformDecoder({.family = "gpt2",
                      .vocab_size = models::checked(c).vocab_size,
                      .max_seq_len = c.max_seq_len,
                      .n_layers = c.n_layers,
                      .attention_dim = c.dim}),
      dropout(c.embedding_dropout),
      config_(c) {
  tok_embeddings.emplace(c.vocab_size, c.dim, Init::normal(kStd), c.dtype);
  pos_embeddings.emplace(c.max_seq_len, c.dim, Init::normal(kStd), c.dtype);
  norm.emplace(c.dim, c.norm_eps, c.dtype);
  for (int64_t i = 0; i < c.n_layers; ++i) layers.emplace_back(c);
}

void Model::visit(nn::Visitor& visitor) {
  visitor.child("tok_embeddings", tok_embeddings);
  visitor.child("pos_embeddings", pos_embeddings);
  if (pos_embeddings) visitor.child("dropout", dropout);
  visitor.children("layers", layers);
  visitor.child("norm", norm);
}

double Model::flops(std::span<const int64_t> documents) {
  double tokens = 0;
  for (const int64_t length : documents) tokens += static_cast<double>(length);
  const int64_t rows = pos_embeddings ? pos_embeddings->weight.numel() : 0;
  return Decoder::flops(documents) - 6.0 * static_cast<double>(rows) * tokens;
}

models::Metadata Model::plain_metadata(int64_t /*length*/, int64_t start) const {
  return {{{.start = start}}};
}

Tensor Model::embed(const Tensor& tokens, const models::Metadata& metadata) const {
  if (!pos_embeddings) {
    fail<UsageError>("gpt2",
                     "a stage that embeds tokens needs pos_embeddings beside tok_embeddings: keep "
                     "both");
  }
  Tensor positions = metadata.of().position_ids;  // (B, T), or (T) if equal for all rows
  if (!positions.defined()) {
    const op::Arange made{.start = static_cast<double>(metadata.of().start),
                          .count = tokens.size(1),
                          .device = tokens.device()};
    positions = tokens.is_distributed()
                    ? call_on(made, Layout::replicated(layout_of(tokens).mesh()))
                    : call(made, {});
  }
  return dropout((*tok_embeddings)(tokens) + (*pos_embeddings)(positions));
}

Model::Head Model::head() const {
  if (!tok_embeddings) return {};
  return {&*tok_embeddings, tok_embeddings->weight};
}

models::Family family() {
  models::Family f = models::family<Model>("gpt2", "GPT-2 (OpenAI, 2019)", flavors());
  f.hugging_face = {&hugging_face()};
  return f;
}

}  // namespace tessera::gpt2
