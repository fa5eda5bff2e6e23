// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention, fused (online softmax; Dao et al., FlashAttention-2, 2023): no T x
// T buffer. Grouped queries share a key and value head. The log-sum-exp of each row is an output,
// kept for backward; its gradient counts.
//
// All conditions of a mask are on global positions and document ids, which are operands: a cut or
// reordered sequence needs only its part of them. Positions that are not given count up from
// query_start and key_start. These two numbers are attributes, so that the usual call has no index
// tensor to make, place and read, and a KV cache no operand that changes; a piece of a distributed
// call adds to them where its queries and keys begin.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/attention/sink.h"
#include "tessera/kernels/mask/block_map.h"
#include "tessera/kernels/mask/mask.h"

#include <optional>

namespace tessera {
namespace op {

/// q (B, H, T, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv) -> o (B, H, T, Dv), lse (B, H, T) in f32
/// (f64 for f64); H a multiple of Hkv. heads_inner: q, k, v, o are (B, T, H, D) and so on instead.
/// scale 0: 1 / sqrt(D). soft_cap above 0: a score s = scale q.k counts as soft_cap tanh(s /
/// soft_cap), before the mask (Gemma 2, 2024). More inputs, each optional:
///   3, 4  positions of queries (B, T) or (T) and of keys (B, S) or (S), i64
///   5, 6  document ids of queries and of keys, in the same shapes: where the mask asks for them
///   7, 8  blocks and bits of a block map (block_map.h), which has the last word on its blocks
/// Keys in order of their positions, and documents in order of their ids, are fastest: the mask is
/// a range of keys for each query then. A row that sees nothing is 0, its lse -inf. An inf or NaN
/// that a row does not see may make it NaN (0 * inf) on the CPU, and on a device for operands of 16
/// bits, if its block of 64 queries sees that block of 64 keys: zero such values first. A device
/// takes D and Dv of up to 256; device_path.h says by which kernels. ShapeError,
/// DTypeError, ValueError: what does not fit, a soft_cap that is neither 0 nor from 1e-30 to 1e30,
/// and a block map that names bits that are not there (CUDA gives NaN in such rows).
struct Attention {
  AttentionMask mask = {};
  bool heads_inner = false;
  double scale = 0;
  int64_t query_start = 0, key_start = 0;  // positions of query 0 and key 0 where none are given
  double soft_cap = 0;
  static constexpr size_t mask_operands = 3;  // the place of the first of masks' inputs
  static constexpr std::string_view name = "scaled_dot_product_attention";
  static constexpr bool expensive = true;
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 2;
  static constexpr Saves saves = Saves::inputs() | Saves::outputs(0, 1);
  auto attributes() const {
    return std::tie(mask, heads_inner, scale, query_start, key_start, soft_cap);
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

/// q, k, v, o, lse, dout, dlse (optional) and the six optional inputs of Attention -> dq, dk, dv.
/// The gradient of a score is p (dp - delta), with p its softmax, dp = dout v' and delta the row's
/// sum of p dp. That is also the sum of dout o, but o is rounded to its dtype: in bf16 the
/// difference is wrong where p is nearly 1. Of a capped score c it is 1 - (c / soft_cap)^2 times
/// that. `all_keys`: k and v hold all keys that lse is of, so
/// that delta is the sum of p dp, and o is not read; cuDNN reads it all the same.
struct AttentionBackward {
  AttentionMask mask = {};
  bool heads_inner = false;
  double scale = 0;
  int64_t query_start = 0, key_start = 0;
  bool all_keys = false;
  double soft_cap = 0;
  static constexpr size_t mask_operands = 7;
  static constexpr std::string_view name = "scaled_dot_product_attention_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 3;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of attention is differentiated once only; write it with matmul and "
      "softmax for more"};
  auto attributes() const {
    return std::tie(mask, heads_inner, scale, query_start, key_start, all_keys, soft_cap);
  }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  AttentionBackward local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Cost cost(Metas in, Metas out) const;
  int64_t workspace(Metas in, Device device) const;
  static std::vector<Sample<AttentionBackward>> samples();
};

using attention_ops = OpList<Attention, AttentionBackward, AttentionSink, AttentionSinkBackward>;

}  // namespace op

/// Which keys a query sees, and how operands lie. op::Attention says what each means.
struct AttentionOptions {
  AttentionMask mask = {};   ///< all keys; AttentionMask::causal() for those before
  bool heads_inner = false;  ///< operands are (B, T, H, D)
  double scale = 0;          ///< 0: 1 / sqrt(D)
  /// Above 0: scores s become soft_cap tanh(s / soft_cap) before the mask, as Gemma 2's attention
  /// logits do; lse is of these. 0: none. ValueError: neither 0 nor from 1e-30 to 1e30.
  double soft_cap = 0;
  /// Position of query 0 where query_positions are not given: with a KV cache, the number of tokens
  /// that it held before. Default: 0. ValueError: the default with a mask that has causal() and
  /// more keys than queries, since queries after cached keys would not see the last of them.
  std::optional<int64_t> query_start = {};
  int64_t key_start = 0;  ///< position of key 0 where key_positions are not given
  Tensor query_positions = {}, key_positions = {};  ///< (B, T) or (T), (B, S) or (S), i64
  Tensor query_documents = {}, key_documents = {};  ///< the same, of a mask with document()
  BlockMap block_map = {};  ///< a block that it calls full, or gives bits, does not ask the mask
};
/// {o, lse}.
TESSERA_API std::array<Tensor, 2> scaled_dot_product_attention_with_lse(
    const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o = {});
inline Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const AttentionOptions& o = {}) {
  return scaled_dot_product_attention_with_lse(q, k, v, o)[0];
}

}  // namespace tessera
