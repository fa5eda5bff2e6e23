// SPDX-License-Identifier: Apache-2.0
// Attention with grouped heads, and rotary positions unless the model learns its own. What
// positions and mask a batch has is input data, made once outside the layers and given to each of
// them.
#pragma once

#include "tessera/kernels/attention/block_map.h"
#include "tessera/kernels/attention/mask.h"
#include "tessera/kernels/rope/rope.h"
#include "tessera/nn/layers.h"

#include <optional>
#include <vector>

namespace tessera::nn {

/// What attention needs to know of a batch besides its activations. Where a token stands for its
/// rotary embedding and for the mask are two things: packed documents count the first anew.
struct AttentionMetadata {
  /// Tables (N, head_dim / 2), f32 (f64 for f64). None where positions are not rotary.
  Tensor cos = {}, sin = {};
  /// (B, T) i64: each token's row of the tables, or of learned positions; undefined: in order.
  Tensor position_ids = {};
  int64_t start = 0;  ///< learned position of token 0
  AttentionMask mask = AttentionMask::causal();
  /// (B, T) or (T) i64: tokens of one id see each other only, besides what the mask says.
  Tensor documents = {};
  /// (B, T) or (T) i64: the place of each token in the sequence, which masks speak of; undefined:
  /// in order from 0, or behind what a cache holds.
  Tensor token_positions = {};
  BlockMap block_map = {};
};
/// Metadata of positions [start, start + length), causal. `dtype` is that of the tables.
TESSERA_API AttentionMetadata causal_metadata(int64_t length, int64_t head_dim, double rope_theta,
                                              int64_t start = 0, const RopeScaling& scaling = {},
                                              DType dtype = DType::f32);

/// Keys and values of the tokens that a layer has seen. Made for `capacity` tokens by the first
/// forward that is given it.
struct KvCache {
  int64_t capacity = 0, length = 0;
  Tensor k = {}, v = {};  ///< (B, capacity, Hkv, D)
};

/// attention(x, metadata, cache = nullptr): x (B, T, dim) -> (B, T, dim). With a cache, x are the
/// tokens after those that it holds; they are added to it. ValueError beyond its capacity, or of
/// metadata with documents or token_positions, which it does not keep; UsageError while gradients
/// are recorded.
class TESSERA_API Attention final : public Layer<Attention> {
 public:
  struct Config {
    int64_t dim = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
    Init input = Init::truncated_normal(0.02);   ///< of wq, wk and wv
    Init output = input;                         ///< of wo
    bool qkv_bias = false, output_bias = false;  ///< biases of wq, wk and wv; of wo
    bool rotary = true;        ///< queries and keys turn by the tables of the metadata
    bool rope_halves = false;  ///< pairs (x[i], x[i + D/2]), as Qwen, instead of neighbours
    double qk_norm_eps = 0;    ///< above 0: RMS norms over D of queries and keys, as Qwen 3
    /// Queries, keys and values by one product, unless something hangs on wq, wk or wv.
    bool fused_qkv = true;
    DType dtype = DType::f32;
  };
  /// ValueError if n_heads is not a multiple of n_kv_heads, or head_dim is odd but rotary.
  explicit Attention(const Config& config);
  void visit(Visitor& visitor) override;

  Linear wq, wk, wv, wo;
  std::optional<RmsNorm> q_norm, k_norm;

 private:
  friend class Layer<Attention>;
  [[nodiscard]] Tensor forward(const Tensor& x, const AttentionMetadata& metadata,
                               KvCache* cache = nullptr) const;
  [[nodiscard]] std::vector<Tensor> project(const Tensor& x) const;
  Config config_;
};

}  // namespace tessera::nn
