// SPDX-License-Identifier: Apache-2.0
// Llama 3 (Meta, 2024): pre-norm transformer, rotary positions with Llama 3.1's scaling, grouped
// heads, SwiGLU; the head of the small ones is the embedding. Names of members and the
// initialisation are torchtitan's; linears are cut at three standard deviations.
#pragma once

#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/containers.h"

#include <span>
#include <string_view>

namespace tessera::llama3 {

struct Config {
  int64_t dim = 4096, n_layers = 32, n_heads = 32, n_kv_heads = 8, ffn_dim = 14336;
  int64_t vocab_size = 128256, max_seq_len = 131072;
  double rope_theta = 500000, norm_eps = 1e-5;
  RopeScaling rope_scaling = {};
  bool enable_weight_tying = false;  ///< the head multiplies with the embedding's table
  bool fused_qkv = true;             ///< queries, keys and values by one product
  DType dtype = DType::f32;          ///< of parameters

  [[nodiscard]] int64_t head_dim() const { return dim / n_heads; }
};

/// 6 layers of 256: trains in minutes on a laptop.
TESSERA_API Config debugmodel();
struct Flavor {
  std::string_view name;
  Config config;
};
/// The sizes that Meta published and torchtitan trains: debugmodel, 1B, 3B, 8B, 70B, 405B.
TESSERA_API std::span<const Flavor> flavors();
/// ValueError, with the list, if there is no flavor of this name.
TESSERA_API const Config& flavor(std::string_view name);

/// block(x, metadata, cache = nullptr): x + attention(norm(x)), then x + feed_forward(norm(x)).
class TESSERA_API Block final : public nn::Layer<Block> {
 public:
  Block(const Config& config, int64_t layer);
  void visit(nn::Visitor& visitor) override;

  nn::Attention attention;
  nn::FeedForward feed_forward;
  nn::RmsNorm attention_norm, ffn_norm;

 private:
  friend class nn::Layer<Block>;
  [[nodiscard]] Tensor forward(const Tensor& x, const nn::AttentionMetadata& metadata,
                               nn::KvCache* cache = nullptr) const;
};

/// What generation keeps of the tokens seen so far: one entry per layer.
using Cache = std::vector<nn::KvCache>;

class TESSERA_API Model final : public nn::Module {
 public:
  /// Parameters lie on the meta device until nn::initialize or nn::load. ValueError: sizes that do
  /// not fit.
  explicit Model(const Config& config);
  void visit(nn::Visitor& visitor) override;
  [[nodiscard]] const Config& config() const { return config_; }
  /// What is checkpointed, cast and later sharded as one: the blocks.
  [[nodiscard]] std::vector<nn::Module*> blocks();

  /// What forward needs besides tokens; make it once for batches of one length. ValueError beyond
  /// max_seq_len.
  [[nodiscard]] nn::AttentionMetadata attention_metadata(int64_t length, int64_t start = 0) const;
  /// tokens (B, T) i64 -> logits (B, T, vocabulary).
  [[nodiscard]] Tensor forward(const Tensor& tokens, const nn::AttentionMetadata& metadata) const;
  [[nodiscard]] Tensor forward(const Tensor& tokens) const;
  /// The sum of -log p(target) over the tokens that count, and their number, without the logits.
  /// tokens, targets (B, T) i64.
  [[nodiscard]] CrossEntropyResult loss(const Tensor& tokens, const Tensor& targets,
                                        const nn::AttentionMetadata& metadata,
                                        const CrossEntropyOptions& options = {}) const;

  /// For `capacity` tokens in all.
  [[nodiscard]] Cache make_cache(int64_t capacity) const;
  /// The logits (B, 1, vocabulary) after the last of tokens (B, T), which follow those in the cache
  /// and are added to it. Under NoGrad. ValueError if the cache is not this model's or is full.
  [[nodiscard]] Tensor next_logits(const Tensor& tokens, Cache& cache) const;

  nn::Embedding tok_embeddings;
  nn::ModuleList<Block> layers;
  nn::RmsNorm norm;
  std::optional<nn::Linear> output;  // none where the embedding is the head

 private:
  [[nodiscard]] Tensor features(const Tensor& tokens, const nn::AttentionMetadata& metadata,
                                Cache* cache = nullptr) const;  // (B, T, dim)
  // What the public entries run through the hooks.
  [[nodiscard]] Tensor logits_of(const Tensor& tokens, const nn::AttentionMetadata& metadata) const;
  [[nodiscard]] CrossEntropyResult loss_of(const Tensor& tokens, const Tensor& targets,
                                           const nn::AttentionMetadata& metadata,
                                           const CrossEntropyOptions& options) const;
  [[nodiscard]] Tensor next_logits_of(const Tensor& tokens, const nn::AttentionMetadata& metadata,
                                      Cache* cache) const;
  [[nodiscard]] const nn::Module& head() const;
  [[nodiscard]] const Tensor& table() const;             // the head's, (V, dim)
  [[nodiscard]] Tensor multiply(const Tensor& x) const;  // (..., dim) -> (..., V)
  Config config_;
};

/// Floating-point operations of forward and backward per token, as torchtitan counts them: 6 per
/// parameter that multiplies (a tied table once, as the head), and attention without discount for
/// the causal mask.
TESSERA_API double flops_per_token(Model& model, int64_t seq_len);

}  // namespace tessera::llama3
