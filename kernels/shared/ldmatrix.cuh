// SPDX-License-Identifier: Apache-2.0
// Fragments of matrices from shared memory: PTX ldmatrix, of sm_75 and later. See mma.cuh.
#pragma once

#include <cstdint>

#ifndef __CUDACC__
#include <cuda_ptx.h>
#endif

namespace tessera {

#ifdef __CUDACC__
/// Four 8 x 8 matrices of 16-bit elements; the whole warp calls it. Lane l gives the address of row
/// l % 8 of matrix l / 8, in shared memory and a multiple of 16 bytes; of each matrix i it gets in
/// r[i] the elements (l / 4, l % 4 * 2) and the one to its right.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
/// The same of the matrices transposed: (l % 4 * 2, l / 4) and the one below it.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
#else
using cuda_emulation::ldmatrix_x4, cuda_emulation::ldmatrix_x4_trans;
#endif

}  // namespace tessera
