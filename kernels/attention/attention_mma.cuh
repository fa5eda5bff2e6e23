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
#include "tessera/kernels/mask/seen_bits_impl.h"
#include "tessera/kernels/shared/cp_async.cuh"
#include "tessera/kernels/shared/ldmatrix.cuh"
#include "tessera/kernels/shared/mma.cuh"

#include <limits>

namespace tessera::op::mma_attention {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;

/// A kernel's heads have kHead elements (shorter ones are padded with zeros), and each of its warps
/// owns kTilesM tiles of 16 rows. Longer heads leave fewer registers for rows.
template <int kHead, int kTilesM> struct Shape {
  static constexpr int kD = kHead, kM = kTilesM, kWarpRows = 16 * kM;
  static constexpr int kRows = kD <= 128 ? 128 : 64;  // of a block
  static constexpr int kThreads = 32 * (kRows / kWarpRows);
};

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

  /// Starts to take rows [first, first + kTileRows) of `head`, by all kThreads threads of the
  /// block. `aligned`: 16 bytes at a time may be read.
  template <int kThreads>
  __device__ __forceinline__ void load(const Heads<const T>& x, const T* head, int first,
                                       int64_t total, int d, bool aligned) {
    constexpr int kChunks = kD / 8, kAtOnce = kThreads / kChunks;  // rows
    static_assert(kThreads % kChunks == 0 && kTileRows % kAtOnce == 0);
    const int row = threadIdx.x / kChunks, c = threadIdx.x % kChunks * 8;
    const int rows = total - first < kTileRows ? static_cast<int>(total - first) : kTileRows;
    const int inside = min(max(d - c, 0), 8);
    // A column behind the head's last one copies 0 bytes, from the head's first element.
    const T* from = inside ? head + static_cast<int64_t>(first + row) * x.time + c * x.d : head;
    const int64_t step = inside ? kAtOnce * x.time : 0;
    const int bytes = inside * static_cast<int>(sizeof(T));
    if (aligned && rows == kTileRows) {
#pragma unroll
      for (int n = 0; n < kTileRows / kAtOnce; ++n)
        cp_async(&at[row + n * kAtOnce][c], from + n * step, bytes);
      return;
    }
#pragma unroll 1
    for (int r = row; r < kTileRows; r += kAtOnce, from += step) {
      if (aligned) {
        cp_async(&at[r][c], r < rows ? from : head, r < rows ? bytes : 0);
      } else {
        for (int j = 0; j < 8; ++j) at[r][c + j] = r < rows && j < inside ? from[j * x.d] : T(0.0F);
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

/// The score of a query and a key by their product, in powers of 2 and divided by `scale`: the
/// product itself, or, if scores are capped, the share of the cap.
template <bool kCap> struct ScoreForm {
  float scale, before = 1, inverse = 1;  // before: a product's factor before the cap

  __device__ explicit ScoreForm(const AttentionSizes& z)
      : scale(static_cast<float>(kCap ? z.soft_cap : z.scale) * kLog2E) {
    if constexpr (kCap) {
      before = static_cast<float>(z.scale);
      inverse = 1 / static_cast<float>(z.soft_cap);
    }
  }
  [[nodiscard]] __device__ __forceinline__ float of(float product) const {
    if constexpr (kCap) return vmath::tanh(product * before * inverse);
    else return product;
  }
};

/// Which of a thread's sums of a piece of scores, from `row` and `column` on, count.
template <int kM, int kColumns, bool kOfKeys> struct CountingSums {
  SeenBits<2 * kM> bits;

  __device__ __forceinline__ CountingSums(const MaskView& mask, const BlockSeen& seen, int b,
                                          int row, int column) {
    const int lane = threadIdx.x % 32;
    bits = seen_bits<2 * kM, kColumns / 4, kOfKeys>(
        mask, seen, b, [&](int r) { return row + r * 8 + lane / 4; },
        [&](int i) { return column + i / 2 * 8 + lane % 4 * 2 + i % 2; });
  }
  __device__ __forceinline__ bool has(int m, int half, int j, int e) const {
    return (bits.of[2 * m + half] >> (2 * j + e) & 1) != 0;
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
__device__ void store_rows(const Sums<kM, kColumns>& sums, const Heads<T>& to, T* head, int first,
                           int64_t total, int d, F factor, int first_column = 0) {
  const int lane = threadIdx.x % 32;
  const bool pairs = to.d == 1 && to.time % 2 == 0 && reinterpret_cast<uintptr_t>(head) % 4 == 0;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8 + lane / 4;
      if (row >= total) continue;
      const float f = factor(m, half);
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const int column = first_column + j * 8 + lane % 4 * 2;
        // Nothing times an infinity is nothing: a row that sees nothing is 0.
        const float left = f == 0 ? 0 : sums.at[m][j][half * 2] * f,
                    right = f == 0 ? 0 : sums.at[m][j][half * 2 + 1] * f;
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
template <class S> struct SeenBlocks {
  static constexpr int kThreads = S::kThreads, kMine = S::kRows / kAttentionBlock;
  int32_t by[kMine][kThreads];

  /// The first block from `from` on, below `end`, of which some row of the tile sees a part; `end`
  /// if none. find(mine, block): what the tile's block `mine` sees. `known`: blocks found so far.
  template <class F> __device__ int next(int from, int end, int& known, F find) {
    for (int block = from; block < end; ++block) {
      if (block >= known || block < known - kThreads) {
        __syncthreads();  // nobody reads the last ones any more
        known = block + kThreads;
        const int own = block + static_cast<int>(threadIdx.x);
        for (int mine = 0; mine < kMine; ++mine)
          by[mine][threadIdx.x] = own < end ? find(mine, own).by : BlockSeen::kNothing;
        __syncthreads();
      }
      for (int mine = 0; mine < kMine; ++mine)
        if (of(mine, block, known).by != BlockSeen::kNothing) return block;
    }
    return end;
  }
  __device__ BlockSeen of(int mine, int block, int known) const {
    return {by[mine][block - (known - kThreads)]};
  }
};

/// The queries that a block owns, in their head, and a warp's part of them. Numbers of tokens are
/// int, to save registers; Attention::meta refuses more.
template <class S> struct QueryTile {
  int batch, head, kv_head, first;
  int row = threadIdx.x / 32 * S::kWarpRows;

  __device__ explicit QueryTile(const AttentionSizes& z) {
    const auto tiles = static_cast<unsigned>(ceil_div(z.queries, S::kRows)),
               heads = static_cast<unsigned>(z.heads);
    // The longest causal rows first.
    first = static_cast<int>(tiles - 1 - blockIdx.x % tiles) * S::kRows;
    head = static_cast<int>(blockIdx.x / tiles % heads);
    batch = static_cast<int>(blockIdx.x / tiles / heads);
    kv_head = head / static_cast<int>(z.heads / z.kv_heads);
  }
};

/// The keys that a tile of queries walks over, kStep at a time.
template <class S, int kStep> struct KeySteps {
  static constexpr int kPerBlock = kAttentionBlock / kStep;
  SeenBlocks<S>& blocks;
  const AttentionSizes& z;
  const QueryTile<S>& tile;
  int count, known = 0;

  __device__ KeySteps(SeenBlocks<S>& found, const AttentionSizes& sizes, const QueryTile<S>& owned)
      : blocks(found),
        z(sizes),
        tile(owned),
        count(static_cast<int>(ceil_div(sizes.keys, kStep))) {}
  /// The first step from this one on of which some query of the tile sees a part; count if none.
  __device__ int next(int step) {
    const int all = static_cast<int>(ceil_div(z.keys, kAttentionBlock));
    const int block = blocks.next(step / kPerBlock, all, known, [&](int mine, int k) {
      const int query = tile.first + mine * kAttentionBlock;
      return query < z.queries
                 ? z.mask.block(tile.batch, query, static_cast<int64_t>(k) * kAttentionBlock)
                 : BlockSeen{BlockSeen::kNothing};
    });
    return min(max(step, block * kPerBlock), count);
  }
  /// What the warp's queries see of the step that next() gave last.
  __device__ BlockSeen seen(int step) const {
    return step < count ? blocks.of(tile.row / kAttentionBlock, step / kPerBlock, known)
                        : BlockSeen{BlockSeen::kNothing};
  }
};

/// Calls work(step, stage, seen) for each of the steps of which the warp sees a part. While it
/// runs, the copies of the next step are under way to the other of two stages: load(step, stage)
/// starts them. What the block has started to copy before has landed at the first call too.
template <class Steps, class Load, class Work>
__device__ __forceinline__ void walk(Steps& steps, Load load, Work work) {
  int step = steps.next(0);
  BlockSeen seen = steps.seen(step);
  if (step < steps.count) load(step, 0);
  cp_async_commit();
  for (int stage = 0; step < steps.count; stage ^= 1) {
    const int following = steps.next(step + 1);
    const BlockSeen following_seen = steps.seen(following);
    cp_async_wait<0>();
    __syncthreads();  // this step's tiles are there for all, and nobody reads the last ones
    if (following < steps.count) load(following, stage ^ 1);
    cp_async_commit();
    if (seen.by != BlockSeen::kNothing) work(step, stage, seen);
    step = following, seen = following_seen;
  }
}

/// The sum of a row, which four neighbouring lanes share.
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace tessera::op::mma_attention
