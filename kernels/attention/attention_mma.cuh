// SPDX-License-Identifier: Apache-2.0
// What attention's kernels on tensor cores share: 16-bit operands, sums in f32. A block owns 128
// rows (queries, or keys in the kernel of their gradients), or 64 of heads of more than 128, its
// warps 16 or 32 each, and walks the other side in steps whose tiles are copied while the last one
// is multiplied (Dao et al., FlashAttention-2, 2023). Scores stay in registers: the sums of a
// product are the left operand of the next one as they lie. A value that a row does not see counts
// with weight 0, so that an inf or NaN makes it NaN if the row's block of 64 sees its block, as on
// the CPU.
#pragma once

#include "tessera/kernels/attention/attention_impl.cuh"
#include "tessera/kernels/shared/cp_async.cuh"
#include "tessera/kernels/shared/ldmatrix.cuh"
#include "tessera/kernels/shared/mma.cuh"

#include <limits>

namespace tessera::op::mma_attention {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;

/// Heads of kD elements, those that are not there zero. Longer ones leave fewer registers for rows.
template <int kD> inline constexpr int kRows = kD <= 128 ? 128 : 64;  // of a block
template <int kD> inline constexpr int kTilesM = kD <= 64 ? 2 : 1;    // of 16 rows, of a warp
template <int kD> inline constexpr int kWarpRows = 16 * kTilesM<kD>;
template <int kD> inline constexpr int kMmaThreads = 32 * (kRows<kD> / kWarpRows<kD>);

/// Calls f<kD>() with the least kD that holds d.
template <class F> void with_head_size(int d, F&& f) {
  if (d <= 64) f.template operator()<64>();
  else if (d <= 128) f.template operator()<128>();
  else f.template operator()<kMostHeadSize>();
}

/// Rows of one head in shared memory, 16 bytes longer than they need be: the eight rows of an
/// ldmatrix lie in different banks.
template <class T, int kTileRows, int kD> struct alignas(16) HeadTile {
  T at[kTileRows][kD + 8];

  /// Starts to take rows [first, first + kTileRows) of `head`, by all threads of the block.
  /// `aligned`: 16 bytes at a time may be read.
  __device__ __forceinline__ void load(const Heads<const T>& x, const T* head, int64_t first,
                                       int64_t total, int d, bool aligned) {
    constexpr int kChunks = kD / 8, kEach = kTileRows * kChunks / kMmaThreads<kD>;
    static_assert(kEach * kMmaThreads<kD> == kTileRows * kChunks);
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kMmaThreads<kD> + threadIdx.x;
      const int r = i / kChunks, c = i % kChunks * 8;
      const int left = first + r < total ? d - c : 0;
      const int inside = left < 0 ? 0 : left < 8 ? left : 8;
      const T* from = inside ? head + (first + r) * x.time + c * x.d : head;
      if (aligned) {
        cp_async(&at[r][c], from, inside * static_cast<int>(sizeof(T)));
      } else {
        for (int j = 0; j < 8; ++j) at[r][c + j] = j < inside ? from[j * x.d] : T(0.0F);
      }
    }
  }
};

/// Whether 16 bytes at a time may be read of every row.
template <class T> bool rows_aligned(const Heads<const T>& x) {
  return x.d == 1 && x.time % 8 == 0 && x.head % 8 == 0 && x.batch % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.p) % 16 == 0;
}

/// Sums of a warp: fragments of 16 x 8, of which a thread has elements (g, t), (g, t + 1),
/// (g + 8, t), (g + 8, t + 1) with g = lane / 4, t = lane % 4 * 2.
template <int kM, int kColumns> struct Sums {
  float at[kM][kColumns / 8][4] = {};

  /// f(m, half, pair j, element of the pair, value) of every element: rows 16 m + 8 half + lane /
  /// 4, columns 8 j + t + element.
  template <class F> __device__ __forceinline__ void each(F f) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) f(m, e / 2, j, e % 2, at[m][j][e]);
      }
    }
  }
};

