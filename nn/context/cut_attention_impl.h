// SPDX-License-Identifier: Apache-2.0
// What a rank's queries see of whose keys, and attention by it. Made by SequenceCut, once for a
// batch and mask, and shared by the layers.
#pragma once

#include "tessera/kernels/attention/attention.h"
#include "tessera/nn/context/context_parallel.h"

namespace tessera::nn {

/// Keys [begin, end) of a source, of which a query sees some, and the mask between them.
struct KeyPiece {
  int64_t begin = 0, end = 0;
  AttentionOptions options = {};
};
/// The keys of one rank of the ring, or all keys. Pieces that no query sees are left out.
struct KeySource {
  int64_t keys = 0;
  std::vector<KeyPiece> pieces = {};
};
struct AttentionPlan {
  int64_t queries = 0;                  ///< after heads are exchanged
  std::vector<KeySource> sources = {};  ///< by their place in the ring; one: all keys, in order
  /// (b * T) i64: the rows of (b * T, ...) keys of all parts, by the order of the sequence, and the
  /// inverse; undefined: they are in order.
  Tensor key_rows = {}, token_rows = {};
};

namespace detail {

/// The scale and the soft cap of a layer's scores.
struct ScoreOptions {
  double scale = 0, soft_cap = 0;
  explicit ScoreOptions(const CutAttention::Options& o) : scale(o.scale), soft_cap(o.soft_cap) {}
  /// `o` with these.
  [[nodiscard]] AttentionOptions of(AttentionOptions o) const {
    o.scale = scale, o.soft_cap = soft_cap;
    return o;
  }
};

/// Whether a method exchanges heads for the sequence, on its last axis.
bool exchanges_heads(ContextMethod method);
/// Whether keys go round, on its first axis; otherwise a rank has all of them, of some heads or
/// all.
bool goes_round(ContextMethod method);

/// Attention of q (b, t, h, d) to keys and values (b, s, hkv, d) that go round `axis` of `mesh`,
/// where rank r has those of plan->sources[r]. Backward sends them round again.
std::array<Tensor, 2> ring_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                     std::shared_ptr<const AttentionPlan> plan, Mesh mesh, int axis,
                                     const ScoreOptions& scores);

/// Attention of q (b, t, h, d) to keys and values (b, s, hkv, d) of which each rank of `axis` has
/// its part. Backward gathers them again.
std::array<Tensor, 2> gathered_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                         std::shared_ptr<const AttentionPlan> plan, Mesh mesh,
                                         const std::string& axis, const ScoreOptions& scores);

/// How the log-sum-exp (B, H, T) of queries (B, T, H, D) of `layout` lies.
Layout lse_layout(Layout layout);

/// Attention of tensors that lie as `layout`, by `plan`.
std::shared_ptr<const CutAttention> cut_attention(const ContextParallelOptions& options,
                                                  Layout layout, const Shape& tokens,
                                                  std::shared_ptr<const AttentionPlan> plan);

}  // namespace detail
}  // namespace tessera::nn
