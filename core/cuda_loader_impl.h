// SPDX-License-Identifier: Apache-2.0
// Finds and opens libtessera_cuda.so: the file that the variable TESSERA_CUDA_LIBRARY names;
// without it, the one beside the library or program that holds the core, then as the linker would.
#pragma once

#include "tessera/core/cuda_backend.h"

#include <string>

namespace tessera {

class CudaLoader {
 public:
  explicit CudaLoader(const Process* process);
  /// The backend, or a DeviceError that says why there is none.
  [[nodiscard]] CudaBackend& backend() const;
  /// The calling thread's memory of a device. DeviceError: there is no such device.
  [[nodiscard]] const Ref<Allocator>& allocator(int device) const;

 private:
  CudaBackend* backend_ = nullptr;
  std::string why_not_;
};

}  // namespace tessera
