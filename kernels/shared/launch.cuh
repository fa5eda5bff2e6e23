// SPDX-License-Identifier: Apache-2.0
// What every CUDA room launches with: grid sizes, launch checks, and inputs made row-major where a
// kernel wants that.
#pragma once

#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/op_types.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace tessera {

inline constexpr int kThreads = 256;
inline constexpr int64_t kMaxBlocks = 4096;  // fill any device; loops stride over the rest

inline cudaStream_t handle(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Blocks of a grid-stride loop over `n` items.
inline unsigned blocks_for(int64_t n, int64_t per_block = kThreads) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(n, per_block), 1, kMaxBlocks));
}

/// Threads of a block that works on `n` items together: a power of two from a warp to `most`.
inline int threads_for(int64_t n, int most = kThreads) {
  int threads = 32;
  while (threads < n && threads < most) threads *= 2;
  return threads;
}

inline void check_launch(std::string_view op) { check_cuda(cudaGetLastError(), op); }

/// First item and step of a grid-stride loop: `for (int64_t i = first_item(); i < n; i +=
/// item_step())`.
__device__ inline int64_t first_item() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t item_step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

/// Copies `x` into `y` of the same shape and dtype; either may be strided. Defined in the pointwise
/// room.
void copy_strided(const Tensor& x, const Tensor& y, Stream stream);

/// x itself, or a row-major copy of it made on `stream`.
inline Tensor row_major(const Tensor& x, Stream stream) {
  if (x.is_contiguous()) return x;
  const Tensor y = empty(x.shape(), x.dtype(), x.device());
  copy_strided(x, y, stream);
  return y;
}

/// A tensor seen as (outer, n, inner) around `dim`; a 0-dim one as (1, 1, 1).
struct DimView {
  int64_t outer = 1, n = 1, inner = 1;
  DimView(const Shape& shape, int dim, std::string_view op) {
    const int at = normalize_dim(dim, shape.rank(), op);
    for (int d = 0; d < shape.rank(); ++d) (d < at ? outer : d == at ? n : inner) *= shape[d];
  }
};

}  // namespace tessera
