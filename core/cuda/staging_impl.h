// SPDX-License-Identifier: Apache-2.0
// Pinned host memory through which a thread sends bytes to a device: the source may be written
// again when send() returns, and the host does not wait for the device. A ring: a range is free
// again when the event after its copy has fired, so only a ring that is full makes the host wait.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <vector>

namespace tessera {

class Staging {
 public:
  /// On the current device, where all its copies go.
  Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Copies `bytes` bytes to the device, in the order of `stream`. DeviceError: CUDA's.
  void send(void* to, const void* from, size_t bytes, cudaStream_t stream);

 private:
  struct Sent {
    size_t begin, end;
    cudaEvent_t event;
  };
  /// Where the next `bytes` bytes lie, once whatever was sent from there has arrived.
  [[nodiscard]] size_t place_for(size_t bytes);
  void wait_for_oldest();
  void retire_oldest();  // which has arrived
  [[nodiscard]] cudaEvent_t free_event();

  std::byte* ring_ = nullptr;
  size_t next_ = 0;
  std::deque<Sent> in_flight_;  // in the order of the ring, the oldest first
  std::vector<cudaEvent_t> idle_;
};

}  // namespace tessera
