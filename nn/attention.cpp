// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/attention.h"

#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/rope/rope.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/fused_linear.h"

#include <array>

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
  if (x.rank() != 3) fail<ShapeError>("attention", "x is ", x.meta(), ", expected (B, T, dim)");
  return run(x, [this, metadata](const Tensor& in) {
    const int64_t b = in.size(0), t = in.size(1), d = config_.head_dim;
    const auto heads = [&](const Tensor& y, int64_t n) { return reshape(y, {b, t, n, d}); };
    const std::vector<Tensor> qkv = project(in);
    const Tensor q =
        rope(heads(qkv[0], config_.n_heads), metadata.cos, metadata.sin);  // (B, T, H, D)
    const Tensor k =
        rope(heads(qkv[1], config_.n_kv_heads), metadata.cos, metadata.sin);  // (B, T, Hkv, D)
    const Tensor v = heads(qkv[2], config_.n_kv_heads);                       // (B, T, Hkv, D)
    const Tensor y =
        scaled_dot_product_attention(q, k, v, {.causal = metadata.causal, .heads_inner = true});
    return wo.forward(reshape(y, {b, t, config_.n_heads * d}));
  });
}

std::vector<Tensor> Attention::project(const Tensor& x) const {
  if (!config_.fused_qkv) return {wq.forward(x), wk.forward(x), wv.forward(x)};
  const std::array<Tensor, 3> weights{wq.weight, wk.weight, wv.weight};
  return fused_linear(x, weights);
}

}  // namespace tessera::nn
