// SPDX-License-Identifier: Apache-2.0
// What the devices of this process have counted: those of library/host_device.cpp, or emulated
// ones.
#pragma once

#include "tessera/core/process.h"
#include "tessera/tests/cuda_emulation/counts.h"
#include "tessera/tests/device/library/host_device.h"

#include <cstdlib>
#include <dlfcn.h>

namespace tessera::test {

/// A function of the CUDA library, or of one that it links; null if there is none of the name.
template <class F> F* device_function(const char* name) {
  if (!Process::get().cuda_available()) return nullptr;
  const char* const given = std::getenv("TESSERA_CUDA_LIBRARY");
  void* const library = dlopen(given ? given : "libtessera_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  return library ? reinterpret_cast<F*>(dlsym(library, name)) : nullptr;
}

/// Null on devices that are not those of library/host_device.cpp.
inline HostDeviceCounts* host_device_counts() {
  auto* const counts = device_function<HostDeviceCounts*()>("tessera_host_device_counts");
  return counts ? counts() : nullptr;
}

/// Waits of the host, and launches by kernel; empty launches on devices that do not count.
inline cuda_emulation::Counts device_counts() {
  cuda_emulation::Counts all;
  if (const HostDeviceCounts* host = host_device_counts()) {
    all.waits = host->to_host + host->synchronised;
    all.launches["kernels"] = host->kernels;
  } else if (auto* const emulated =
                 device_function<void(cuda_emulation::Counts*)>("cuda_emulation_counts")) {
    emulated(&all);
  }
  return all;
}

}  // namespace tessera::test
