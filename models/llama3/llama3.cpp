// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/llama3/llama3.h"

#include "tessera/dist/dtensor.h"
#include "tessera/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/parameters.h"

#include <array>
#include <cmath>

namespace tessera::llama3 {
namespace {

using nn::Init;

// Layers that write to the residual stream start smaller the deeper they lie.
Init residual_init(int64_t layer) {
  return Init::truncated_normal(0.02 / std::sqrt(2.0 * static_cast<double>(layer + 1)));
}

Init head_init(const Config& c) {
  return Init::truncated_normal(1 / std::sqrt(static_cast<double>(c.dim)));
}

void check_tokens(const Tensor& tokens) {
  if (tokens.rank() != 2)
    fail<ShapeError>("llama3", "tokens are ", tokens.meta(), ", expected i64 (B, T)");
  if (tokens.dtype() != DType::i64)
    fail<DTypeError>("llama3", "tokens are ", tokens.meta(), ", expected i64 (B, T)");
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

namespace {
constexpr RopeScaling kScaling{.kind = RopeScaling::Kind::llama3, .factor = 8};
}  // namespace

std::span<const Flavor> flavors() {
  static const std::array<Flavor, 6> all{{
      {"debugmodel",
       {.dim = 256,
        .n_layers = 6,
        .n_heads = 16,
        .n_kv_heads = 16,
        .ffn_dim = 768,
        .vocab_size = 2048,
        .rope_scaling = kScaling}},
      {"1B",
       {.dim = 2048,
        .n_layers = 16,
        .n_heads = 32,
        .ffn_dim = 8192,
        .rope_scaling = kScaling,
        .enable_weight_tying = true}},
      {"3B",
       {.dim = 3072,
        .n_layers = 28,
        .n_heads = 24,
        .ffn_dim = 8192,
        .rope_scaling = kScaling,
        .enable_weight_tying = true}},
      {"8B", {.rope_scaling = kScaling}},
      {"70B",
       {.dim = 8192, .n_layers = 80, .n_heads = 64, .ffn_dim = 28672, .rope_scaling = kScaling}},
      {"405B",
       {.dim = 16384, .n_layers = 126, .n_heads = 128, .ffn_dim = 53248, .rope_scaling = kScaling}},
  }};
  return all;
}

const Config& flavor(std::string_view name) {
  std::string names;
  for (const Flavor& f : flavors()) {
    if (f.name == name) return f.config;
    names += concat(names.empty() ? "" : ", ", f.name);
  }
  fail<ValueError>("llama3", "there is no flavor \"", name, "\": there are ", names);
}

Config debugmodel() { return flavor("debugmodel"); }

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
    : tok_embeddings(checked(c).vocab_size, c.dim,
                     c.enable_weight_tying ? head_init(c) : Init::normal(1), c.dtype),
      norm(c.dim, c.norm_eps, c.dtype),
      config_(c) {
  for (int64_t i = 0; i < c.n_layers; ++i) layers.emplace_back(c, i);
  if (!c.enable_weight_tying) output.emplace(c.dim, c.vocab_size, head_init(c), c.dtype);
}

void Model::visit(nn::Visitor& visitor) {
  visitor.child("tok_embeddings", tok_embeddings);
  visitor.children("layers", layers);
  visitor.child("norm", norm);
  if (output) visitor.child("output", *output);
}

std::vector<nn::Module*> Model::blocks() {
  std::vector<nn::Module*> all;
  for (Block& layer : layers) all.push_back(&layer);
  return all;
}

const nn::Module& Model::head() const {
  return output ? static_cast<const nn::Module&>(*output) : tok_embeddings;
}
const Tensor& Model::table() const { return output ? output->weight : tok_embeddings.weight; }

Tensor Model::multiply(const Tensor& x) const {
  return head().run([](const Tensor& in, const Model* m) { return linear(in, m->table()); }, x,
                    this);
}

nn::AttentionMetadata Model::attention_metadata(int64_t length, int64_t start) const {
  if (start < 0 || length < 1 || start + length > config_.max_seq_len) {
    fail<ValueError>("llama3", "positions ", start, " to ", start + length,
                     " do not lie within max_seq_len ", config_.max_seq_len);
  }
  nn::AttentionMetadata metadata = nn::causal_metadata(
      length, config_.head_dim(), config_.rope_theta, start, config_.rope_scaling);
  // Tables lie where the parameters do, on every rank of their mesh.
  const Tensor& weight = tok_embeddings.weight;
  for (Tensor* table : {&metadata.cos, &metadata.sin}) {
    if (weight.device().is_cuda()) *table = to_device(*table, weight.device());
    if (weight.is_distributed())
      *table = distribute(*table, Layout::replicated(layout_of(weight)->mesh()));
  }
  return metadata;
}

Tensor Model::features(const Tensor& tokens, const nn::AttentionMetadata& metadata,
                       Cache* cache) const {
  Tensor x = tok_embeddings(tokens);  // (B, T, dim)
  for (size_t i = 0; i < layers.size(); ++i)
    x = layers[i](x, metadata, cache ? &cache->at(i) : nullptr);
  return norm(x);  // (B, T, dim)
}

Tensor Model::forward(const Tensor& tokens, const nn::AttentionMetadata& metadata) const {
  check_tokens(tokens);
  return run(&Model::logits_of, tokens, metadata);
}

Tensor Model::logits_of(const Tensor& tokens, const nn::AttentionMetadata& metadata) const {
  return multiply(features(tokens, metadata));  // (B, T, V)
}

Tensor Model::forward(const Tensor& tokens) const {
  nn::AttentionMetadata metadata = attention_metadata(tokens.size(-1));
  if (tokens.device().is_meta()) {  // a model that is only planned
    metadata.cos = to_device(metadata.cos, kMeta);
    metadata.sin = to_device(metadata.sin, kMeta);
  }
  return forward(tokens, metadata);
}

CrossEntropyResult Model::loss(const Tensor& tokens, const Tensor& targets,
                               const nn::AttentionMetadata& metadata,
                               const CrossEntropyOptions& options) const {
  check_tokens(tokens);
  return run(&Model::loss_of, tokens, targets, metadata, options);
}

CrossEntropyResult Model::loss_of(const Tensor& tokens, const Tensor& targets,
                                  const nn::AttentionMetadata& metadata,
                                  const CrossEntropyOptions& options) const {
  return head().run(
      [](const Tensor& x, const Tensor& of, const Model* m, const CrossEntropyOptions& o) {
        return linear_cross_entropy(x, m->table(), of, o);
      },
      features(tokens, metadata), targets, this, options);
}

Cache Model::make_cache(int64_t capacity) const {
  if (capacity < 1 || capacity > config_.max_seq_len) {
    fail<ValueError>("llama3", "a cache of ", capacity, " tokens does not lie within max_seq_len ",
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
    fail<ValueError>("llama3", "the cache has ", cache.size(), " layers, the first of ", seen,
                     " tokens; expected ", layers.size(), " of equal length: use make_cache");
  }
  const nn::AttentionMetadata metadata = attention_metadata(tokens.size(1), seen);
  try {
    return run(&Model::next_logits_of, tokens, metadata, &cache);
  } catch (...) {
    for (nn::KvCache& c : cache) c.length = seen;  // some layers had taken the tokens
    throw;
  }
}

Tensor Model::next_logits_of(const Tensor& tokens, const nn::AttentionMetadata& metadata,
                             Cache* cache) const {
  const Tensor x = features(tokens, metadata, cache);
  return multiply(slice(x, 1, {x.size(1) - 1}));  // (B, 1, V)
}

double flops_per_token(Model& model, int64_t seq_len) {
  const Config& c = model.config();
  const int64_t table = c.enable_weight_tying ? 0 : c.vocab_size * c.dim;
  const int64_t weights = nn::parameter_count(model) - table;
  const int64_t attention = c.n_layers * c.n_heads * 2 * c.head_dim() * seq_len;
  return 6.0 * static_cast<double>(weights + attention);
}

}  // namespace tessera::llama3
