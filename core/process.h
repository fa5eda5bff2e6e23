// SPDX-License-Identifier: Apache-2.0
// Process: what exists once per process, that is the CPU's features and the CUDA library.
#pragma once

#include "tessera/core/ref.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace tessera {

class Allocator;
class Context;
class CudaBackend;
class CudaLoader;

/// Instruction sets that kernels are compiled for.
enum class Isa : uint8_t { baseline, avx2, avx512 };

/// Once per process. Made on first use; holds no tensors.
class TESSERA_API Process {
 public:
  static Process& get();
  [[nodiscard]] Isa isa() const { return isa_; }
  [[nodiscard]] int cores() const { return cores_; }
  /// Limits kernels to `isa` (tests compare instruction sets); throws ValueError above what the
  /// machine has.
  void limit_isa(Isa isa);
  /// The CUDA library, loaded on first use; DeviceError says why there is none.
  CudaBackend& cuda();
  [[nodiscard]] bool cuda_available() noexcept;
  [[nodiscard]] const Ref<Allocator>& cuda_allocator(int device);
  ~Process();

 private:
  friend class Context;
  Process();
  Isa isa_, machine_isa_;
  int cores_ = 1;
  std::once_flag cuda_once_;
  std::unique_ptr<CudaLoader> cuda_;
  std::atomic<uint32_t> contexts_{0};  // made so far
};

}  // namespace tessera
