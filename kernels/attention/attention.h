// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention, fused (online softmax; Dao et al., FlashAttention-2, 2023): no T x
// T buffer. Grouped queries share a key and value head. Every mask is a range of keys for each
// query, and their AND the common part of the ranges, so masks make it faster. The log-sum-exp of
// each row is an output, kept for backward; its gradient counts.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// q (B, H, T, D), k and v (B, Hkv, S, D), positions (B, T) i64 (optional) -> o (B, H, T, D), lse
/// (B, H, T) in f32 (f64 for f64); H a multiple of Hkv. heads_inner: q, k, v, o are (B, T, H, D)
/// instead. scale 0: 1 / sqrt(D). offset: the index of query 0 among the keys (S - T aligns both
/// ends). Query i sees key j if all of these hold:
///   causal        j <= i + offset
///   window w > 0  j > i + offset - w: the last w keys, its own among them
///   chunk c > 0   j and i + offset lie in one chunk of c keys (Llama 4, 2025)
///   positions     j lies in the document of query i, which starts positions[b][i] keys before it
/// window and chunk need causal. Without causal, positions must cover the keys: offset 0, S <= T.
/// key_start: key 0 is that key of the whole sequence, where a rank holds later keys; chunks count
/// from there, and a document may have started earlier. A row that sees nothing is 0, its lse -inf.
/// ValueError: a position that is neither 0 nor one more than the last, or lies before the keys.
/// CUDA gives NaN in such a row.
struct Attention {
  bool causal = true, heads_inner = false;
  double scale = 0;
  int64_t offset = 0, window = 0, chunk = 0, key_start = 0;
  static constexpr std::string_view name = "scaled_dot_product_attention";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 2;
  static constexpr Saves saves = Saves::inputs() | Saves::outputs(0, 1);
  auto attributes() const {
    return std::tie(causal, heads_inner, scale, offset, window, chunk, key_start);
  }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  Attention local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  Cost cost(Metas in, Metas out) const;
  static std::vector<Sample<Attention>> samples();
};

/// q, k, v, o, lse, dout, dlse (optional), positions (optional) -> dq, dk, dv. The positions have
/// been checked by the forward op.
struct AttentionBackward {
  bool causal = true, heads_inner = false;
  double scale = 0;
  int64_t offset = 0, window = 0, chunk = 0, key_start = 0;
  static constexpr std::string_view name = "scaled_dot_product_attention_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 3;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of attention is differentiated once only; write it with matmul and "
      "softmax for more"};
  auto attributes() const {
    return std::tie(causal, heads_inner, scale, offset, window, chunk, key_start);
  }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  AttentionBackward local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Cost cost(Metas in, Metas out) const;
  static std::vector<Sample<AttentionBackward>> samples();
};

using attention_ops = OpList<Attention, AttentionBackward>;

}  // namespace op

/// Which keys a query sees: all conditions at once. op::Attention says what each means.
struct AttentionOptions {
  bool causal = false;
  bool heads_inner = false;  ///< operands are (B, T, H, D)
  double scale = 0;          ///< 0: 1 / sqrt(D)
  int64_t offset = 0;        ///< index of query 0 among the keys
  int64_t window = 0;        ///< causal: the last `window` keys only; 0: all
  int64_t chunk = 0;         ///< causal: keys of the same chunk of this many; 0: all
  Tensor positions = {};     ///< (B, T) i64, 0 where a document starts: keys of the document only
};
/// {o, lse}.
TESSERA_API std::array<Tensor, 2> scaled_dot_product_attention_with_lse(
    const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o = {});
inline Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const AttentionOptions& o = {}) {
  return scaled_dot_product_attention_with_lse(q, k, v, o)[0];
}

/// Adds to each row's softmax a logit that belongs to no key (Xiao et al., attention sinks, 2023;
/// gpt_oss): o and lse as attention gave them, sink (H) -> o * sigmoid(lse - sink), like o, which
/// is (B, T, H, D) if heads_inner. The gradient reaches sink, and k and q through lse. ShapeError,
/// DTypeError.
TESSERA_API Tensor attention_sink(const Tensor& o, const Tensor& lse, const Tensor& sink,
                                  bool heads_inner = false);

}  // namespace tessera
