// SPDX-License-Identifier: Apache-2.0
// Joining the values of a block's threads in a fixed tree, so that sums have the same bits on every
// run.
#pragma once

#include "tessera/core/dtype.h"

#include <cstdint>

namespace tessera {

struct SumOf {
  template <class C> __device__ __forceinline__ C operator()(C a, C b) const { return a + b; }
};

/// NaN wins, so that it is not lost on the way.
struct MaxOf {
  template <class C> __device__ __forceinline__ C operator()(C a, C b) const {
    return a != a || a > b ? a : b;
  }
};

/// The join of `value` over the block, given to every thread. blockDim.x is a multiple of 32, at
/// most 1024; `shared` holds 32 values. Every thread of the block must call it.
template <class C, class Join> __device__ C block_reduce(C value, Join join, C* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
  const int warps = blockDim.x / 32;
  if (warps == 1) return value;
  __syncthreads();  // the last call's readers are done with `shared`
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  C total = shared[0];
  for (int w = 1; w < warps; ++w) total = join(total, shared[w]);
  return total;
}

template <class C> __device__ __forceinline__ C minus_infinity() {
  return -static_cast<C>(__int_as_float(0x7f800000));
}
template <class C> __device__ __forceinline__ C not_a_number() {
  return static_cast<C>(__int_as_float(0x7fc00000));
}

}  // namespace tessera
