// SPDX-License-Identifier: Apache-2.0
// The CUDA library's entry. Each host thread has one non-blocking stream per device, so ranks that
// are threads do not wait for each other. When a thread ends, its streams are kept for later
// threads, because blocks still refer to them.
#include "tessera/core/cuda/allocator_impl.h"
#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/cuda/kernel_table_impl.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"

#include <mutex>
#include <vector>

namespace tessera {
namespace {

// Streams of threads that have ended, by device. Made once and never destroyed: threads may end
// after main.
class IdleStreams {
 public:
  static IdleStreams& get() {
    static auto* idle = new IdleStreams;
    return *idle;
  }
  cudaStream_t take(int device) {
    {
      const std::lock_guard lock(mutex_);
      if (std::vector<cudaStream_t>& streams = of(device); !streams.empty()) {
        const cudaStream_t stream = streams.back();
        streams.pop_back();
        return stream;
      }
    }
    cudaStream_t stream = nullptr;
    TESSERA_CUDA_CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  void give(int device, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    of(device).push_back(stream);
  }

 private:
  std::vector<cudaStream_t>& of(int device) {
    const auto d = static_cast<size_t>(device);
    if (streams_.size() <= d) streams_.resize(d + 1);
    return streams_[d];
  }
  std::mutex mutex_;
  std::vector<std::vector<cudaStream_t>> streams_;
};

struct ThreadStreams {
  int current = -1;
  std::vector<cudaStream_t> streams;
  ~ThreadStreams() {
    for (size_t d = 0; d < streams.size(); ++d) {
      if (streams[d]) IdleStreams::get().give(static_cast<int>(d), streams[d]);
    }
    streams.clear();
  }
  static ThreadStreams& get() {
    thread_local ThreadStreams mine;
    return mine;
  }
};

class Backend final : public CudaBackend {
 public:
  Backend() {
    if (cudaGetDeviceCount(&devices_) != cudaSuccess) {  // no driver, or no device
      (void)cudaGetLastError();
      devices_ = 0;
    }
    allocators_.resize(static_cast<size_t>(devices_));
  }

  [[nodiscard]] int device_count() const override { return devices_; }
  [[nodiscard]] const Process* process() const override { return &Process::get(); }

  [[nodiscard]] Ref<Allocator> allocator(int device) override {
    check_device(device);
    const std::lock_guard lock(mutex_);
    Ref<Allocator>& allocator = allocators_[static_cast<size_t>(device)];
    if (!allocator) allocator = Ref<Allocator>(new CudaAllocator(device));
    return allocator;
  }

  [[nodiscard]] Stream stream(int device) override {
    check_device(device);
    return {cuda_stream(device), cuda(device)};
  }

  // The runtime tells host from device pointers and stages pageable host memory itself.
  void copy(void* to, Device to_device, const void* from, Device from_device,
            int64_t bytes) override {
    if (bytes == 0) return;
    const auto size = static_cast<size_t>(bytes);
    if (to_device.is_cuda() && from_device.is_cuda() && to_device != from_device) {
      synchronize(to_device.index);
      const cudaStream_t stream = cuda_stream(from_device.index);
      TESSERA_CUDA_CALL(
          cudaMemcpyPeerAsync(to, to_device.index, from, from_device.index, size, stream));
      TESSERA_CUDA_CALL(cudaStreamSynchronize(stream));
      return;
    }
    const Device device = to_device.is_cuda() ? to_device : from_device;
    check_device(device.index);
    const cudaStream_t stream = cuda_stream(device.index);
    TESSERA_CUDA_CALL(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream));
    TESSERA_CUDA_CALL(cudaStreamSynchronize(stream));
  }

  void synchronize(int device) override {
    check_device(device);
    TESSERA_CUDA_CALL(cudaStreamSynchronize(cuda_stream(device)));
  }

  [[nodiscard]] Kernel kernel(std::string_view op) const override { return find_cuda_kernel(op); }

 private:
  void check_device(int device) const {
    if (device < 0 || device >= devices_)
      fail<DeviceError>("cuda", "there is no device cuda:", device, "; found ", devices_);
  }
  int devices_ = 0;
  std::mutex mutex_;
  std::vector<Ref<Allocator>> allocators_;
};

}  // namespace

cudaStream_t cuda_stream_or_null(int device) noexcept {
  const ThreadStreams& mine = ThreadStreams::get();
  const auto d = static_cast<size_t>(device);
  return d < mine.streams.size() ? mine.streams[d] : nullptr;
}

cudaStream_t cuda_stream(int device) {
  ThreadStreams& mine = ThreadStreams::get();
  if (mine.current != device) {
    TESSERA_CUDA_CALL(cudaSetDevice(device));
    mine.current = device;
  }
  const auto d = static_cast<size_t>(device);
  if (mine.streams.size() <= d) mine.streams.resize(d + 1, nullptr);
  if (!mine.streams[d]) mine.streams[d] = IdleStreams::get().take(device);
  return mine.streams[d];
}

}  // namespace tessera

/// The one backend; never destroyed, since storages may outlive main's statics.
extern "C" TESSERA_API tessera::CudaBackend* tessera_cuda_backend() {
  static auto* backend = new tessera::Backend;
  return backend;
}
