// SPDX-License-Identifier: Apache-2.0
// CUDA attention, backward. With p = exp(s - lse), dp = dout v' and delta = sum(dout o) - dlse, or
// with all keys sum(p dp) - dlse: ds = p (dp - delta). One kernel per side (a block owns a tile of
// queries, or of keys), so nothing is added atomically.
#include "tessera/kernels/attention/attention_impl.cuh"

namespace tessera::op {
namespace {

// delta of every row; a warp per row.
template <class T>
__global__ void delta_kernel(Heads<const T> o, Heads<const T> dout, const compute_t<T>* dlse,
                             compute_t<T>* delta, AttentionSizes z) {
  using C = compute_t<T>;
  const int64_t rows = z.batch * z.heads * z.queries;
  const int lane = threadIdx.x % 32;
  for (int64_t row = first_item() / 32; row < rows; row += item_step() / 32) {
    const int64_t query = row % z.queries, head = row / z.queries % z.heads,
                  b = row / z.queries / z.heads;
    const T *a = o.of(b, head) + query * o.time, *g = dout.of(b, head) + query * dout.time;
    C sum = 0;
    for (int c = lane; c < z.dv; c += 32)
      sum = vmath::fma(static_cast<C>(a[c * o.d]), static_cast<C>(g[c * dout.d]), sum);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) delta[row] = sum - (dlse ? dlse[row] : C(0));
  }
}

// What both sides read, and one side's part of shared memory.
template <class T> struct Operands {
  Heads<const T> q, k, v, dout;
  const compute_t<T>*lse, *delta;
};

template <class C, int kRows> struct Tiles {
  static constexpr int kPitch = kRows + 1;
  C *q, *k;        // (kRows, d)
  C *v, *dout;     // (kRows, dv)
  C *p, *ds;       // (kRows queries, kRows keys)
  C *lse, *delta;  // (kRows)

  __device__ Tiles(unsigned char* bytes, int d, int dv) {
    const int tile = kRows * tile_stride(d), v_tile = kRows * tile_stride(dv);
    q = reinterpret_cast<C*>(bytes), k = q + tile, v = k + tile, dout = v + v_tile;
    p = dout + v_tile, ds = p + kRows * kPitch;
    lse = ds + kRows * kPitch, delta = lse + kRows;
  }
  static size_t bytes(int d, int dv) {
    return static_cast<size_t>(2 * kRows * (tile_stride(d) + tile_stride(dv)) + 2 * kRows * kPitch +
                               2 * kRows) *
           sizeof(C);
  }
  template <class T>
  __device__ void load_queries(const Operands<T>& in, const AttentionSizes& z, int64_t b,
                               int64_t head, int64_t first) {
    load_tile(q, kRows, in.q.of(b, head), in.q, first, z.queries, z.d);
    load_tile(dout, kRows, in.dout.of(b, head), in.dout, first, z.queries, z.dv);
    for (int i = threadIdx.x; i < kRows; i += blockDim.x) {
      const int64_t row = (b * z.heads + head) * z.queries + first + i;
      const bool inside = first + i < z.queries;
      lse[i] = inside ? in.lse[row] : minus_infinity<C>();
      delta[i] = inside && in.delta ? in.delta[row] : C(0);
    }
  }
  template <class T>
  __device__ void load_keys(const Operands<T>& in, const AttentionSizes& z, int64_t b,
                            int64_t kv_head, int64_t first) {
    load_tile(k, kRows, in.k.of(b, kv_head), in.k, first, z.keys, z.d);
    load_tile(v, kRows, in.v.of(b, kv_head), in.v, first, z.keys, z.dv);
  }
  // Fills p and ds from the loaded tiles; where scores are capped, ds is the gradient before that,
  // or, if kOfCapped, after it.
  template <bool kCap, bool kOfCapped = false>
  __device__ void probabilities(const AttentionSizes& z, const BlockSeen& seen, int64_t b,
                                int64_t first_query, int64_t first_key) {
    constexpr int kHalf = kRows / 2;
    const int x = threadIdx.x % kHalf, y = threadIdx.x / kHalf;
    C scores[2][2], gradients[2][2];
    dot_tiles<kHalf>(q, k, y, x, z.d, scores);
    dot_tiles<kHalf>(dout, v, y, x, z.dv, gradients);
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) {
        const int row = y + i * kHalf, column = x + j * kHalf;
        const bool counts = lse[row] != minus_infinity<C>() &&
                            z.mask.sees(seen, b, first_query + row, first_key + column);
        const Score<C, kCap> score(scores[i][j], z);
        const C weight = counts ? vmath::exp(score.value - lse[row]) : C(0);
        p[row * kPitch + column] = weight;
        C pull = gradients[i][j] - delta[row];
        if constexpr (kCap && !kOfCapped) pull *= score.slope;
        ds[row * kPitch + column] = counts ? weight * pull : C(0);
      }
    }
  }
};

