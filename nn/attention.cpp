// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/attention.h"

#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/rope/rope.h"
#include "tessera/kernels/views/views.h"

namespace tessera::nn {

AttentionMetadata causal_metadata(int64_t length, int64_t head_dim, double rope_theta,
                                  int64_t start) {
  auto [cos, sin] = rope_tables(length, head_dim, rope_theta, start);
  return {cos, sin, true};
}

Attention::Attention(const Config& c)
    : wq(c.dim, c.n_heads * c.head_dim, c.input, c.dtype),
      wk(c.dim, c.n_kv_heads * c.head_dim, c.input, c.dtype),
      wv(c.dim, c.n_kv_heads * c.head_dim, c.input, c.dtype),
      wo(c.n_heads * c.head_dim, c.dim, c.output, c.dtype),
      config_(c) {
  if (c.n_kv_heads < 1 || c.n_heads % c.n_kv_heads != 0) {
    fail<ValueError>("attention", "n_heads ", c.n_heads, " is not a multiple of n_kv_heads ",
                     c.n_kv_heads);
  }
  if (c.head_dim < 2 || c.head_dim % 2 != 0) {
    fail<ValueError>("attention", "head_dim ", c.head_dim,
                     " is not even, but rotary positions turn pairs");
  }
}

void Attention::visit(Visitor& visitor) {
  visitor.child("wq", wq);
  visitor.child("wk", wk);
  visitor.child("wv", wv);
  visitor.child("wo", wo);
}

Tensor Attention::forward(const Tensor& x, const AttentionMetadata& metadata) const {
  const ModuleScope here = scope();
  if (x.rank() != 3) fail<ShapeError>("attention", "x is ", x.meta(), ", expected (B, T, dim)");
  const int64_t b = x.size(0), t = x.size(1), d = config_.head_dim;
  const auto heads = [&](const Tensor& y, int64_t n) { return reshape(y, {b, t, n, d}); };
  const Tensor q =
      rope(heads(wq.forward(x), config_.n_heads), metadata.cos, metadata.sin);  // (B, T, H, D)
  const Tensor k =
      rope(heads(wk.forward(x), config_.n_kv_heads), metadata.cos, metadata.sin);  // (B, T, Hkv, D)
  const Tensor v = heads(wv.forward(x), config_.n_kv_heads);                       // (B, T, Hkv, D)
  const Tensor y =
      scaled_dot_product_attention(q, k, v, {.causal = metadata.causal, .heads_inner = true});
  return wo.forward(reshape(y, {b, t, config_.n_heads * d}));
}

}  // namespace tessera::nn
