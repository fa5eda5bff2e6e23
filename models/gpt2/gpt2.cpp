// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gpt2/gpt2.h"

#include "tessera/dist/dtensor.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/parameters.h"

#include <cmath>

namespace tessera::gpt2 {
namespace {

using nn::Init;

constexpr double kStd = 0.02;

// Two layers of each block write to the residual stream.
Init residual_init(const Config& c) {
  return Init::normal(kStd / std::sqrt(2.0 * static_cast<double>(c.n_layers)));
}

void check_tokens(const Tensor& tokens) {
  if (tokens.rank() != 2)
    fail<ShapeError>("gpt2", "tokens are ", tokens.meta(), ", expected i64 (B, T)");
  if (tokens.dtype() != DType::i64)
    fail<DTypeError>("gpt2", "tokens are ", tokens.meta(), ", expected i64 (B, T)");
}

const Config& checked(const Config& c) {
  const auto require = [](bool ok, const auto&... message) {
    if (!ok) fail<ValueError>("gpt2", message...);
  };
  require(c.dim > 0 && c.n_layers > 0 && c.n_heads > 0 && c.vocab_size > 0,
          "dim, n_layers, n_heads and vocab_size must be positive");
  require(c.dim % c.n_heads == 0, "dim ", c.dim, " is not a multiple of n_heads ", c.n_heads);
  require(c.max_seq_len > 0, "max_seq_len ", c.max_seq_len, " must be positive");
  require(c.attention_dropout == 0, "attention_dropout is ", c.attention_dropout,
          ", but attention drops no probabilities: set it to 0 and use residual_dropout");
  return c;
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
                    .tanh_approximation = true,
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
  return run(x, [this, metadata, cache](const Tensor& in) {
    const Tensor seen = attention.forward(attention_norm.forward(in), metadata, cache);
    const Tensor h = in + dropout.forward(seen);  // (B, T, dim)
    return h + dropout.forward(feed_forward.forward(ffn_norm.forward(h)));
  });
}

Model::Model(const Config& c)
    : tok_embeddings(checked(c).vocab_size, c.dim, Init::normal(kStd), c.dtype),
      pos_embeddings(c.max_seq_len, c.dim, Init::normal(kStd), c.dtype),
      dropout(c.embedding_dropout),
      norm(c.dim, c.norm_eps, c.dtype),
      config_(c) {
  for (int64_t i = 0; i < c.n_layers; ++i) layers.push_back(std::make_unique<Block>(c));
}

void Model::visit(nn::Visitor& visitor) {
  visitor.child("tok_embeddings", tok_embeddings);
  visitor.child("pos_embeddings", pos_embeddings);
  visitor.child("dropout", dropout);
  visitor.children("layers", layers);
  visitor.child("norm", norm);
}

std::vector<nn::Module*> Model::blocks() {
  std::vector<nn::Module*> all;
  for (const auto& layer : layers) all.push_back(layer.get());
  return all;
}

Tensor Model::logits_of(const Tensor& x) const {
  return tok_embeddings.run_all(
      {x}, [this](Tensors in) { return TensorList{linear(in[0], tok_embeddings.weight)}; })[0];
}

nn::AttentionMetadata Model::attention_metadata(int64_t length, int64_t start) const {
  if (start < 0 || length < 1 || start + length > config_.max_seq_len) {
    fail<ValueError>("gpt2", "positions ", start, " to ", start + length,
                     " do not lie within max_seq_len ", config_.max_seq_len);
  }
  return {.start = start};
}

Tensor Model::features(const Tensor& tokens, const nn::AttentionMetadata& metadata,
                       Cache* cache) const {
  Tensor positions = metadata.positions;  // (B, T), or (T) where all rows are alike
  if (!positions.defined()) {
    const op::Arange made{.start = static_cast<double>(metadata.start),
                          .count = tokens.size(1),
                          .device = tokens.device()};
    positions = tokens.is_distributed()
                    ? call_on(made, Layout::replicated(layout_of(tokens)->mesh()))
                    : call(made, {});
  }
  Tensor x = dropout.forward(tok_embeddings.forward(tokens) + pos_embeddings.forward(positions));
  for (size_t i = 0; i < layers.size(); ++i)
    x = layers[i]->forward(x, metadata, cache ? &cache->at(i) : nullptr);
  return norm.forward(x);  // (B, T, dim)
}

Tensor Model::forward(const Tensor& tokens, const nn::AttentionMetadata& metadata) const {
  check_tokens(tokens);
  return run(tokens, [this, metadata](const Tensor& ids) {
    return logits_of(features(ids, metadata));  // (B, T, V)
  });
}

Tensor Model::forward(const Tensor& tokens) const {
  return forward(tokens, attention_metadata(tokens.size(-1)));
}

CrossEntropyResult Model::loss(const Tensor& tokens, const Tensor& targets,
                               const nn::AttentionMetadata& metadata,
                               const CrossEntropyOptions& options) const {
  check_tokens(tokens);
  const TensorList out = run_all({tokens, targets}, [this, metadata, options](Tensors in) {
    const Tensor x = features(in[0], metadata);
    return tok_embeddings.run_all({x, in[1]}, [this, options](Tensors of) {
      const auto [sum, count] = linear_cross_entropy(of[0], tok_embeddings.weight, of[1], options);
      return TensorList{sum, count};
    });
  });
  return {out[0], out[1]};
}

Cache Model::make_cache(int64_t capacity) const {
  if (capacity < 1 || capacity > config_.max_seq_len) {
    fail<ValueError>("gpt2", "a cache of ", capacity, " tokens does not lie within max_seq_len ",
                     config_.max_seq_len);
  }
  return Cache(layers.size(), {.capacity = capacity});
}

Tensor Model::next_logits(const Tensor& tokens, Cache& cache) const {
  check_tokens(tokens);
  const int64_t seen = cache.empty() ? 0 : cache[0].length;
  bool fits = cache.size() == layers.size();
  for (const nn::KvCache& c : cache) fits = fits && c.length == seen;
  if (!fits) {
    fail<ValueError>("gpt2", "the cache has ", cache.size(), " layers, the first of ", seen,
                     " tokens; expected ", layers.size(), " of equal length: use make_cache");
  }
  const nn::AttentionMetadata metadata = attention_metadata(tokens.size(1), seen);
  try {
    return run(tokens, [this, metadata, &cache](const Tensor& ids) {
      const Tensor x = features(ids, metadata, &cache);
      return logits_of(slice(x, 1, {x.size(1) - 1}));  // (B, 1, V)
    });
  } catch (...) {
    for (nn::KvCache& c : cache) c.length = seen;  // some layers had taken the tokens
    throw;
  }
}

double flops_per_token(Model& model, int64_t seq_len) {
  const Config& c = model.config();
  const int64_t weights = nn::parameter_count(model) - c.max_seq_len * c.dim;
  const int64_t attention = c.n_layers * c.dim * 2 * seq_len;
  return 6.0 * static_cast<double>(weights + attention);
}

}  // namespace tessera::gpt2
