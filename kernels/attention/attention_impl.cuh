// SPDX-License-Identifier: Apache-2.0
// What attention's forward and backward kernels share. A block has (kTile/2)^2 threads; each works
// on a 2 x 2 piece of the tile's scores, and on 2 rows of its outputs in every (kTile/2)-th column.
// All arithmetic is f32 (f64 for f64).
#pragma once

#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/attention/device_path.h"
#include "tessera/kernels/mask/cut_into_blocks.cuh"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/vector_math.h"

namespace tessera::op {

/// f64 tiles are half as high: they must fit into a block's shared memory too.
template <class T> inline constexpr int kTile = sizeof(T) == 8 ? 16 : 32;

/// An operand as (batch, head, time, d), whatever order its dims have.
template <class T> struct Heads {
  T* p;
  int64_t batch, head, time, d;

  Heads(const Tensor& x, bool heads_inner)
      : p(static_cast<T*>(x.raw_device_data())),
        batch(x.strides()[0]),
        head(x.strides()[heads_inner ? 2 : 1]),
        time(x.strides()[heads_inner ? 1 : 2]),
        d(x.strides()[3]) {}
  __device__ T* of(int64_t b, int64_t h) const { return p + b * batch + h * head; }
};

struct AttentionSizes {
  int64_t batch, heads, kv_heads, queries, keys;
  int d, dv;
  double scale, soft_cap;
  MaskView mask;  // of tiles, each of which lies in one block of a block map

  template <class Op>
  AttentionSizes(const Op& op, const Tensor& q, const Tensor& k, const Tensor& v,
                 const MaskOperands& x)
      : mask(op, x, q.shape()[op.heads_inner ? 1 : 2], k.shape()[op.heads_inner ? 1 : 2]) {
    const int head = op.heads_inner ? 2 : 1;
    batch = q.shape()[0], heads = q.shape()[head], queries = mask.query.n;
    kv_heads = k.shape()[head], keys = mask.key.n;
    d = static_cast<int>(q.shape()[3]), dv = static_cast<int>(v.shape()[3]);
    scale = op.scale != 0 ? op.scale : 1 / std::sqrt(static_cast<double>(std::max(d, 1)));
    soft_cap = op.soft_cap;
  }
};

/// Row length of a tile in shared memory: odd, so that rows lie in different banks.
__host__ __device__ inline int tile_stride(int d) { return d | 1; }

/// Rows [first, first + rows) of one head, as C; rows at or beyond `total` are zero. All threads of
/// the block call it.
template <class C, class T>
__device__ void load_tile(C* tile, int rows, const T* head, const Heads<const T>& strides,
                          int64_t first, int64_t total, int d) {
  for (int i = threadIdx.x; i < rows * d; i += blockDim.x) {
    const int r = i / d, c = i - r * d;
    const int64_t at = first + r;
    tile[r * tile_stride(d) + c] =
        at < total ? static_cast<C>(head[at * strides.time + c * strides.d]) : C(0);
  }
}

/// weight * value + sum, where a weight of 0 takes nothing: a row of a tile that is not seen may
/// hold infinities.
template <class C> __device__ C add_product(C weight, C value, C sum) {
  return weight == C(0) ? sum : vmath::fma(weight, value, sum);
}

/// products[i][j] of rows (y + i half) of `a` and (x + j half) of `b`.
template <int kHalf, class C>
__device__ void dot_tiles(const C* a, const C* b, int y, int x, int d, C (&products)[2][2]) {
  const int ld = tile_stride(d);
  const C *a0 = a + y * ld, *a1 = a0 + kHalf * ld, *b0 = b + x * ld, *b1 = b0 + kHalf * ld;
  C p00 = 0, p01 = 0, p10 = 0, p11 = 0;
  for (int c = 0; c < d; ++c) {
    p00 = vmath::fma(a0[c], b0[c], p00);
    p01 = vmath::fma(a0[c], b1[c], p01);
    p10 = vmath::fma(a1[c], b0[c], p10);
    p11 = vmath::fma(a1[c], b1[c], p11);
  }
  products[0][0] = p00, products[0][1] = p01, products[1][0] = p10, products[1][1] = p11;
}

/// Calls f<columns>() with the number of output columns a thread holds: the smallest of a few that
/// covers d.
template <class T, class F> void with_columns(int d, F&& f) {
  constexpr int kHalf = kTile<T> / 2;
  if (d <= 64) return f.template operator()<64 / kHalf>();
  if constexpr (sizeof(T) != 8) {
    if (d <= 128) return f.template operator()<128 / kHalf>();
  }
  f.template operator()<kMostHeadSize / kHalf>();
}

/// Calls f<whether scores are capped>(): kernels of the others do not pay for it.
template <class F> void with_cap(const AttentionSizes& z, F&& f) {
  if (z.soft_cap != 0) f.template operator()<true>();
  else f.template operator()<false>();
}

/// The score of a query and a key by their product, capped if kCap.
template <class C, bool kCap> struct Score {
  C value, slope = 1;  // slope: of the score before it was capped

  __device__ Score(C product, const AttentionSizes& z) : value(product * static_cast<C>(z.scale)) {
    if constexpr (kCap) {
      const C share = vmath::tanh(value / static_cast<C>(z.soft_cap));
      value = share * static_cast<C>(z.soft_cap);
      slope = 1 - share * share;
    }
  }
};

/// Lets `kernel` use `bytes` of shared memory, above the default limit too.
template <class Kernel> void allow_shared(Kernel kernel, size_t bytes) {
  if (bytes > (48 << 10)) {
    TESSERA_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(bytes)));
  }
}

/// 16-bit operands: on tensor cores (attention_mma.cuh).
template <class T> constexpr bool kOnTensorCores = sizeof(T) == 2;
namespace mma_attention {
template <class T>
void forward(Tensors in, Outputs y, bool heads_inner, const AttentionSizes& z, Stream stream);
/// delta: (B, H, T), without dlse if it is defined, filled here if `all_keys`.
template <class T>
void backward(Tensors in, Outputs y, bool heads_inner, bool all_keys, const Tensor& lse,
              const Tensor& dlse, const Tensor& delta, const AttentionSizes& z, Stream stream);
}  // namespace mma_attention

/// cuDNN's engines, for what device_path.h gives them. False: it refused, and all outputs are still
/// to be written.
inline bool is_cudnns(const AttentionCase& c) {
  return choose_attention(c, true).path == AttentionPath::cudnn && has_cudnn();
}
namespace cudnn_attention {
struct Run {
  const AttentionCase& call;
  bool heads_inner;
  double scale;
};
bool forward(Tensors in, Outputs y, const Run& run, Stream stream);
bool backward(Tensors in, Outputs y, const Run& run, Stream stream);
}  // namespace cudnn_attention

}  // namespace tessera::op