// delta of every row by p dp; `in` has none yet. A block owns a tile of queries.
template <class T, bool kCap>
__global__ void __launch_bounds__(kTile<T>* kTile<T> / 4)
    weighted_delta_kernel(Operands<T> in, const compute_t<T>* dlse, compute_t<T>* delta,
                          AttentionSizes z) {
  using C = compute_t<T>;
  constexpr int kRows = kTile<T>, kPitch = kRows + 1;
  unsigned char* bytes = launch_shared();
  Tiles<C, kRows> tiles(bytes, z.d, z.dv);
  const int64_t count = ceil_div(z.queries, kRows), first = blockIdx.x % count * kRows;
  const int64_t head = blockIdx.x / count % z.heads, b = blockIdx.x / count / z.heads;
  const int64_t kv_head = head / (z.heads / z.kv_heads);
  const bool sums = threadIdx.x < kRows && first + threadIdx.x < z.queries;

  tiles.load_queries(in, z, b, head, first);
  C sum = 0;
  for (int64_t key = 0; key < z.keys; key += kRows) {
    const BlockSeen seen = z.mask.block(b, first, key);
    if (seen.by == BlockSeen::kNothing) continue;
    __syncthreads();
    tiles.load_keys(in, z, b, kv_head, key);
    __syncthreads();
    tiles.template probabilities<kCap, true>(z, seen, b, first, key);
    __syncthreads();
    for (int j = 0; sums && j < kRows; ++j) sum += tiles.ds[threadIdx.x * kPitch + j];
  }
  if (!sums) return;
  const int64_t row = (b * z.heads + head) * z.queries + first + threadIdx.x;
  delta[row] = sum - (dlse ? dlse[row] : C(0));
}

template <class T, int kColumns, bool kCap>
__global__ void __launch_bounds__(kTile<T>* kTile<T> / 4)
    query_kernel(Operands<T> in, Heads<T> dq, AttentionSizes z) {
  using C = compute_t<T>;
  constexpr int kRows = kTile<T>, kHalf = kRows / 2, kPitch = kRows + 1;
  unsigned char* bytes = launch_shared();
  Tiles<C, kRows> tiles(bytes, z.d, z.dv);
  const int ld = tile_stride(z.d), x = threadIdx.x % kHalf, y = threadIdx.x / kHalf;
  const int64_t count = ceil_div(z.queries, kRows), tile = count - 1 - blockIdx.x % count;
  const int64_t head = blockIdx.x / count % z.heads, b = blockIdx.x / count / z.heads;
  const int64_t kv_head = head / (z.heads / z.kv_heads), first = tile * kRows;

  tiles.load_queries(in, z, b, head, first);
  C acc[2][kColumns] = {};
  for (int64_t key = 0; key < z.keys; key += kRows) {
    const BlockSeen seen = z.mask.block(b, first, key);
    if (seen.by == BlockSeen::kNothing) continue;
    __syncthreads();
    tiles.load_keys(in, z, b, kv_head, key);
    __syncthreads();
    tiles.template probabilities<kCap>(z, seen, b, first, key);
    __syncthreads();
    for (int j = 0; j < kRows; ++j) {
      const C g0 = tiles.ds[y * kPitch + j], g1 = tiles.ds[(y + kHalf) * kPitch + j];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = x + c * kHalf;
        if (column < z.d) {
          const C value = tiles.k[j * ld + column];
          acc[0][c] = add_product(g0, value, acc[0][c]);
          acc[1][c] = add_product(g1, value, acc[1][c]);
        }
      }
    }
  }
  T* out = dq.of(b, head);
  for (int i = 0; i < 2; ++i) {
    const int64_t query = first + y + i * kHalf;
    if (query >= z.queries) continue;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = x + c * kHalf;
      if (column < z.d)
        out[query * dq.time + column * dq.d] = static_cast<T>(acc[i][c] * static_cast<C>(z.scale));
    }
  }
}

