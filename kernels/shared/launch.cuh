// SPDX-License-Identifier: Apache-2.0
// What every CUDA room launches with: grid sizes, the launch itself, a block's shared memory, and
// inputs made row-major where a kernel wants that. Kernels are launched and shared arrays are made
// here alone, so that the same sources run on an emulated device too.
#pragma once

#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/op_types.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tessera {

inline constexpr int kThreads = 256;
#ifdef __CUDACC__
inline constexpr int64_t kMaxBlocks = 4096;  // fill any device; loops stride over the rest
#else
using cuda_emulation::kMaxBlocks;
#endif

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

/// Launches kernel(args...) on `stream`, with `shared` bytes for launch_shared(). DeviceError with
/// the kernel's symbol where the launch is refused.
template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, Stream stream,
            Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = handle(stream);
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  if (status == cudaSuccess) [[likely]] {
    return;
  }
  const char* symbol = "a kernel";
  (void)cudaFuncGetName(&symbol, reinterpret_cast<const void*>(kernel));
  check_cuda(status, concat("launch of ", symbol, " on ", grid.x, " x ", grid.y, " x ", grid.z,
                            " blocks of ", block.x, " threads with ", shared, " shared bytes"));
}

#ifdef __CUDACC__
/// The block's shared memory as an S, undefined at first. One per kernel and type: where a kernel
/// wants two of a type, S is a struct of both.
template <class S> __device__ __forceinline__ S& block_shared() {
  alignas(S) __shared__ unsigned char bytes[sizeof(S)];
  return *reinterpret_cast<S*>(bytes);
}
/// The shared bytes that the launch gave, for any type.
__device__ __forceinline__ unsigned char* launch_shared() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return bytes;
}
#else
using cuda_emulation::block_shared, cuda_emulation::launch_shared;
#endif

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

/// Calls run(scratch, bytes) twice, as CUB wants it: without scratch memory, to say in `bytes` how
/// much it needs, and with it. The memory goes back in the order of the stream.
template <class F> void with_scratch(std::string_view op, Device device, F run) {
  size_t bytes = 0;
  check_cuda(run(nullptr, bytes), op);
  const Tensor scratch = empty({static_cast<int64_t>(bytes) + 1}, DType::u8, device);
  check_cuda(run(scratch.raw_device_data(), bytes), op);
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
