// SPDX-License-Identifier: Apache-2.0
// GPT-2 (Radford et al., OpenAI, 2019): pre-norm transformer with LayerNorm, learned positions,
// biases, GELU by its tanh approximation, and the embedding as the head. Names of members are those
// of our other decoders. Initialisation is transformers': normal, 0.02 wide, also for positions
// (OpenAI's first code had 0.01 there); what writes to the residual stream 0.02 / sqrt(2 n_layers);
// biases zero. Dropout is 0 unless asked for; OpenAI trained with 0.1.
#pragma once

#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/models/gpt2/config.h"
#include "tessera/nn/attention.h"

#include <memory>
#include <vector>

namespace tessera::gpt2 {

/// x + attention(norm(x)), then x + feed_forward(norm(x)).
class TESSERA_API Block final : public nn::Module {
 public:
  explicit Block(const Config& config);
  void visit(nn::Visitor& visitor) override;
  [[nodiscard]] Tensor forward(const Tensor& x, const nn::AttentionMetadata& metadata,
                               nn::KvCache* cache = nullptr) const;

  nn::Attention attention;
  nn::Mlp feed_forward;
  nn::LayerNorm attention_norm, ffn_norm;
  nn::Dropout dropout;
};

/// What generation keeps of the tokens seen so far: one entry per layer.
using Cache = std::vector<nn::KvCache>;

class TESSERA_API Model final : public nn::Module {
 public:
  /// Parameters lie on the meta device until nn::initialize or nn::load. ValueError: sizes that do
  /// not fit, or attention dropout.
  explicit Model(const Config& config);
  void visit(nn::Visitor& visitor) override;
  [[nodiscard]] const Config& config() const { return config_; }
  /// What is checkpointed, cast and later sharded as one: the blocks.
  [[nodiscard]] std::vector<nn::Module*> blocks();

  /// What forward needs besides tokens; make it once for batches of one length. ValueError beyond
  /// max_seq_len.
  [[nodiscard]] nn::AttentionMetadata attention_metadata(int64_t length, int64_t start = 0) const;
  /// tokens (B, T) i64 -> logits (B, T, vocabulary). The metadata's positions, where there are any,
  /// are also the rows of pos_embeddings; else token i has row start + i.
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

  nn::Embedding tok_embeddings;  // also the head
  nn::Embedding pos_embeddings;
  nn::Dropout dropout;
  std::vector<std::unique_ptr<Block>> layers;
  nn::LayerNorm norm;

 private:
  [[nodiscard]] Tensor features(const Tensor& tokens, const nn::AttentionMetadata& metadata,
                                Cache* cache = nullptr) const;  // (B, T, dim)
  [[nodiscard]] Tensor logits_of(const Tensor& x) const;        // (..., dim) -> (..., V)
  Config config_;
};

/// Floating-point operations of forward and backward per token: 6 per parameter but those of
/// positions, which do not multiply (the table counts once, as the head), and attention without
/// discount for the causal mask.
TESSERA_API double flops_per_token(Model& model, int64_t seq_len);

}  // namespace tessera::gpt2
