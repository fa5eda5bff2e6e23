// SPDX-License-Identifier: Apache-2.0
// Interface of the CUDA library (libtessera_cuda.so), which is loaded on first use of a CUDA
// device.
#pragma once

#include "tessera/core/allocator.h"
#include "tessera/core/tensor_fwd.h"

#include <memory>
#include <string>
#include <string_view>

namespace tessera {

class Process;

// A tensor of a device stays on the thread that made it: each thread has a stream of its own, and
// none waits for another's. To hand one over, synchronise first.

/// Raised with every change of the interface. The library gives its own by the function
/// `int tessera_cuda_version()`.
inline constexpr int kCudaVersion = 3;

/// A copy to the host under way. It may be given up before its end.
class HostCopy {
 public:
  virtual ~HostCopy() = default;
  /// Its bytes, valid as long as this object, once they are there.
  [[nodiscard]] virtual const void* wait() = 0;
};

class CudaBackend {
 public:
  using Kernel = void (*)(const void* op, Tensors in, Outputs y, Stream);
  virtual ~CudaBackend() = default;
  [[nodiscard]] virtual int device_count() const = 0;
  /// Why there is no device: no driver, one that is too old, none visible.
  [[nodiscard]] virtual std::string why_no_device() const = 0;
  /// The library's view of the process: it must be the caller's, or two copies of the core are
  /// linked.
  [[nodiscard]] virtual const Process* process() const = 0;
  [[nodiscard]] virtual Ref<Allocator> allocator(int device) = 0;
  [[nodiscard]] virtual Stream stream(int device) = 0;
  /// Copies between host and device or device and device, after what this thread's stream was given
  /// before. Bytes of the host are read or written when it returns: only a copy to the host waits
  /// for the device. Copies between two devices wait for both.
  virtual void copy(void* to, Device to_device, const void* from, Device from_device,
                    int64_t bytes) = 0;
  /// Begins a copy of a device's bytes to the host, after what this thread's stream was given
  /// before, and waits for nothing.
  [[nodiscard]] virtual std::unique_ptr<HostCopy> copy_to_host(const void* from, Device device,
                                                               int64_t bytes) = 0;
  virtual void synchronize(int device) = 0;
  /// For people: `NVIDIA H100 80GB HBM3`.
  [[nodiscard]] virtual std::string device_name(int device) const = 0;
  /// Bytes of the device, free ones and others.
  [[nodiscard]] virtual int64_t device_memory(int device) const = 0;
  /// The kernel of the op with this name, or null.
  [[nodiscard]] virtual Kernel kernel(std::string_view op) const = 0;
};

}  // namespace tessera