/// Which of a thread's sums count: of each row a bit for each column. Apart from the sums' own
/// loops, which are unrolled: the mask is called in one place for a row.
template <int kM, int kColumns> struct SeenBits {
  uint32_t of[kM][2];

  /// sees(row of the warp, column); `whole`: everything counts.
  template <class F> __device__ __forceinline__ SeenBits(bool whole, F sees) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t bits = whole ? ~0U : 0;
        if (!whole) {
#pragma unroll 1
          for (int i = 0; i < kColumns / 4; ++i) {
            const bool seen = sees(m * 16 + half * 8 + lane / 4, i / 2 * 8 + lane % 4 * 2 + i % 2);
            bits |= static_cast<uint32_t>(seen) << i;
          }
        }
        of[m][half] = bits;
      }
    }
  }
  __device__ __forceinline__ bool has(int m, int half, int j, int e) const {
    return (of[m][half] >> (2 * j + e) & 1) != 0;
  }
};

/// sums (rows of `a` from `row` on, rows of `b`) += a b'.
template <class T, int kM, int kN, int kTileA, int kD>
__device__ __forceinline__ void multiply_rows(Sums<kM, kN>& sums, const HeadTile<T, kTileA, kD>& a,
                                              int row, const HeadTile<T, kN, kD>& b) {
  const int matrix = threadIdx.x % 32 / 8, r = threadIdx.x % 8;
#pragma unroll
  for (int at = 0; at < kD; at += 16) {
    uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m)
      ldmatrix_x4(left[m], &a.at[row + m * 16 + matrix % 2 * 8 + r][at + matrix / 2 * 8]);
#pragma unroll
    for (int j = 0; j < kN / 16; ++j) {
      uint32_t right[4];
      ldmatrix_x4(right, &b.at[j * 16 + matrix / 2 * 8 + r][at + matrix % 2 * 8]);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_16x8x16<T>(sums.at[m][2 * j], left[m], {right[0], right[1]});
        mma_16x8x16<T>(sums.at[m][2 * j + 1], left[m], {right[2], right[3]});
      }
    }
  }
}

/// sums (rows, columns) += weights b, with weights (rows, rows of b) rounded to T, and of b the
/// columns from `first` on.
template <class T, int kM, int kN, int kColumns, int kD>
__device__ __forceinline__ void multiply_weights(Sums<kM, kColumns>& sums,
                                                 const Sums<kM, kN>& weights,
                                                 const HeadTile<T, kN, kD>& b, int first = 0) {
  const int matrix = threadIdx.x % 32 / 8, r = threadIdx.x % 8;
#pragma unroll
  for (int k = 0; k < kN / 16; ++k) {
    uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const auto &near = weights.at[m][2 * k], &far = weights.at[m][2 * k + 1];
      left[m][0] = fragment_of<T>(near[0], near[1]);
      left[m][1] = fragment_of<T>(near[2], near[3]);
      left[m][2] = fragment_of<T>(far[0], far[1]);
      left[m][3] = fragment_of<T>(far[2], far[3]);
    }
#pragma unroll
    for (int j = 0; j < kColumns / 16; ++j) {
      uint32_t right[4];
      ldmatrix_x4_trans(right, &b.at[k * 16 + matrix % 2 * 8 + r][first + j * 16 + matrix / 2 * 8]);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_16x8x16<T>(sums.at[m][2 * j], left[m], {right[0], right[1]});
        mma_16x8x16<T>(sums.at[m][2 * j + 1], left[m], {right[2], right[3]});
      }
    }
  }
}

/// Writes rows [first, total) of a warp's sums, each element times factor(m, half), in the columns
/// from `first_column` to d.
template <class T, int kM, int kColumns, class F>
__device__ void store_rows(const Sums<kM, kColumns>& sums, const Heads<T>& to, T* head,
                           int64_t first, int64_t total, int d, F factor, int first_column = 0) {
  const int lane = threadIdx.x % 32;
  const bool pairs = to.d == 1 && to.time % 2 == 0 && reinterpret_cast<uintptr_t>(head) % 4 == 0;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + m * 16 + half * 8 + lane / 4;
      if (row >= total) continue;
      const float f = factor(m, half);
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const int column = first_column + j * 8 + lane % 4 * 2;
        const float left = sums.at[m][j][half * 2] * f, right = sums.at[m][j][half * 2 + 1] * f;
        T* at = head + row * to.time + column * to.d;
        if (pairs && column + 1 < d) {
          *reinterpret_cast<uint32_t*>(at) = fragment_of<T>(left, right);
        } else {
          if (column < d) at[0] = T(left);
          if (column + 1 < d) at[to.d] = T(right);
        }
      }
    }
  }
}

