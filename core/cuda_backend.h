// SPDX-License-Identifier: Apache-2.0
// Interface of the CUDA library (libtessera_cuda.so), which is loaded on first use of a CUDA
// device.
#pragma once

#include "tessera/core/allocator.h"
#include "tessera/core/cuda_graph.h"
#include "tessera/core/tensor_fwd.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class Process;
class Storage;

// Each thread has a stream of its own on a device, and none waits for another's unless a tensor is
// handed over: an op on a tensor that another thread has made or used goes on after that thread's
// work so far. Of two threads that use one tensor, the host must order the calls.

/// Raised with every change of the interface. The library gives its own by the function
/// `int tessera_cuda_version()`.
inline constexpr int kCudaVersion = 4;

/// A copy to the host under way. It may be given up before its end.
class HostCopy {
 public:
  virtual ~HostCopy() = default;
  /// Its bytes, valid as long as this object, once they are there.
  [[nodiscard]] virtual const void* wait() = 0;
};

/// A kernel, copy or fill that a device ran.
struct DeviceWork {
  std::string name;            ///< of a kernel, without its parameters; `copy`; `fill`
  uint64_t mark = 0;           ///< of the thread that launched it; 0: none
  int64_t begin = 0, end = 0;  ///< ns of the host's steady clock
  int64_t bytes = 0;           ///< of a copy or fill
  uint64_t stream = 0;         ///< tells streams of a device apart
};

/// All that a device ran while it was traced.
struct DeviceWorks {
  std::vector<DeviceWork> all;  ///< in the order in which they began
  int64_t dropped = 0;          ///< records that did not fit in memory and are not among them
};

/// Traces devices of this process. Kernels run slower meanwhile by some percent.
class DeviceTrace {
 public:
  virtual ~DeviceTrace() = default;
  /// UsageError: the device is traced already.
  virtual void start(int device) = 0;
  /// What this thread launches from now on has this mark; kernels of a graph have the mark of its
  /// launch.
  virtual void mark(uint64_t mark) = 0;
  /// Waits for the device, and ends the trace. UsageError: none was started.
  [[nodiscard]] virtual DeviceWorks stop(int device) = 0;
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

  /// Memory of this thread's stream on the device: a freed block is reused in the order of the
  /// stream, without a wait. Its statistics and cache are those of the whole device.
  [[nodiscard]] virtual const Ref<Allocator>& allocator(int device) = 0;
  /// Memory for upload().
  [[nodiscard]] virtual const Ref<Allocator>& upload_allocator(int device) = 0;
  /// This thread's stream on the device, which becomes the thread's current one.
  [[nodiscard]] virtual Stream stream(int device) = 0;
  /// The same, to work on `tensors`: after what other threads do with them.
  [[nodiscard]] virtual Stream stream_for(int device, Tensors tensors) = 0;
  /// A stream beside those of threads, for communication say; it goes back by give_stream().
  [[nodiscard]] virtual Stream take_stream(int device) = 0;
  virtual void give_stream(Stream stream) = 0;
  /// What `later` is given from now on runs after what `earlier` was given so far.
  virtual void order(Stream earlier, Stream later) = 0;
  /// `stream` works on the bytes until the storage gives them up: it goes on after the streams that
  /// they were made or used on, and they are reused only after what it was given until then.
  virtual void record_stream(const Storage& storage, Stream stream) = 0;

  /// Copies between host and device or device and device, after what this thread's streams were
  /// given before. Bytes of the host are read or written when it returns: only a copy to the host
  /// waits for the device.
  virtual void copy(void* to, Device to_device, const void* from, Device from_device,
                    int64_t bytes) = 0;
  /// Begins a copy of a device's bytes to the host, after what this thread's stream was given
  /// before, and waits for nothing.
  [[nodiscard]] virtual std::unique_ptr<HostCopy> copy_to_host(const void* from, Device device,
                                                               int64_t bytes) = 0;
  /// Copies from the host beside what this thread's stream does, which waits for it from now on.
  /// `to` is new memory of upload_allocator().
  virtual void upload(void* to, int device, const void* from, int64_t bytes) = 0;
  virtual void synchronize(int device) = 0;

  /// From now on this thread's work on the device is recorded and not run; see capture_graph().
  virtual void begin_capture(int device, int64_t reserve) = 0;
  /// What was recorded. DeviceError: some of it cannot be captured.
  [[nodiscard]] virtual Ref<CudaGraph> end_capture(int device) = 0;

  /// The process's trace of its devices. DeviceError: what it needs is not installed.
  [[nodiscard]] virtual DeviceTrace& trace() = 0;

  /// For people: `NVIDIA H100 80GB HBM3`.
  [[nodiscard]] virtual std::string device_name(int device) const = 0;
  /// Bytes of the device, free ones and others.
  [[nodiscard]] virtual int64_t device_memory(int device) const = 0;
  /// The kernel of the op with this name, or null.
  [[nodiscard]] virtual Kernel kernel(std::string_view op) const = 0;
};

}  // namespace tessera
