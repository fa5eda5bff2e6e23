// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention, fused (online softmax; Dao et al., FlashAttention-2, 2023): no T x
// T buffer. Grouped queries share a key and value head. The log-sum-exp of each row is an output,
// kept for backward; its gradient counts.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// q (B, H, T, D), k and v (B, Hkv, S, D) -> o (B, H, T, D), lse (B, H, T) in f32 (f64 for f64); H
/// a multiple of Hkv. heads_inner: q, k, v, o are (B, T, H, D) instead. causal: query i sees keys j
/// <= i + offset, where offset is the position of query 0 (S - T aligns both ends). scale 0: 1 /
/// sqrt(D). A row that sees nothing is 0, its lse -inf.
struct Attention {
  bool causal = true, heads_inner = false;
  double scale = 0;
  int64_t offset = 0;
  static constexpr std::string_view name = "scaled_dot_product_attention";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 2;
  static constexpr Saves saves = Saves::inputs() | Saves::outputs(0, 1);
  auto attributes() const { return std::tie(causal, heads_inner, scale, offset); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  Attention local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  Cost cost(Metas in, Metas out) const;
  static std::vector<Sample<Attention>> samples();
};

/// q, k, v, o, lse, dout, dlse (optional) -> dq, dk, dv.
struct AttentionBackward {
  bool causal = true, heads_inner = false;
  double scale = 0;
  int64_t offset = 0;
  static constexpr std::string_view name = "scaled_dot_product_attention_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 3;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of attention is differentiated once only; write it with matmul and "
      "softmax for more"};
  auto attributes() const { return std::tie(causal, heads_inner, scale, offset); }
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

struct AttentionOptions {
  bool causal = false;
  bool heads_inner = false;  ///< operands are (B, T, H, D)
  double scale = 0;          ///< 0: 1 / sqrt(D)
  int64_t offset = 0;        ///< position of query 0 among the keys
};
/// {o, lse}.
inline std::array<Tensor, 2> scaled_dot_product_attention_with_lse(const Tensor& q, const Tensor& k,
                                                                   const Tensor& v,
                                                                   const AttentionOptions& o = {}) {
  return call(op::Attention{o.causal, o.heads_inner, o.scale, o.offset}, {q, k, v});
}
inline Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const AttentionOptions& o = {}) {
  return scaled_dot_product_attention_with_lse(q, k, v, o)[0];
}

}  // namespace tessera
