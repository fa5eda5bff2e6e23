// SPDX-License-Identifier: Apache-2.0
// Attention with rotary positions and grouped heads. What positions and mask a batch has is input
// data, made once outside the layers and given to each of them.
#pragma once

#include "tessera/nn/layers.h"

namespace tessera::nn {

/// What attention needs to know of a batch besides its activations.
struct AttentionMetadata {
  Tensor cos, sin;     ///< (T, head_dim / 2) f32, of the positions of the T tokens
  bool causal = true;  ///< a token sees itself and what came before
};
/// Metadata of positions [start, start + length), causal.
TESSERA_API AttentionMetadata causal_metadata(int64_t length, int64_t head_dim, double rope_theta,
                                              int64_t start = 0);

/// x (B, T, dim) -> (B, T, dim).
class TESSERA_API Attention final : public Module {
 public:
  struct Config {
    int64_t dim = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
    Init input = Init::truncated_normal(0.02);  ///< of wq, wk and wv
    Init output = input;                        ///< of wo
    bool fused_qkv = true;  ///< queries, keys and values by one product; names stay the same
    DType dtype = DType::f32;
  };
  /// ValueError if n_heads is not a multiple of n_kv_heads or head_dim is odd.
  explicit Attention(const Config& config);
  void visit(Visitor& visitor) override;
  [[nodiscard]] Tensor forward(const Tensor& x, const AttentionMetadata& metadata) const;

  Linear wq, wk, wv, wo;

 private:
  [[nodiscard]] std::vector<Tensor> project(const Tensor& x) const;
  Config config_;
};

}  // namespace tessera::nn
