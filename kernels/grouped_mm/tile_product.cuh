// SPDX-License-Identifier: Apache-2.0
// One tile of a product of 16-bit floats on tensor cores, by a block of 2 x 2 warps. A pipeline of
// kStages tiles of both operands lies in shared memory: while the warps multiply one, the copies of
// the next are under way. Rows there are 16 bytes longer than they need be, so that the eight rows
// of an ldmatrix lie in different banks. Sums are f32 in the order of k, the same on every run.
#pragma once

#include "tessera/kernels/shared/cp_async.cuh"
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/shared/ldmatrix.cuh"
#include "tessera/kernels/shared/mma.cuh"

namespace tessera::op {

inline constexpr int kTileM = 64, kTileN = 128, kTileK = 32, kStages = 3;
inline constexpr int kTileThreads = 128;
inline constexpr int kChunk = 8;  // elements of 16 bytes: a copy, and a row of an ldmatrix

/// A matrix in global memory whose rows lie whole; what lies outside of it counts as zero.
template <class T> struct Operand {
  const T* p;
  int64_t rows, columns;
  bool aligned;  // every row begins on 16 bytes
};

/// Whether rows of `columns` elements that follow each other from `p` on are aligned.
template <class T> bool rows_aligned(const T* p, int64_t columns) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && columns % kChunk == 0;
}

/// Of shared memory.
template <class T, int kRows, int kColumns> struct alignas(16) Tile {
  T at[kRows][kColumns + kChunk];

  /// Takes the part of x that begins at (row, column), by all threads of the block.
  __device__ void load(const Operand<T>& x, int64_t row, int64_t column) {
    constexpr int kChunks = kColumns / kChunk, kEach = kRows * kChunks / kTileThreads;
    static_assert(kEach * kTileThreads == kRows * kChunks);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int chunk = i * kTileThreads + threadIdx.x;
      const int r = chunk / kChunks, c = chunk % kChunks * kChunk;
      const int64_t left = row + r < x.rows ? x.columns - column - c : 0;
      const int inside = static_cast<int>(left < 0 ? 0 : left < kChunk ? left : kChunk);
      const T* from = inside ? x.p + (row + r) * x.columns + column + c : x.p;
      if (x.aligned) {
        cp_async(&at[r][c], from, inside * static_cast<int>(sizeof(T)));
      } else {
        for (int j = 0; j < kChunk; ++j) at[r][c + j] = j < inside ? from[j] : T(0.0F);
      }
    }
  }
};

/// The sums of a thread: of its warp's 2 x 8 fragments of 16 x 8.
struct TileSums {
  static constexpr int kRows = kTileM / 2, kColumns = kTileN / 2;  // of a warp
  float at[kRows / 16][kColumns / 8][4] = {};

  /// f(row in the tile, column in the tile, sum, the sum to its right)
  template <class F> __device__ void each_pair(F f) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / 2 * kRows + lane / 4, column = warp % 2 * kColumns + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        f(row + i * 16, column + j * 8, at[i][j][0], at[i][j][1]);
        f(row + i * 16 + 8, column + j * 8, at[i][j][2], at[i][j][3]);
      }
    }
  }
};

/// The fragments of four 8 x 8 matrices. Where kByK, the tile's rows run along k, else across it.
template <bool kByK, class AnyTile>
__device__ void load_fragments(uint32_t (&r)[4], const AnyTile& tile, int outer, int k) {
  const int row = threadIdx.x % 8;
  if constexpr (kByK) ldmatrix_x4(r, &tile.at[outer + row][k]);
  else ldmatrix_x4_trans(r, &tile.at[k + row][outer]);
}

/// The tile at (m, n) of a b'. a is (M, K) where kAByK, else (K, M); b is (N, K) where kBByK, else
/// (K, N). One call in a kernel.
template <class T, bool kAByK, bool kBByK>
__device__ TileSums multiply_tile(const Operand<T>& a, const Operand<T>& b, int64_t m, int64_t n,
                                  int64_t k) {
  struct Stage {
    Tile<T, kAByK ? kTileM : kTileK, kAByK ? kTileK : kTileM> a;
    Tile<T, kBByK ? kTileN : kTileK, kBByK ? kTileK : kTileN> b;
  };
  struct Stages {
    Stage at[kStages];
  };
  auto& stages = block_shared<Stages>();
  const int64_t steps = ceil_div(k, kTileK);
  const auto load = [&](int64_t step) {
    if (step < steps) {
      Stage& stage = stages.at[step % kStages];
      const int64_t at = step * kTileK;
      stage.a.load(a, kAByK ? m : at, kAByK ? at : m);
      stage.b.load(b, kBByK ? n : at, kBByK ? at : n);
    }
    cp_async_commit();
  };
  const int warp = threadIdx.x / 32, matrix = threadIdx.x % 32 / 8;
  const int row = warp / 2 * TileSums::kRows, column = warp % 2 * TileSums::kColumns;
  TileSums sums;
  for (int step = 0; step < kStages - 1; ++step) load(step);
  for (int64_t step = 0; step < steps; ++step) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // this step's tiles are there for all, and nobody reads the last step's
    load(step + kStages - 1);
    const Stage& stage = stages.at[step % kStages];
#pragma unroll
    for (int at = 0; at < kTileK; at += 16) {
      uint32_t left[TileSums::kRows / 16][4];
#pragma unroll
      for (int i = 0; i < TileSums::kRows / 16; ++i) {
        load_fragments<kAByK>(left[i], stage.a, row + i * 16 + matrix % 2 * 8, at + matrix / 2 * 8);
      }
#pragma unroll
      for (int j = 0; j < TileSums::kColumns / 16; ++j) {
        uint32_t right[4];
        load_fragments<kBByK>(right, stage.b, column + j * 16 + matrix / 2 * 8,
                              at + matrix % 2 * 8);
#pragma unroll
        for (int i = 0; i < TileSums::kRows / 16; ++i) {
          mma_16x8x16<T>(sums.at[i][2 * j], left[i], {right[0], right[1]});
          mma_16x8x16<T>(sums.at[i][2 * j + 1], left[i], {right[2], right[3]});
        }
      }
    }
  }
  return sums;
}

/// Writes the tile at (m, n) of y (rows, columns), as much as lies in it.
template <class T>
__device__ void store_tile(const TileSums& sums, T* y, int64_t rows, int64_t columns, int64_t m,
                           int64_t n) {
  const bool pairs = columns % 2 == 0 && reinterpret_cast<uintptr_t>(y) % 4 == 0;
  sums.each_pair([&](int row, int column, float left, float right) {
    if (m + row >= rows || n + column >= columns) return;
    T* to = y + (m + row) * columns + n + column;
    const T two[] = {T(left), T(right)};
    if (pairs) {
      *reinterpret_cast<uint32_t*>(to) = two[0].bits | static_cast<uint32_t>(two[1].bits) << 16;
    } else {
      to[0] = two[0];
      if (n + column + 1 < columns) to[1] = two[1];
    }
  });
}

}  // namespace tessera::op
