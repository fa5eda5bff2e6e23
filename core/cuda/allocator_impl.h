// SPDX-License-Identifier: Apache-2.0
// The caching allocator of one CUDA device: a memory pool of the driver that keeps freed bytes for
// reuse. Allocation and free are ordered on streams, so a block can be freed while kernels that use
// it are still waiting to run.
#pragma once

#include "tessera/core/allocator.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <unordered_map>

namespace tessera {

/// The calling thread's stream on `device`; made on first use. Makes `device` the thread's current
/// one.
[[nodiscard]] cudaStream_t cuda_stream(int device);
/// Makes what `later`, a stream of `device`, runs from now on wait for what all other streams of
/// the device were given so far.
[[nodiscard]] cudaError_t order_after_others(int device, cudaStream_t later) noexcept;

class CudaAllocator final : public Allocator {
 public:
  explicit CudaAllocator(int device);
  void* allocate(int64_t bytes) override;
  void free(void* block, int64_t bytes) noexcept override;
  void empty_cache() override;
  [[nodiscard]] MemoryStats stats() const override;
  void reset_peak() override;

 private:
  const int device_;
  cudaMemPool_t pool_ = nullptr;
  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<void*, cudaStream_t>
      owners_;  // the stream that each block in use was allocated on
  int64_t live_ = 0, peak_ = 0;
};

}  // namespace tessera