/// What a tile's blocks of 64 rows see of the other side's blocks, each found by one thread, for as
/// many blocks at a time as there are threads: asked by all for each step, it would cost more than
/// the products. All threads of the block call its functions.
template <int kD> struct SeenBlocks {
  static constexpr int kThreads = kMmaThreads<kD>, kMine = kRows<kD> / kAttentionBlock;
  int32_t by[kMine][kThreads];

  /// The first block from `from` on, below `end`, of which some row of the tile sees a part; `end`
  /// if none. find(mine, block): what the tile's block `mine` sees. `known`: blocks found so far.
  template <class F> __device__ int64_t next(int64_t from, int64_t end, int64_t& known, F find) {
    for (int64_t block = from; block < end; ++block) {
      if (block >= known || block < known - kThreads) {
        __syncthreads();  // nobody reads the last ones any more
        known = block + kThreads;
        const int64_t own = block + threadIdx.x;
        for (int mine = 0; mine < kMine; ++mine)
          by[mine][threadIdx.x] = own < end ? find(mine, own).by : BlockSeen::kNothing;
        __syncthreads();
      }
      for (int mine = 0; mine < kMine; ++mine)
        if (of(mine, block, known).by != BlockSeen::kNothing) return block;
    }
    return end;
  }
  __device__ BlockSeen of(int mine, int64_t block, int64_t known) const {
    return {by[mine][block - (known - kThreads)]};
  }
};

/// The queries that a block owns, in their head, and a warp's part of them.
template <int kD> struct QueryTile {
  int64_t batch, head, kv_head, first;
  int row = threadIdx.x / 32 * kWarpRows<kD>;

  __device__ explicit QueryTile(const AttentionSizes& z) {
    const int64_t tiles = ceil_div(z.queries, kRows<kD>);
    first = (tiles - 1 - blockIdx.x % tiles) * kRows<kD>;  // the longest causal rows first
    head = blockIdx.x / tiles % z.heads, batch = blockIdx.x / tiles / z.heads;
    kv_head = head / (z.heads / z.kv_heads);
  }
};

/// The keys that a tile of queries walks over, kStep at a time.
template <int kD, int kStep> struct KeySteps {
  static constexpr int kPerBlock = kAttentionBlock / kStep;
  SeenBlocks<kD>& blocks;
  const AttentionSizes& z;
  const QueryTile<kD>& tile;
  int64_t count, known = 0;

  __device__ KeySteps(SeenBlocks<kD>& found, const AttentionSizes& sizes,
                      const QueryTile<kD>& owned)
      : blocks(found), z(sizes), tile(owned), count(ceil_div(sizes.keys, kStep)) {}
  /// The first step from this one on of which some query of the tile sees a part; count if none.
  __device__ int64_t next(int64_t step) {
    const int64_t block = blocks.next(
        step / kPerBlock, ceil_div(z.keys, kAttentionBlock), known, [&](int mine, int64_t k) {
          const int64_t query = tile.first + mine * kAttentionBlock;
          return query < z.queries ? z.mask.block(tile.batch, query, k * kAttentionBlock)
                                   : BlockSeen{BlockSeen::kNothing};
        });
    return min(max(step, block * kPerBlock), count);
  }
  /// What the warp's queries see of the step that next() gave last.
  __device__ BlockSeen seen(int64_t step) const {
    return step < count ? blocks.of(tile.row / kAttentionBlock, step / kPerBlock, known)
                        : BlockSeen{BlockSeen::kNothing};
  }
};

/// Calls work(step, stage, seen) for each of the steps of which the warp sees a part. While it
/// runs, the copies of the next step are under way to the other of two stages: load(step, stage)
/// starts them. What the block has started to copy before has landed at the first call too.
template <class Steps, class Load, class Work>
__device__ __forceinline__ void walk(Steps& steps, Load load, Work work) {
  auto step = steps.next(0);
  BlockSeen seen = steps.seen(step);
  if (step < steps.count) load(step, 0);
  cp_async_commit();
  for (int stage = 0; step < steps.count; stage ^= 1) {
    const auto following = steps.next(step + 1);
    const BlockSeen following_seen = steps.seen(following);
    if (following < steps.count) load(following, stage ^ 1);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();  // this step's tiles are there for all
    if (seen.by != BlockSeen::kNothing) work(step, stage, seen);
    __syncthreads();  // nobody reads them any more
    step = following, seen = following_seen;
  }
}

/// The joins of a row, which four neighbouring lanes share.
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

}  // namespace tessera::op::mma_attention
