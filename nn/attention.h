// SPDX-License-Identifier: Apache-2.0
// Attention with grouped heads, and RoPE unless the model learns its positions. Positions and mask
// of a batch are input data, made once outside the layers and passed to each of them.
#pragma once

#include "tessera/kernels/mask/block_map.h"
#include "tessera/kernels/mask/mask.h"
#include "tessera/kernels/rope/rope.h"
#include "tessera/nn/layers.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::nn {

/// Which rows of a cache the tokens of a step take, where it holds some of a sequence's tokens.
struct CachedRows {
  int64_t begin = 0;   ///< the first; those before it are taken
  int64_t room = 0;    ///< rows of the cache, which its first use allocates
  int64_t tokens = 0;  ///< of the step, here or elsewhere
};

/// Keys and values of earlier tokens of a layer. The first forward that gets it allocates them.
struct TESSERA_API KvCache {
  int64_t capacity = 0, length = 0;  ///< tokens: at most, and so far
  Tensor k = {}, v = {};             ///< (B, capacity, Hkv, D), or rows of this rank's tokens alone
  /// Adds keys and values (B, n, Hkv, D) and sets them to all rows so far. ValueError: more tokens
  /// than the capacity; UsageError while gradients are recorded.
  void append(Tensor& new_k, Tensor& new_v, const CachedRows& rows);
  void append(Tensor& new_k, Tensor& new_v) {
    append(new_k, new_v, {.begin = length, .room = capacity, .tokens = new_k.size(1)});
  }
};

/// Attention over sequences that are cut over ranks, for the tokens of one batch and one mask.
/// context/context_parallel.h makes it, and context/generation_cut.h that of generation.
class TESSERA_API CutAttention {
 public:
  struct Options {
    double scale = 0;          ///< 0: 1 / sqrt(D)
    double soft_cap = 0;       ///< of scores, as AttentionOptions has it; 0: none
    bool lse = false;          ///< whether the log-sum-exp is wanted, for attention_sink
    KvCache* cache = nullptr;  ///< of generation: where keys and values are kept
  };
  virtual ~CutAttention() = default;
  /// q (B, T, H, D), k (B, T, Hkv, D), v (B, T, Hkv, Dv), cut alike -> {o (B, T, H, Dv), lse (B, H,
  /// T) or undefined}, cut as q.
  [[nodiscard]] virtual std::array<Tensor, 2> attend(const Tensor& q, const Tensor& k,
                                                     const Tensor& v,
                                                     const Options& options) const = 0;
};

/// Inputs of attention besides activations. A token's position for RoPE and its position for the
/// mask may differ: in packed documents the first restarts with each document.
struct AttentionMetadata {
  /// Tables (N, head_dim / 2), f32 (f64 for f64). Undefined without RoPE.
  Tensor cos = {}, sin = {};
  /// (B, T) i64: each token's row of the tables, or of learned positions; undefined: in order.
  Tensor position_ids = {};
  int64_t start = 0;  ///< learned position of token 0
  AttentionMask mask = AttentionMask::causal();
  /// (B, T) or (T) i64: tokens attend only to tokens of the same id, within the mask.
  Tensor documents = {};
  /// (B, T) or (T) i64: the position of each token in the sequence, for the mask; undefined: in
  /// order from 0, or after the tokens in the cache.
  Tensor token_positions = {};
  /// (B, T) bool: true at places that hold no token, behind the tokens of a row; undefined:
  /// nowhere. Attention does not read it, since no token sees what is behind it; routers count
  /// tokens alone.
  Tensor padding = {};
  BlockMap block_map = {};
  /// Where the sequence is cut over ranks: it knows the mask, and the tokens of all ranks. The mask
  /// and what belongs to it are not given beside it, and position_ids are those of this rank.
  std::shared_ptr<const CutAttention> cut = {};

  /// (T) or (B, T), f32 (f64 for f64): what queries are multiplied by; undefined: 1.
  Tensor query_scale = {};
  /// How many layers of the model are of this kind: the weight of their work where it is balanced.
  int64_t layers = 1;

