// SPDX-License-Identifier: Apache-2.0
// CUDA C++ for g++: the words of the kernel language, what kernels call, and the launch. A kernel
// is a plain function that is called once for each thread of the grid; threads that wait for each
// other are fibers (block.cpp).
#pragma once

#include "cuda_runtime_api.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <math.h>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace cuda_emulation {

/// Of a grid whose threads stride over the rest: so few that they do in small samples.
inline constexpr int64_t kMaxBlocks = 2;

struct Kernel {
  std::function<void()> thread;  // what each thread does
  const void* function;
  dim3 grid, block;
  size_t shared;  // bytes that the launch gives
};
CUDA_EMULATION_API cudaError_t launch(Kernel kernel, cudaStream_t stream);
/// Whether a launch does nothing, to measure what the host does beside it.
CUDA_EMULATION_API bool skips_launches();
/// Appends work of another kind, such as a library's, to a stream.
CUDA_EMULATION_API cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

/// Where a thread waits: a place in the sources.
using Site = std::source_location;
CUDA_EMULATION_API void barrier(Site site);
/// Gives the other lanes of `mask` the value at `bytes`, and takes that of the lane `from`.
CUDA_EMULATION_API void exchange(unsigned mask, int from, void* value, size_t bytes, Site site);
/// The block's array with this key, made by the first thread that asks.
CUDA_EMULATION_API void* shared_array(const void* key, size_t bytes, size_t alignment, Site site);
CUDA_EMULATION_API unsigned char* launch_shared();
CUDA_EMULATION_API int lane();

template <class S> inline constexpr char kSharedKey = 0;
template <class S> S& block_shared(Site site = Site::current()) {
  return *static_cast<S*>(shared_array(&kSharedKey<S>, sizeof(S), alignof(S), site));
}

template <class T> T shuffle(unsigned mask, T value, int from, Site site) {
  static_assert(std::is_arithmetic_v<T>, "the shuffles take numbers");
  exchange(mask, from, &value, sizeof(T), site);
  return value;
}

}  // namespace cuda_emulation

extern "C" {
CUDA_EMULATION_API extern uint3 threadIdx, blockIdx;
CUDA_EMULATION_API extern dim3 blockDim, gridDim;
}

using std::max, std::min;

inline void __syncthreads(cuda_emulation::Site site = cuda_emulation::Site::current()) {
  cuda_emulation::barrier(site);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from,
              cuda_emulation::Site site = cuda_emulation::Site::current()) {
  return cuda_emulation::shuffle(mask, value, from & 31, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int step,
                 cuda_emulation::Site site = cuda_emulation::Site::current()) {
  const int lane = cuda_emulation::lane();
  return cuda_emulation::shuffle(mask, value, lane < step ? lane : lane - step, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int step,
                  cuda_emulation::Site site = cuda_emulation::Site::current()) {
  return cuda_emulation::shuffle(mask, value, cuda_emulation::lane() ^ step, site);
}

// One thread runs at a time, so what it does between two waits is atomic.
template <class T> T atomicAdd(T* at, T value) { return std::exchange(*at, *at + value); }
template <class T> T atomicMin(T* at, T value) { return std::exchange(*at, std::min(*at, value)); }

inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return ::fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return ::sqrtf(a); }

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute what, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), what, value);
}

/// Parameters are copied at the call, as a driver does.
template <class... Parameters, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Args&&... args) {
  static_assert((sizeof(Parameters) + ... + 0) <= 32764, "a kernel's parameters are too large");
  if (cuda_emulation::skips_launches()) return cudaSuccess;
  std::tuple<Parameters...> values(std::forward<Args>(args)...);
  return cuda_emulation::launch(
      {[=] { std::apply(kernel, values); }, reinterpret_cast<const void*>(kernel), config->gridDim,
       config->blockDim, config->dynamicSmemBytes},
      config->stream);
}
