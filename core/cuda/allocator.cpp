// SPDX-License-Identifier: Apache-2.0
// A block goes back in the order of the stream that made it, which waits for the device's other
// streams: any of them may have used it. A rank alone on its device has one.
#include "tessera/core/cuda/allocator_impl.h"
#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/out_of_memory.h"

#include <algorithm>
#include <limits>

namespace tessera {

CudaAllocator::CudaAllocator(int device) : device_(device) {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location = {cudaMemLocationTypeDevice, device};
  TESSERA_CUDA_CALL(cudaMemPoolCreate(&pool_, &props));
  uint64_t keep =
      std::numeric_limits<uint64_t>::max();  // freed bytes stay in the pool until empty_cache()
  TESSERA_CUDA_CALL(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
}

void* CudaAllocator::allocate(int64_t bytes) {
  const cudaStream_t stream = cuda_stream(device_);
  void* block = nullptr;
  cudaError_t status = cudaMallocFromPoolAsync(&block, static_cast<size_t>(bytes), pool_, stream);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    empty_cache();
    status = cudaMallocFromPoolAsync(&block, static_cast<size_t>(bytes), pool_, stream);
  }
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    fail<OutOfMemory>("allocate", "cuda:", device_, " is out of memory: ", bytes, " bytes asked, ",
                      stats().live, " in use; use a smaller batch or sequence");
  }
  check_cuda(status, "cudaMallocFromPoolAsync");
  const std::lock_guard lock(mutex_);
  owners_[block] = stream;
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  return block;
}

void CudaAllocator::free(void* block, int64_t bytes) noexcept {
  cudaStream_t owner = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto it = owners_.find(block);
    if (it == owners_.end()) return;
    owner = it->second;
    owners_.erase(it);
    live_ -= bytes;
  }
  // What cannot be ordered is waited for. At process exit CUDA may be gone already; then the errors
  // mean nothing.
  if (order_after_others(device_, owner) != cudaSuccess) {
    (void)cudaGetLastError();
    (void)cudaDeviceSynchronize();
  }
  if (cudaFreeAsync(block, owner) != cudaSuccess) (void)cudaGetLastError();
}

void CudaAllocator::empty_cache() {
  (void)cuda_stream(device_);
  TESSERA_CUDA_CALL(cudaDeviceSynchronize());
  TESSERA_CUDA_CALL(cudaMemPoolTrimTo(pool_, 0));
}

MemoryStats CudaAllocator::stats() const {
  uint64_t reserved = 0, used = 0;
  // Destructors ask, also after a kernel has failed: what the pool does not tell is left out.
  if (cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved) != cudaSuccess ||
      cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used) != cudaSuccess) {
    (void)cudaGetLastError();
    reserved = used = 0;
  }
  const std::lock_guard lock(mutex_);
  return {live_, peak_, static_cast<int64_t>(reserved - std::min(used, reserved))};
}

void CudaAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = live_;
}

}  // namespace tessera
