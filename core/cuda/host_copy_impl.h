// SPDX-License-Identifier: Apache-2.0
// Copies from a device to pinned memory of the host, which the host waits for later or never.
// Memory and events of earlier copies are used again: each is of one stream, so a later copy into
// the same memory runs after the earlier one.
#pragma once

#include "tessera/core/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace tessera {

class HostCopies : public std::enable_shared_from_this<HostCopies> {
 public:
  /// `stream` is one of the current device, and always the same. DeviceError: CUDA's.
  [[nodiscard]] std::unique_ptr<HostCopy> begin(const void* from, size_t bytes,
                                                cudaStream_t stream);

 private:
  class Copy;
  struct Place {
    void* memory = nullptr;
    size_t bytes = 0;
    cudaEvent_t event = nullptr;
  };
  [[nodiscard]] Place take(size_t bytes);

  std::mutex mutex_;  // a copy may be given up on another thread
  std::vector<Place> idle_;
};

}  // namespace tessera
