// SPDX-License-Identifier: Apache-2.0
// Backward of the norms of rows, which reads x and dy from memory once (twice if a row is too wide
// for a block): threads keep sums over the rows for their columns, beside the rows' own gradients.
// join_chunks joins them to the gradients of weight and bias: no atomics, the same bits on every
// run.
#pragma once

#include "tessera/kernels/norms/join_chunks.cuh"
#include "tessera/kernels/norms/norm_rows.cuh"

namespace tessera {

/// Chunks of the rows: two blocks for each multiprocessor of an H100. A constant, so that bits do
/// not depend on the device.
inline constexpr int64_t kMostChunks = 264;
/// Rows of a chunk at least, so that the chunks' sums are not more bytes than the rows.
inline constexpr int64_t kLeastRows = 2;

/// The sums of rows that are too wide for a block: a block takes a row.
template <int kPack, bool kCentred, class T> __global__ void row_sums(NormRows<T> a) {
  using C = compute_t<T>;
  constexpr int kSums = kSumsOf<kCentred>;
  auto& shared = block_shared<JoinedRows<C, kSums>>();
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    const C mean = kCentred ? a.mean[row] : C(0), rstd = a.rstd[row];
    C sums[kSums] = {};
    for (int64_t i = threadIdx.x * kPack; i < a.d; i += blockDim.x * kPack) {
      const auto x = load_pack<kPack>(a.x + row * a.d + i),
                 dy = load_pack<kPack>(a.dy + row * a.d + i);
      add_to_sums<kCentred>(sums, x, dy, weights_at<kPack>(a.weight, i, a.offset), mean, rstd);
    }
    join_row(sums, shared[turn]);
    if (threadIdx.x != 0) continue;
    for (int s = 0; s < kSums; ++s) a.sums[s * a.rows + row] = sums[s];
  }
}

/// A chunk's sums of a thread's columns: parts[gradient][chunk][column]. Those of the rows that a
/// block has at a time are joined in their order.
template <int kPack, int kPacks, int n, class C>
__device__ __forceinline__ void store_chunk(const C (&sums)[n][kPacks][kPack], C* parts,
                                            const Columns<kPack, kPacks>& columns) {
  const int64_t d = columns.d, apart = gridDim.y * d;  // of one gradient's parts and the next's
  const bool alone = blockDim.y == 1;
  C* const lines = reinterpret_cast<C*>(launch_shared());  // (gradients, rows at a time, d)
  C* const chunk = parts + blockIdx.y * d;
  C* const own = alone ? chunk : lines + threadIdx.y * d;
#pragma unroll
  for (int g = 0; g < n; ++g) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!columns.has(p)) continue;
#pragma unroll
      for (int e = 0; e < kPack; ++e)
        own[g * (alone ? apart : blockDim.y * d) + columns.at(p) + e] = sums[g][p][e];
    }
  }
  if (alone) return;
  __syncthreads();
  const int threads = static_cast<int>(blockDim.x * blockDim.y), width = static_cast<int>(d);
  for (int i = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); i < n * width;
       i += threads) {
    const int g = i / width, column = i % width;
    const C* const from = lines + g * blockDim.y * width + column;
    C sum = from[0];
    for (unsigned y = 1; y < blockDim.y; ++y) sum += from[y * width];
    chunk[g * apart + column] = sum;
  }
}

/// A row's gradient, dx = r (g - mean(g) - n mean(g n)) and `more`, with g = w dy and n the
/// normalised x; without mean(g) where nothing is centred. `gradients` take dy n and dy. x and dy
/// come from L1, where the sums have left them: to keep them would take registers from other warps.
template <bool kCentred, int kPack, int kPacks, class T, class C>
__device__ __forceinline__ void write_row(const NormRows<T>& a, int64_t row,
                                          const Columns<kPack, kPacks>& columns, C mean, C rstd,
                                          const C (&sums)[kSumsOf<kCentred>],
                                          const Pack<T, kPack> (&more)[kPacks],
                                          C (&gradients)[kSumsOf<kCentred>][kPacks][kPack]) {
  const C d = static_cast<C>(a.d), slope = sums[0] / d,
          shift = kCentred ? sums[kSumsOf<kCentred> - 1] / d : C(0);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!columns.has(p)) continue;
    const int64_t at = row * a.d + columns.at(p);
    const auto x = load_pack<kPack>(a.x + at), dy = load_pack<kPack>(a.dy + at);
    const auto weight = weights_at<kPack>(a.weight, columns.at(p), a.offset);
    Pack<T, kPack> to;
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      const C n = normal_of<kCentred>(x.v[e], mean, rstd), wide = static_cast<C>(dy.v[e]),
              g = weight.v[e] * wide, own = rstd * ((kCentred ? g - shift : g) - n * slope);
      to.v[e] = static_cast<T>(a.more ? own + static_cast<C>(more[p].v[e]) : own);
      gradients[0][p][e] = vmath::fma(wide, n, gradients[0][p][e]);
      if constexpr (kCentred) gradients[1][p][e] += wide;
    }
    store_pack(a.dx + at, to);
  }
}

