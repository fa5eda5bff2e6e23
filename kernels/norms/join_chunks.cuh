// SPDX-License-Identifier: Apache-2.0
// The gradient of a weight that all rows share: sums over chunks of rows, joined in an order that
// the device does not change.
#pragma once

#include "tessera/kernels/shared/launch.cuh"

#include <cstdint>

namespace tessera {

/// Threads that share a column in join_chunks.
inline constexpr int kJoinShares = 16;

/// parts (gradients, chunks, d) -> the first gradient (d) and, where there are two, the second.
/// Each share of a column is every kJoinShares-th chunk, several loads at a time. Grid: (columns,
/// gradients) of blocks of (32 columns, kJoinShares).
template <class C, class T>
__global__ void join_chunks(const C* parts, T* first, T* second, int64_t d, int64_t chunks) {
  auto& shared = block_shared<C[kJoinShares][32]>();
  const C* const from = parts + blockIdx.y * chunks * d;
  T* const to = blockIdx.y == 0 ? first : second;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * blockDim.x; begin < d; begin += step) {
    const int64_t i = begin + threadIdx.x;
    C sum = 0;
    if (i < d) {
#pragma unroll 8
      for (int64_t c = threadIdx.y; c < chunks; c += kJoinShares) sum += from[c * d + i];
    }
    __syncthreads();  // the last columns' sums are read
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || i >= d) continue;
    for (int share = 1; share < kJoinShares; ++share) sum += shared[share][threadIdx.x];
    to[i] = static_cast<T>(sum);
  }
}

/// `second` may be null.
template <class C, class T>
void launch_join_chunks(const C* parts, T* first, T* second, int64_t d, int64_t chunks,
                        Stream stream) {
  launch(join_chunks<C, T>, dim3(blocks_for(d, 32), second ? 2 : 1), dim3(32, kJoinShares), 0,
         stream, parts, first, second, d, chunks);
}

}  // namespace tessera
