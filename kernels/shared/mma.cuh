// SPDX-License-Identifier: Apache-2.0
// Tensor-core products of a warp, PTX mma.sync, of sm_80 and later, and what makes their operands.
// PTX stands in one header per family of instructions, mma.cuh, ldmatrix.cuh and cp_async.cuh; an
// emulated device has a twin of each (tests/cuda_emulation/include/cuda_ptx.h).
#pragma once

#include "tessera/core/float_types.h"

#include <cstdint>
#include <type_traits>

#ifndef __CUDACC__
#include <cuda_ptx.h>
#endif

namespace tessera {

#ifdef __CUDACC__
/// d (16, 8) += a (16, 16) b (16, 8) in f32, of T bf16 or f16; the whole warp calls it. With
/// g = lane / 4 and t = lane % 4 * 2, two elements to a register, a lane holds of
/// d: (g, t), (g, t + 1), (g + 8, t), (g + 8, t + 1);
/// a: (g, t..), (g + 8, t..), (g, t + 8..), (g + 8, t + 8..), each with the next column;
/// b: (t.., g), (t + 8.., g), each with the next row.
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4],
                                            const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}
/// Two numbers rounded to T as a register of a fragment, the first in its lower half.
template <class T> __device__ __forceinline__ uint32_t fragment_of(float first, float second) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  uint32_t two;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
  }
  return two;
}
/// 2^x, with a relative error of up to 2^-22; 0 where that is subnormal.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
using cuda_emulation::mma_16x8x16, cuda_emulation::fragment_of, cuda_emulation::exp2_approx;
#endif

}  // namespace tessera
