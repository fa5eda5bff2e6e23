// SPDX-License-Identifier: Apache-2.0
// CUDA attention, forward: a block takes a tile of queries of one head and goes over the keys a
// tile at a time, with the running maximum and sum of each row (Dao et al., FlashAttention-2,
// 2023).
#include "tessera/kernels/attention/attention_impl.cuh"

namespace tessera::op {
namespace {

template <class C, int kRows> size_t shared_bytes(int d, int dv) {
  return static_cast<size_t>(kRows * (2 * tile_stride(d) + tile_stride(dv)) + kRows * (kRows + 1) +
                             3 * kRows) *
         sizeof(C);
}

template <class T, int kColumns, bool kCap>
__global__ void __launch_bounds__(kTile<T>* kTile<T> / 4)
    forward_kernel(Heads<const T> q, Heads<const T> k, Heads<const T> v, Heads<T> o,
                   compute_t<T>* lse, AttentionSizes z) {
  using C = compute_t<T>;
  constexpr int kRows = kTile<T>, kHalf = kRows / 2, kPitch = kRows + 1;
  const int ld = tile_stride(z.d), ldv = tile_stride(z.dv);
  unsigned char* bytes = launch_shared();
  C* q_tile = reinterpret_cast<C*>(bytes);  // (kRows, d)
  C* k_tile = q_tile + kRows * ld;          // (kRows, d)
  C* v_tile = k_tile + kRows * ld;          // (kRows, dv)
  C* p_tile = v_tile + kRows * ldv;         // (kRows, kRows): scores, then weights
  C* row_max = p_tile + kRows * kPitch;
  C* row_sum = row_max + kRows;
  C* row_rescale = row_sum + kRows;  // what earlier sums are multiplied by when the maximum rises

  const int t = threadIdx.x, x = t % kHalf, y = t / kHalf;
  const int64_t tiles = ceil_div(z.queries, kRows);
  const int64_t tile = tiles - 1 - blockIdx.x % tiles;  // the longest causal rows first
  const int64_t head = blockIdx.x / tiles % z.heads, b = blockIdx.x / tiles / z.heads;
  const int64_t kv_head = head / (z.heads / z.kv_heads), first = tile * kRows;
  const T *k_head = k.of(b, kv_head), *v_head = v.of(b, kv_head);

  load_tile(q_tile, kRows, q.of(b, head), q, first, z.queries, z.d);
  if (t < kRows) {
    row_max[t] = minus_infinity<C>();
    row_sum[t] = 0;
  }
  C acc[2][kColumns] = {};
  for (int64_t key = 0; key < z.keys; key += kRows) {
    const BlockSeen seen = z.mask.block(b, first, key);
    if (seen.by == BlockSeen::kNothing) continue;
    __syncthreads();  // nobody reads the last tiles any more
    load_tile(k_tile, kRows, k_head, k, key, z.keys, z.d);
    load_tile(v_tile, kRows, v_head, v, key, z.keys, z.dv);
    __syncthreads();
    C scores[2][2];
    dot_tiles<kHalf>(q_tile, k_tile, y, x, z.d, scores);
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) {
        const int row = y + i * kHalf, column = x + j * kHalf;
        C score = minus_infinity<C>();
        if (z.mask.sees(seen, b, first + row, key + column))
          score = seen.by == BlockSeen::kBroken ? not_a_number<C>()
                                                : Score<C, kCap>(scores[i][j], z).value;
        p_tile[row * kPitch + column] = score;
      }
    }
    __syncthreads();
    {  // kHalf / 2 neighbouring threads share a row.
      constexpr int kShare = kHalf / 2;
      const int row = t / kShare, lane = t % kShare;
      C* p = p_tile + row * kPitch;
      const C before = row_max[row];
      C top = before, sum = 0;
      for (int j = lane; j < kRows; j += kShare) top = MaxOf{}(top, p[j]);
      for (int step = kShare / 2; step > 0; step /= 2)
        top = MaxOf{}(top, __shfl_xor_sync(0xffffffffu, top, step));
      for (int j = lane; j < kRows; j += kShare) {
        p[j] = p[j] == minus_infinity<C>() ? C(0) : vmath::exp(p[j] - top);
        sum += p[j];
      }
      for (int step = kShare / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (lane == 0) {
        const C rescale = before == minus_infinity<C>() ? C(0) : vmath::exp(before - top);
        row_max[row] = top;
        row_sum[row] = row_sum[row] * rescale + sum;
        row_rescale[row] = rescale;
      }
    }
    __syncthreads();
    const C rescale0 = row_rescale[y], rescale1 = row_rescale[y + kHalf];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      acc[0][c] *= rescale0;
      acc[1][c] *= rescale1;
    }
    for (int j = 0; j < kRows; ++j) {
      const C p0 = p_tile[y * kPitch + j], p1 = p_tile[(y + kHalf) * kPitch + j];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = x + c * kHalf;
        if (column < z.dv) {
          const C value = v_tile[j * ldv + column];
          acc[0][c] = add_product(p0, value, acc[0][c]);
          acc[1][c] = add_product(p1, value, acc[1][c]);
        }
      }
    }
  }
  __syncthreads();
  T* out = o.of(b, head);
  for (int i = 0; i < 2; ++i) {
    const int row = y + i * kHalf;
    const int64_t query = first + row;
    if (query >= z.queries) continue;
    const C sum = row_sum[row], inverse = sum == 0 ? C(0) : 1 / sum;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = x + c * kHalf;
      if (column < z.dv) out[query * o.time + column * o.d] = static_cast<T>(acc[i][c] * inverse);
    }
    if (x == 0) {
      lse[(b * z.heads + head) * z.queries + query] =
          sum == 0 ? minus_infinity<C>() : row_max[row] + vmath::log(sum);
    }
  }
}

}  // namespace

void Attention::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[1].numel() == 0) return;
  const MaskOperands masks(in, mask_operands);
  AttentionSizes z(*this, in[0], in[1], in[2], masks);
  const AttentionCase c = attention_case(*this, MetaArray(in));
  if (is_cudnns(c) && cudnn_attention::forward(in, y, {c, heads_inner, z.scale}, stream)) return;
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    if constexpr (kOnTensorCores<T>) {
      const auto kept = cut_into_blocks(z.mask, kAttentionBlock, masks, stream);
      mma_attention::forward<T>(in, y, heads_inner, z, stream);
    } else {
      constexpr int kRows = kTile<T>;
      const auto kept = cut_into_blocks(z.mask, kRows, masks, stream);
      with_columns<T>(z.dv, [&]<int kColumns>() {
        with_cap(z, [&]<bool kCap>() {
          const size_t bytes = shared_bytes<C, kRows>(z.d, z.dv);
          const auto kernel = forward_kernel<T, kColumns, kCap>;
          allow_shared(kernel, bytes);
          const int64_t blocks = ceil_div(z.queries, kRows) * z.heads * z.batch;
          launch(kernel, static_cast<unsigned>(blocks), kRows * kRows / 4, bytes, stream,
                 Heads<const T>(in[0], heads_inner), Heads<const T>(in[1], heads_inner),
                 Heads<const T>(in[2], heads_inner), Heads<T>(y[0], heads_inner),
                 y[1].device_data<C>(), z);
        });
      });
    }
  });
}

}  // namespace tessera::op
