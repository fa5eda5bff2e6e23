// SPDX-License-Identifier: Apache-2.0
// Work of a CUDA device that is recorded once and launched as a whole, as torch.cuda.CUDAGraph: the
// host spends one call on it. Each launch works on the same addresses, so what changes from one to
// the next lies in tensors that are written between launches.
#pragma once

#include "tessera/core/device.h"
#include "tessera/core/ref.h"

#include <cstdint>
#include <functional>

namespace tessera {

class TESSERA_API CudaGraph : public RefCounted<CudaGraph> {
 public:
  virtual ~CudaGraph();
  static void* operator new(size_t bytes) { return ::operator new(bytes); }
  static void operator delete(void* p) noexcept { ::operator delete(p); }
  /// Queues the work on the stream of the calling thread, which is the one that recorded it.
  virtual void launch() = 0;
};

/// Records what `work` queues on this thread's stream of `device`; nothing of it runs. Tensors made
/// in it lie in memory of the graph's own, which stays until the graph and they are gone: `reserve`
/// bytes (the peak of the same work done once before) and an eighth more, for gaps between blocks,
/// and as much of the thread's cached memory as it takes beyond. Those made before that the
/// work reads must be kept as long as the graph. UsageError in `work`: a copy from the host, a read
/// of a tensor, a wait; DeviceError: what the device cannot record.
[[nodiscard]] TESSERA_API Ref<CudaGraph> capture_graph(Device device, int64_t reserve,
                                                       const std::function<void()>& work);

}  // namespace tessera
