// SPDX-License-Identifier: Apache-2.0
// The streams of a thread: per device one that computes and one that copies from the host, so that
// ranks that are threads do not wait for each other. When a thread ends, its lanes are kept for
// later threads, because blocks still refer to their streams.
#pragma once

#include "tessera/core/cuda/allocator_impl.h"
#include "tessera/core/cuda/host_copy_impl.h"
#include "tessera/core/cuda/staging_impl.h"

#include <cuda_runtime_api.h>

#include <memory>

namespace tessera {

/// What a thread has of a device.
struct Lane {
  cudaStream_t stream = nullptr, copy_stream = nullptr;
  /// Blocks of each stream. Those of the copy stream are for the compute stream, once filled.
  Ref<StreamAllocator> arena, upload_arena;
  /// Where tensors come from: the arenas, but while the thread captures its work memory of the
  /// graph.
  Ref<Allocator> memory, upload_memory;
  std::unique_ptr<Staging> staging;  // made by the first copy from the host
  std::shared_ptr<HostCopies> host_copies;
  Ref<StreamAllocator> captured;  // while the thread captures: the graph's memory
};

/// The calling thread's lane of `device`, made on first use. Makes `device` the thread's current
/// one.
[[nodiscard]] Lane& lane_of(int device);
/// How many threads' lanes of `device` were made: with one, all blocks are of one thread.
[[nodiscard]] int lanes_made(int device) noexcept;

/// Makes a device the calling thread's current one for its lifetime.
class OnDevice {
 public:
  explicit OnDevice(int device) noexcept;
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  [[nodiscard]] cudaError_t status() const { return status_; }

 private:
  int before_;
  cudaError_t status_;
};

/// Makes what `later` is given from now on run after what `earlier`, of `device`, was given so far.
[[nodiscard]] cudaError_t order(int device, cudaStream_t earlier, cudaStream_t later) noexcept;

/// A stream of nobody: of a thread's communication, say. Goes back by give_stream().
[[nodiscard]] cudaStream_t take_stream(int device);
void give_stream(int device, cudaStream_t stream) noexcept;

}  // namespace tessera