/// All gradients of a chunk of rows, every gridDim.y-th of those that a block has at a time. The
/// next row's x and dy are on their way while a row's sums are joined and its gradient is written.
/// Grid: (slabs of a row, chunks).
template <int kPack, int kPacks, bool kCentred, class T>
__global__ void __launch_bounds__(kRowThreads) norm_gradients(NormRows<T> a) {
  using C = compute_t<T>;
  constexpr int kSums = kSumsOf<kCentred>;
  auto& shared = block_shared<JoinedRows<C, kSums>>();
  const Columns<kPack, kPacks> columns(a.d);
  C gradients[kSums][kPacks][kPack] = {};
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * blockDim.y,
                step = static_cast<int64_t>(gridDim.y) * blockDim.y, last = a.rows - 1;
  RowPart<T, kPack, kPacks> part;
  part.load(a, columns, min(begin + threadIdx.y, last));
  int turn = 0;
  for (int64_t first = begin; first < a.rows; first += step, turn ^= 1) {
    // Behind the last row, threads join with it once more and write nothing.
    const int64_t own = first + threadIdx.y, row = min(own, last);
    const C mean = kCentred ? a.mean[row] : C(0), rstd = a.rstd[row];
    C sums[kSums] = {};
    if (!a.sums) part.template add_to<kCentred>(sums, a, columns, mean, rstd);
    part.load(a, columns, min(own + step, last));
    Pack<T, kPack> more[kPacks];
    if (a.more) columns.load(more, a.more + row * a.d);
    if (a.sums)
      for (int s = 0; s < kSums; ++s) sums[s] = a.sums[s * a.rows + row];
    else join_row(sums, shared[turn]);
    if (own == row) write_row<kCentred>(a, row, columns, mean, rstd, sums, more, gradients);
  }
  store_chunk(gradients, a.parts, columns);
}

/// How the rows lie on the device.
struct NormGrid {
  int64_t chunks, slabs;
  dim3 block;
  /// `columns` are a thread's; `threads` of a block at least.
  NormGrid(int64_t rows, int64_t d, int columns, int threads) {
    const int64_t wanted = ceil_div(d, columns);
    int64_t wide = 1;  // threads of a row
    while (wide < wanted && wide < kRowThreads) wide *= 2;
    const int64_t at_once = std::max<int64_t>(1, threads / wide);
    chunks = std::min(kMostChunks, ceil_div(rows, std::max(kLeastRows, at_once)));
    slabs = ceil_div(wanted, wide);
    block = dim3(static_cast<unsigned>(wide), static_cast<unsigned>(at_once));
  }
};

/// Gives dx and the gradients of the weight and, if centred, the bias, for `a` without sums and
/// parts. `threads`: a power of two from 32 to kRowThreads, to half of it if centred (what the
/// lines of store_chunk may take).
template <int bytes, bool kCentred, class T>
void norm_backward(NormRows<T> a, T* dweight, T* dbias, Device device, Stream stream, int threads) {
  using C = compute_t<T>;
  constexpr int kGradients = kSumsOf<kCentred>;
  const auto run = [&]<int kPack>() {
    constexpr int kPacks = kPack == 1 ? 4 : 2;
    const NormGrid grid(a.rows, a.d, kPack * kPacks, threads);
    const Tensor parts = empty({kGradients, grid.chunks, a.d}, dtype_of<C>, device);
    a.parts = parts.device_data<C>();
    Tensor sums;
    if (grid.slabs > 1 && a.rows > 0) {
      sums = empty({kGradients, a.rows}, dtype_of<C>, device);
      a.sums = sums.device_data<C>();
      launch(row_sums<kPack, kCentred, T>, blocks_for(a.rows, 1), kRowThreads, 0, stream, a);
    }
    if (a.rows > 0) {
      const size_t lines =
          grid.block.y == 1 ? 0 : static_cast<size_t>(kGradients * grid.block.y * a.d);
      launch(norm_gradients<kPack, kPacks, kCentred, T>,
             dim3(static_cast<unsigned>(grid.slabs), static_cast<unsigned>(grid.chunks)),
             grid.block, lines * sizeof(C), stream, a);
    }
    launch_join_chunks(a.parts, dweight, dbias, a.d, grid.chunks, stream);
  };
  with_pack<bytes>(a.d % kPackOf<T, bytes> == 0, run, a.x, a.weight, a.dy, a.more, a.dx);
}

}  // namespace tessera
