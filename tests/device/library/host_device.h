// SPDX-License-Identifier: Apache-2.0
// What tests see of the devices of host_device.cpp beside the interface of the CUDA library.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::test {

/// Counted over all devices and threads.
struct HostDeviceCounts {
  std::atomic<int64_t> to_host{0};       ///< copies to the host: each waits for the device
  std::atomic<int64_t> synchronised{0};  ///< other waits of the host
  std::atomic<int64_t> begun{0};         ///< copies to the host that it may wait for later
  std::atomic<int64_t> kernels{0};
  std::atomic<int64_t> allocators{0};  ///< devices whose memory somebody uses
};

}  // namespace tessera::test

/// The library's; found by its name after the library was opened.
extern "C" tessera::test::HostDeviceCounts* tessera_host_device_counts();