  /// `mask`, within documents where they are given.
  [[nodiscard]] AttentionMask whole_mask() const {
    return documents.defined() ? mask & AttentionMask::document() : mask;
  }
  /// The tensors that do not depend on the batch, undefined ones too: to move all of them.
  [[nodiscard]] std::array<Tensor*, 3> tables() { return {&cos, &sin, &query_scale}; }
};
/// Metadata of positions [start, start + length), causal. `dtype` is that of the tables.
TESSERA_API AttentionMetadata causal_metadata(int64_t length, int64_t head_dim, double rope_theta,
                                              int64_t start = 0, const RopeScaling& scaling = {},
                                              DType dtype = DType::f32);

/// The query_scale of positions [start, start + length) that keeps attention sharp in contexts
/// longer than trained on (Llama 4, 2025): 1 + scale ln(1 + floor((position + 1) / floor_scale)).
TESSERA_API Tensor query_temperature(int64_t length, int64_t start, int64_t floor_scale,
                                     double scale, DType dtype = DType::f32);

/// attention(x, metadata, cache = nullptr): x (B, T, dim) -> (B, T, dim). With a cache, x are the
/// tokens after the cached ones and are appended to it. ValueError: as KvCache::append, or metadata
/// with documents or token_positions, which it does not store, or with a `cut` that is not of
/// generation; UsageError while gradients are recorded.
class TESSERA_API Attention final : public Layer<Attention> {
 public:
  struct Config {
    int64_t dim = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
    Init input = Init::truncated_normal(0.02);   ///< of wq, wk and wv
    Init output = input;                         ///< of wo
    bool qkv_bias = false, output_bias = false;  ///< biases of wq, wk and wv; of wo
    bool rotary = true;        ///< RoPE on queries and keys, by the tables of the metadata
    bool rope_halves = false;  ///< pairs (x[i], x[i + D/2]), as Qwen, instead of adjacent ones
    int64_t rotary_dim = 0;    ///< how many values of a head turn, the first ones; 0: all D
    double scale = 0;          ///< of scores; 0: 1 / sqrt(D)
    double qk_norm_eps = 0;    ///< above 0: RMS norms of queries and keys, as Qwen 3
    /// They are over all heads of a token at once, as OLMo 2's, and not over D.
    bool qk_norm_whole = false;
    double qk_norm_offset = 0;  ///< their weight_offset, 1 in Gemma 3
    /// Above 0: the same without weights and after RoPE, as Llama 4's "L2 norm".
    double qk_l2_norm_eps = 0;
    /// Above 0: scores s become soft_cap tanh(s / soft_cap), as Gemma 2's. ValueError in forward:
    /// one that AttentionOptions refuses.
    double soft_cap = 0;
    /// Queries, keys and values in one matmul, unless wq, wk or wv has hooks.
    bool fused_qkv = true;
    DType dtype = DType::f32;
  };
  /// ValueError if n_heads is not a multiple of n_kv_heads, or what turns of a head is odd or more
  /// than head_dim.
  explicit Attention(const Config& config);
  void visit(Visitor& visitor) override;
  [[nodiscard]] std::string extra_repr() const override;
  [[nodiscard]] const Config& config() const { return config_; }

  Linear wq, wk, wv, wo;
  std::optional<RmsNorm> q_norm, k_norm;

 private:
  friend class Layer<Attention>;
  [[nodiscard]] Tensor forward(const Tensor& x, const AttentionMetadata& metadata,
                               KvCache* cache = nullptr) const;
  [[nodiscard]] std::vector<Tensor> project(const Tensor& x) const;
  // Projected y (B, T, heads x D) as (B, T, heads, D), normed and turned.
  [[nodiscard]] Tensor prepared(const Tensor& y, const std::optional<RmsNorm>& norm,
                                const AttentionMetadata& metadata) const;
  [[nodiscard]] Tensor heads(const Tensor& y) const;
  Config config_;
};

}  // namespace tessera::nn
