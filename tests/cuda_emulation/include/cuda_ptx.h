// SPDX-License-Identifier: Apache-2.0
// The PTX instructions that kernels/shared wraps, as the PTX ISA describes them: what a warp
// exchanges, and copies that land when they are waited for. A name and its operands are those of
// the wrapper. Addresses are checked: shared memory where it must be, multiples of 16 bytes.
#pragma once

#include "cuda_runtime.h"

namespace cuda_emulation {

/// mma.sync.aligned.m16n8k16.row.col of 16-bit floats that `widen` makes f32 of their bits.
CUDA_EMULATION_API void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                    float (*widen)(uint16_t), Site site);
template <class T>
void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                 Site site = Site::current()) {
  mma_16x8x16(
      d, a, b, [](uint16_t bits) { return static_cast<float>(std::bit_cast<T>(bits)); }, site);
}

/// cvt.rn.bf16x2.f32 and cvt.rn.f16x2.f32: the first in the lower half.
template <class T> uint32_t fragment_of(float first, float second) {
  return T(first).bits | static_cast<uint32_t>(T(second).bits) << 16;
}

/// ex2.approx.ftz.f32: 2^-22 off, above or below.
inline float exp2_approx(float x) {
  const float y =
      std::exp2(x) * ((std::bit_cast<uint32_t>(x) & 1) != 0 ? 1 - 0x1p-22F : 1 + 0x1p-22F);
  return y < std::numeric_limits<float>::min() ? 0 : y;
}

/// ldmatrix.sync.aligned.m8n8.x4.shared.b16, plain and .trans.
CUDA_EMULATION_API void ldmatrix_x4(uint32_t (&r)[4], const void* row, Site site = Site::current());
CUDA_EMULATION_API void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row,
                                          Site site = Site::current());

/// cp.async.cg.shared.global of 16 bytes, of which `bytes` are read and the others become zero.
CUDA_EMULATION_API void cp_async(void* shared, const void* global, int bytes,
                                 Site site = Site::current());
CUDA_EMULATION_API void cp_async_commit();
CUDA_EMULATION_API void cp_async_wait(int groups, Site site);
template <int kGroups> void cp_async_wait(Site site = Site::current()) {
  cp_async_wait(kGroups, site);
}

}  // namespace cuda_emulation
