// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory that go on while the thread does: PTX cp.async, of sm_80 and
// later. See mma.cuh.
#pragma once

#include <cstdint>

#ifndef __CUDACC__
#include <cuda_ptx.h>
#endif

namespace tessera {

#ifdef __CUDACC__
/// Starts a copy of 16 bytes past L1, of which the first `bytes` are read and the others become
/// zero. Both addresses are multiples of 16 bytes. The copy has landed, for this thread, after a
/// wait for its group; for other threads, after a barrier behind that.
__device__ __forceinline__ void cp_async(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
               : "memory");
}
/// Makes a group of the thread's copies since the last one; it may be empty.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until all but the thread's `kGroups` latest groups have landed.
template <int kGroups> __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
#else
using cuda_emulation::cp_async, cuda_emulation::cp_async_commit, cuda_emulation::cp_async_wait;
#endif

}  // namespace tessera
