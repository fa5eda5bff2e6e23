// SPDX-License-Identifier: Apache-2.0
// Projections, RoPE and the KV cache around the fused op.
#include "tessera/nn/attention.h"

#include "tessera/core/message.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/fused_linear.h"

#include <array>
#include <cmath>

namespace tessera::nn {
namespace {

// q (B, T, H, D) times the scale (T) or (B, T) of its tokens, rounded once.
Tensor scaled(const Tensor& q, const Tensor& scale) {
  const Tensor each = unsqueeze(unsqueeze(scale, -1), -1);  // (..., T, 1, 1)
  return cast(cast(q, scale.dtype()) * each, q.dtype());
}

// The norm of y (B, T, heads D), whose heads ranks may share, over all of them.
Tensor over_all_heads(const RmsNorm& norm, const Tensor& y) {
  if (!y.is_distributed()) return norm(y);
  const Layout shared = layout_of(y);
  Layout whole = shared;
  for (const int axis : shared.axes_of(2))
    whole = whole.with(shared.mesh().axis(axis).name, Replicate());
  return redistribute(norm(redistribute(y, whole)), shared);
}

// Where ranks share the heads of q and each has all of k, because there are fewer than ranks: as
// many copies of each head as there are ranks for it, each rank with one.
Tensor one_for_each_rank(const Tensor& k, const Tensor& q) {
  if (!q.is_distributed()) return k;
  const Layout to = layout_of(q);
  Tensor shared = k;  // (B, T, Hkv, D)
  for (const int axis : to.axes_of(2)) {
    const auto& ranks = to.mesh().axis(axis);
    if (layout_of(shared).placement(axis).kind == Placement::Kind::shard) continue;
    const Shape shape = shared.shape();
    const std::vector<Tensor> copies(static_cast<size_t>(ranks.size / shape[2]), shared);
    shared = reshape(stack(copies, 3), {shape[0], shape[1], ranks.size, shape[3]});
    shared = redistribute(shared, layout_of(shared).with(ranks.name, Shard(2)));
  }
  return shared;
}

// Queries and keys are the same tokens, except cached ones before them.
AttentionOptions options_of(const AttentionMetadata& m, const Attention::Config& c,
                            const KvCache* cache) {
  if (cache && (m.documents.defined() || m.token_positions.defined())) {
    fail<ValueError>(
        "attention",
        "a cache stores no documents or positions of its tokens: give metadata without "
        "them, and each row one document in order");
  }
  return {.mask = m.whole_mask(),
          .heads_inner = true,
          .scale = c.scale,
          .soft_cap = c.soft_cap,
          .query_start = cache ? cache->length : 0,
          .query_positions = m.token_positions,
          .key_positions = m.token_positions,
          .query_documents = m.documents,
          .key_documents = m.documents,
          .block_map = m.block_map};
}

}  // namespace

void KvCache::append(Tensor& new_k, Tensor& new_v, const CachedRows& rows) {
  if (Context::current().grad_enabled)
    fail<UsageError>("attention", "a cache is written in place: generate under NoGrad");
  if (length + rows.tokens > capacity) {
    fail<ValueError>("attention", "the cache holds ", length, " of ", counted(capacity, "token"),
                     ", and ", rows.tokens, " more do not fit");
  }
  const int64_t end = rows.begin + new_k.size(1);
  for (const auto& [kept, now] : {std::pair{&k, &new_k}, std::pair{&v, &new_v}}) {
    // After a first step that failed, another one may need other room.
    if (!kept->defined() || kept->size(1) != rows.room) {
      Shape shape = now->shape();
      shape[1] = rows.room;
      *kept = call_like(op::Fill{shape, now->dtype(), now->device(), 0}, *now);
    }
    assign_(slice(*kept, 1, {rows.begin, end}), *now);
    *now = slice(*kept, 1, {0, end});  // (B, S, Hkv, D)
  }
  length += rows.tokens;
}

AttentionMetadata causal_metadata(int64_t length, int64_t head_dim, double rope_theta,
                                  int64_t start, const RopeScaling& scaling, DType dtype) {
  auto [cos, sin] = rope_tables(length, head_dim, rope_theta, start, dtype, scaling);
  return {.cos = cos, .sin = sin, .start = start};
}

Tensor query_temperature(int64_t length, int64_t start, int64_t floor_scale, double scale,
                         DType dtype) {
  if (floor_scale < 1)
    fail<ValueError>("query_temperature", "floor_scale is ", floor_scale, ": expected 1 or more");
  std::vector<double> values;
  for (int64_t position = start; position < start + length; ++position)
    values.push_back(1 + scale * std::log1p(static_cast<double>((position + 1) / floor_scale)));
  return from_values(values, {length}, dtype);
}

Attention::Attention(const Config& c)
    : wq(c.dim, c.n_heads * c.head_dim, c.input, c.dtype, c.qkv_bias),
      wk(c.dim, c.n_kv_heads * c.head_dim, c.input, c.dtype, c.qkv_bias),
      wv(c.dim, c.n_kv_heads * c.head_dim, c.input, c.dtype, c.qkv_bias),
      wo(c.n_heads * c.head_dim, c.dim, c.output, c.dtype, c.output_bias),
      config_(c) {
  if (c.n_kv_heads < 1 || c.n_heads % c.n_kv_heads != 0) {
    fail<ValueError>("attention", "n_heads ", c.n_heads, " is not a multiple of n_kv_heads ",
                     c.n_kv_heads);
  }
  if (c.head_dim < 1) fail<ValueError>("attention", "head_dim ", c.head_dim, " is not positive");
  if (c.rotary && c.rotary_dim == 0 && c.head_dim % 2 != 0) {
    fail<ValueError>("attention", "head_dim ", c.head_dim,
                     " is not even, but RoPE rotates pairs: set rotary to false, or rotary_dim");
  }
  if (c.rotary_dim % 2 != 0 || c.rotary_dim < 0 || c.rotary_dim > c.head_dim) {
    fail<ValueError>("attention", "rotary_dim ", c.rotary_dim,
                     " is not an even number of values of a head of ", c.head_dim);
  }
  if (c.qk_norm_eps > 0) {
    const auto norm = [&](int64_t n) {
      return RmsNorm::Config{.dim = c.qk_norm_whole ? n * c.head_dim : c.head_dim,
                             .eps = c.qk_norm_eps,
                             .weight_offset = c.qk_norm_offset,
                             .dtype = c.dtype};
    };
    q_norm.emplace(norm(c.n_heads));
    k_norm.emplace(norm(c.n_kv_heads));
  }
}

void Attention::visit(Visitor& visitor) {
  visitor.child("wq", wq);
  visitor.child("wk", wk);
  visitor.child("wv", wv);
  visitor.child("wo", wo);
  if (!q_norm) return;
  visitor.child("q_norm", *q_norm);
  visitor.child("k_norm", *k_norm);
}

std::string Attention::extra_repr() const {
  return concat("n_heads=", config_.n_heads, ", n_kv_heads=", config_.n_kv_heads,
                ", head_dim=", config_.head_dim);
}

Tensor Attention::heads(const Tensor& y) const {
  return reshape(y, {y.size(0), y.size(1), y.size(2) / config_.head_dim, config_.head_dim});
}

Tensor Attention::prepared(const Tensor& y, const std::optional<RmsNorm>& norm,
                           const AttentionMetadata& metadata) const {
  const bool whole = norm && config_.qk_norm_whole;
  Tensor z = heads(whole ? over_all_heads(*norm, y) : y);  // (B, T, heads, D)
  if (norm && !whole) z = (*norm)(z);
  if (config_.rotary) {
    z = rope(z, metadata.cos, metadata.sin,
             {.halves = config_.rope_halves,
              .rotary = config_.rotary_dim,
              .positions = metadata.position_ids});
  }
  return config_.qk_l2_norm_eps > 0 ? rms_norm(z, config_.qk_l2_norm_eps) : z;
}

Tensor Attention::forward(const Tensor& x, const AttentionMetadata& metadata,
                          KvCache* cache) const {
  if (x.rank() != 3) fail<ShapeError>("attention", "x is ", x.meta(), ", expected (B, T, dim)");
  const std::vector<Tensor> qkv = project(x);
  Tensor q = prepared(qkv[0], q_norm, metadata);  // (B, T, H, D)
  Tensor k = prepared(qkv[1], k_norm, metadata);  // (B, T, Hkv, D)
  Tensor v = heads(qkv[2]);                       // (B, T, Hkv, D)
  if (metadata.query_scale.defined()) q = scaled(q, metadata.query_scale);
  // A copy for backward: with new q and k, a view would keep the bytes of all three.
  if (config_.rotary || q_norm) v = contiguous(v);
  const AttentionOptions options = options_of(metadata, config_, cache);
  if (cache && !metadata.cut) cache->append(k, v);
  k = one_for_each_rank(k, q);
  v = one_for_each_rank(v, q);
  const CutAttention::Options of_cut{
      .scale = config_.scale, .soft_cap = config_.soft_cap, .cache = cache};
  const Tensor y = metadata.cut ? metadata.cut->attend(q, k, v, of_cut)[0]
                                : scaled_dot_product_attention(q, k, v, options);
  return wo(reshape(y, {x.size(0), x.size(1), config_.n_heads * config_.head_dim}));
}

std::vector<Tensor> Attention::project(const Tensor& x) const {
  bool apart = !config_.fused_qkv;
  for (const Linear* m : {&wq, &wk, &wv}) apart = apart || m->is_wrapped();
  if (wq.weight.is_distributed())
    apart = apart || layout_of(wq.weight) != layout_of(wk.weight);  // key heads are copied
  if (apart) return {wq(x), wk(x), wv(x)};
  const std::array<Tensor, 3> weights{wq.weight, wk.weight, wv.weight};
  if (!wq.bias.defined()) return fused_linear(x, weights);
  const std::array<Tensor, 3> biases{wq.bias, wk.bias, wv.bias};
  return fused_linear(x, weights, biases);
}

}  // namespace tessera::nn