template <class T, int kColumns, bool kCap>
__global__ void __launch_bounds__(kTile<T>* kTile<T> / 4)
    key_kernel(Operands<T> in, Heads<T> dk, Heads<T> dv, AttentionSizes z) {
  using C = compute_t<T>;
  constexpr int kRows = kTile<T>, kHalf = kRows / 2, kPitch = kRows + 1;
  unsigned char* bytes = launch_shared();
  Tiles<C, kRows> tiles(bytes, z.d, z.dv);
  const int ld = tile_stride(z.d), ldv = tile_stride(z.dv);
  const int x = threadIdx.x % kHalf, y = threadIdx.x / kHalf;
  const int64_t count = ceil_div(z.keys, kRows), first = blockIdx.x % count * kRows;
  const int64_t kv_head = blockIdx.x / count % z.kv_heads, b = blockIdx.x / count / z.kv_heads;
  const int64_t group = z.heads / z.kv_heads;

  tiles.load_keys(in, z, b, kv_head, first);
  C key_acc[2][kColumns] = {}, value_acc[2][kColumns] = {};
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t query = 0; query < z.queries; query += kRows) {
      const BlockSeen seen = z.mask.block(b, query, first);
      if (seen.by == BlockSeen::kNothing) continue;
      __syncthreads();
      tiles.load_queries(in, z, b, head, query);
      __syncthreads();
      tiles.template probabilities<kCap>(z, seen, b, query, first);
      __syncthreads();
      for (int i = 0; i < kRows; ++i) {
        const C p0 = tiles.p[i * kPitch + y], p1 = tiles.p[i * kPitch + y + kHalf];
        const C g0 = tiles.ds[i * kPitch + y], g1 = tiles.ds[i * kPitch + y + kHalf];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int column = x + c * kHalf;
          if (column < z.dv) {
            const C dout = tiles.dout[i * ldv + column];
            value_acc[0][c] = add_product(p0, dout, value_acc[0][c]);
            value_acc[1][c] = add_product(p1, dout, value_acc[1][c]);
          }
          if (column < z.d) {
            const C q = tiles.q[i * ld + column];
            key_acc[0][c] = add_product(g0, q, key_acc[0][c]);
            key_acc[1][c] = add_product(g1, q, key_acc[1][c]);
          }
        }
      }
    }
  }
  T *k_out = dk.of(b, kv_head), *v_out = dv.of(b, kv_head);
  for (int i = 0; i < 2; ++i) {
    const int64_t key = first + y + i * kHalf;
    if (key >= z.keys) continue;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = x + c * kHalf;
      if (column < z.d) {
        k_out[key * dk.time + column * dk.d] =
            static_cast<T>(key_acc[i][c] * static_cast<C>(z.scale));
      }
      if (column < z.dv) {
        v_out[key * dv.time + column * dv.d] = static_cast<T>(value_acc[i][c]);
      }
    }
  }
}

}  // namespace

void AttentionBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  const MaskOperands masks(in, mask_operands);
  AttentionSizes z(*this, in[0], in[1], in[2], masks);
  const AttentionCase c = attention_case(*this, MetaArray(in));
  if (is_cudnns(c) && cudnn_attention::backward(in, y, {c, heads_inner, z.scale}, stream)) return;
  const Tensor lse = row_major(in[4], stream);
  const Tensor dlse = in.size() > 6 && in[6].defined() ? row_major(in[6], stream) : Tensor();
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const auto heads = [&](size_t i) { return Heads<const T>(in[i], heads_inner); };
    const Tensor delta = empty(lse.shape(), dtype_of<C>, lse.device());  // (B, H, T)
    const C* dlses = dlse.defined() ? dlse.device_data<C>() : nullptr;
    if (delta.numel() > 0 && !all_keys) {
      launch(delta_kernel<T>, blocks_for(delta.numel(), kThreads / 32), kThreads, 0, stream,
             heads(3), heads(5), dlses, delta.device_data<C>(), z);
    }
    if constexpr (kOnTensorCores<T>) {
      const auto kept = cut_into_blocks(z.mask, kAttentionBlock, masks, stream);
      mma_attention::backward<T>(in, y, heads_inner, all_keys, lse, dlse, delta, z, stream);
    } else {
      constexpr int kRows = kTile<T>;
      Operands<T> operands{heads(0), heads(1), heads(2), heads(5), lse.device_data<C>(), nullptr};
      const size_t bytes = Tiles<C, kRows>::bytes(z.d, z.dv);
      const auto kept = cut_into_blocks(z.mask, kRows, masks, stream);
      with_cap(z, [&]<bool kCap>() {
        if (delta.numel() > 0 && all_keys) {
          const auto kernel = weighted_delta_kernel<T, kCap>;
          allow_shared(kernel, bytes);
          const int64_t blocks = ceil_div(z.queries, kRows) * z.heads * z.batch;
          launch(kernel, static_cast<unsigned>(blocks), kRows * kRows / 4, bytes, stream, operands,
                 dlses, delta.device_data<C>(), z);
        }
        operands.delta = delta.device_data<C>();
        with_columns<T>(std::max(z.d, z.dv), [&]<int kColumns>() {
          if (y[0].numel() > 0) {
            const auto kernel = query_kernel<T, kColumns, kCap>;
            allow_shared(kernel, bytes);
            const int64_t blocks = ceil_div(z.queries, kRows) * z.heads * z.batch;
            launch(kernel, static_cast<unsigned>(blocks), kRows * kRows / 4, bytes, stream,
                   operands, Heads<T>(y[0], heads_inner), z);
          }
          if (z.batch * z.kv_heads * z.keys > 0) {
            const auto kernel = key_kernel<T, kColumns, kCap>;
            allow_shared(kernel, bytes);
            const int64_t blocks = ceil_div(z.keys, kRows) * z.kv_heads * z.batch;
            launch(kernel, static_cast<unsigned>(blocks), kRows * kRows / 4, bytes, stream,
                   operands, Heads<T>(y[1], heads_inner), Heads<T>(y[2], heads_inner), z);
          }
        });
      });
    }
  });
}

}  // namespace tessera::op
