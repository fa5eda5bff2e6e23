// SPDX-License-Identifier: Apache-2.0
// Finds and opens libtessera_cuda.so: beside the library or program that holds the core, then as
// the linker would.
#pragma once

#include "tessera/core/cuda_backend.h"

#include <string>
#include <vector>

namespace tessera {

class CudaLoader {
 public:
  explicit CudaLoader(const Process* process);
  /// The backend, or a DeviceError that says why there is none.
  [[nodiscard]] CudaBackend& backend() const;
  [[nodiscard]] const Ref<Allocator>& allocator(int device);

 private:
  CudaBackend* backend_ = nullptr;
  std::string why_not_;
  std::vector<Ref<Allocator>> allocators_;
};

}  // namespace tessera
