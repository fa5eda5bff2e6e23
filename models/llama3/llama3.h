// SPDX-License-Identifier: Apache-2.0
// Llama 3 (Meta, 2024): pre-norm transformer, rotary positions, grouped heads, SwiGLU, untied
// output. Names of members and the initialisation are torchtitan's; linears are cut at three
// standard deviations.
#pragma once

#include "tessera/nn/attention.h"

namespace tessera::llama3 {

struct Config {
  int64_t dim = 4096, n_layers = 32, n_heads = 32, n_kv_heads = 8, ffn_dim = 14336;
  int64_t vocab_size = 128256, max_seq_len = 8192;
  double rope_theta = 500000, norm_eps = 1e-5;

  [[nodiscard]] int64_t head_dim() const { return dim / n_heads; }
};

/// 6 layers of 256: trains in minutes on a laptop.
TESSERA_API Config debugmodel();

/// x + attention(norm(x)), then x + feed_forward(norm(x)).
class TESSERA_API Block final : public nn::Module {
 public:
  Block(const Config& config, int64_t layer);
  void visit(nn::Visitor& visitor) override;
  [[nodiscard]] Tensor forward(const Tensor& x, const nn::AttentionMetadata& metadata) const;

  nn::Attention attention;
  nn::FeedForward feed_forward;
  nn::RmsNorm attention_norm, ffn_norm;
};

class TESSERA_API Model final : public nn::Module {
 public:
  /// Parameters lie on the meta device until nn::initialize or nn::load. ValueError: sizes that do
  /// not fit.
  explicit Model(const Config& config);
  void visit(nn::Visitor& visitor) override;
  [[nodiscard]] const Config& config() const { return config_; }

  /// What forward needs besides tokens; make it once for batches of one length. ValueError beyond
  /// max_seq_len.
  [[nodiscard]] nn::AttentionMetadata attention_metadata(int64_t length, int64_t start = 0) const;
  /// tokens (B, T) i64 -> logits (B, T, vocabulary).
  [[nodiscard]] Tensor forward(const Tensor& tokens, const nn::AttentionMetadata& metadata) const;
  [[nodiscard]] Tensor forward(const Tensor& tokens) const;

  nn::Embedding tok_embeddings;
  std::vector<std::unique_ptr<Block>> layers;
  nn::RmsNorm norm;
  nn::Linear output;

 private:
  Config config_;
};

/// Floating-point operations of forward and backward per token, as torchtitan counts them: 6 per
/// parameter outside the embedding, and attention without discount for the causal mask.
TESSERA_API double flops_per_token(Model& model, int64_t seq_len);

}  // namespace tessera::llama3
