// SPDX-License-Identifier: Apache-2.0
// Process: state that exists once per process: the CPU's features and the CUDA library.
#pragma once

#include "tessera/core/ref.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace tessera {

class Allocator;
class Context;
class CudaBackend;
class CudaLoader;

/// Instruction sets that kernels are compiled for.
enum class Isa : uint8_t { baseline, avx2, avx512 };

/// Where a library that is opened at run time may lie, in order: beside the library or program that
/// holds the core, in ../lib of it, where the loader looks.
TESSERA_API std::vector<std::string> library_paths(const std::string& library);

/// Once per process. Made on first use; holds no tensors.
class TESSERA_API Process {
 public:
  static Process& get();
  [[nodiscard]] Isa isa() const { return isa_; }
  [[nodiscard]] int cores() const { return cores_; }
  /// Limits kernels to `isa` (tests compare instruction sets); throws ValueError above what the
  /// machine has.
  void limit_isa(Isa isa);
  /// The CUDA library, loaded on first use; DeviceError says why it cannot be loaded.
  CudaBackend& cuda();
  [[nodiscard]] bool cuda_available() noexcept;
  [[nodiscard]] const Ref<Allocator>& cuda_allocator(int device);
  /// Whether the Context with this number still exists, on whichever thread.
  [[nodiscard]] bool context_exists(uint32_t number);
  ~Process();

 private:
  friend class Context;
  Process();
  Isa isa_, machine_isa_;
  int cores_ = 1;
  std::once_flag cuda_once_;
  std::unique_ptr<CudaLoader> cuda_;
  uint32_t add_context();  // its number
  void remove_context(uint32_t number);
  std::mutex contexts_mutex_;
  uint32_t contexts_made_ = 0;
  std::set<uint32_t> contexts_;  // numbers of those that exist
};

}  // namespace tessera
