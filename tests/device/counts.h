// SPDX-License-Identifier: Apache-2.0
// What the devices of library/host_device.cpp have counted.
#pragma once

#include "tessera/core/process.h"
#include "tessera/tests/device/library/host_device.h"

#include <cstdlib>
#include <dlfcn.h>

namespace tessera::test {

/// Of this process; null on devices that do not count.
inline HostDeviceCounts* host_device_counts() {
  if (!Process::get().cuda_available()) return nullptr;
  void* const library = dlopen(std::getenv("TESSERA_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  const auto counts = reinterpret_cast<HostDeviceCounts* (*)()>(
      library ? dlsym(library, "tessera_host_device_counts") : nullptr);
  return counts ? counts() : nullptr;
}

}  // namespace tessera::test
