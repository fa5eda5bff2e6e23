// SPDX-License-Identifier: Apache-2.0
// Finds and opens libtessera_cuda.so: the file that the variable TESSERA_CUDA_LIBRARY names;
// without it, the one beside the library or program that holds the core, then as the linker would.
#pragma once

#include "tessera/core/cuda_backend.h"

#include <mutex>
#include <string>
#include <vector>

namespace tessera {

class CudaLoader {
 public:
  explicit CudaLoader(const Process* process);
  /// The backend, or a DeviceError that says why there is none.
  [[nodiscard]] CudaBackend& backend() const;
  /// Made when it is first asked for.
  [[nodiscard]] const Ref<Allocator>& allocator(int device);

 private:
  CudaBackend* backend_ = nullptr;
  std::string why_not_;
  std::mutex mutex_;                        // guards the making of an allocator
  std::vector<Ref<Allocator>> allocators_;  // by device
};

}  // namespace tessera
