// SPDX-License-Identifier: Apache-2.0
// The CUDA library's entry. Each host thread has one non-blocking stream per device, so ranks that
// are threads do not wait for each other. When a thread ends, its streams are kept for later
// threads, because blocks still refer to them.
#include "tessera/core/cuda/allocator_impl.h"
#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/cuda/host_copy_impl.h"
#include "tessera/core/cuda/kernel_table_impl.h"
#include "tessera/core/cuda/staging_impl.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"

#include <memory>
#include <mutex>
#include <vector>

namespace tessera {
namespace {

// What a thread has of a device.
struct Lane {
  cudaStream_t stream = nullptr;
  std::unique_ptr<Staging> staging;  // made by the first copy from the host
  std::shared_ptr<HostCopies> host_copies;
};

// All streams of all devices, and the lanes of threads that have ended. Made once and never
// destroyed: threads may end after main.
class Lanes {
 public:
  static Lanes& get() {
    static auto* lanes = new Lanes;
    return *lanes;
  }
  Lane take(int device) {
    const std::lock_guard lock(mutex_);
    OfDevice& of_device = of(device);
    if (!of_device.idle.empty()) {
      Lane lane = std::move(of_device.idle.back());
      of_device.idle.pop_back();
      return lane;
    }
    Lane lane;
    TESSERA_CUDA_CALL(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
    of_device.streams.push_back(lane.stream);
    return lane;
  }
  void give(int device, Lane lane) {
    const std::lock_guard lock(mutex_);
    of(device).idle.push_back(std::move(lane));
  }
  // Makes what `later` runs from now on wait for what the device's other streams were given so far.
  cudaError_t order_after_others(int device, cudaStream_t later) {
    const std::lock_guard lock(mutex_);
    for (const cudaStream_t earlier : of(device).streams) {
      if (earlier == later) continue;
      if (const cudaError_t status = order(earlier, later); status != cudaSuccess) return status;
    }
    return cudaSuccess;
  }

 private:
  struct OfDevice {
    std::vector<cudaStream_t> streams;
    std::vector<Lane> idle;
  };
  static cudaError_t order(cudaStream_t earlier, cudaStream_t later) {
    cudaEvent_t event = nullptr;
    cudaError_t status = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (status != cudaSuccess) return status;
    status = cudaEventRecord(event, earlier);
    if (status == cudaSuccess) status = cudaStreamWaitEvent(later, event, 0);
    (void)cudaEventDestroy(event);  // the driver keeps it until it has fired
    return status;
  }
  OfDevice& of(int device) {
    const auto d = static_cast<size_t>(device);
    if (devices_.size() <= d) devices_.resize(d + 1);
    return devices_[d];
  }
  std::mutex mutex_;
  std::vector<OfDevice> devices_;
};

struct ThreadLanes {
  int current = -1;
  std::vector<Lane> lanes;
  ~ThreadLanes() {
    for (size_t d = 0; d < lanes.size(); ++d) {
      if (lanes[d].stream) Lanes::get().give(static_cast<int>(d), std::move(lanes[d]));
    }
    lanes.clear();
  }
  static ThreadLanes& get() {
    thread_local ThreadLanes mine;
    return mine;
  }
  cudaError_t make_current(int device) {
    if (current == device) return cudaSuccess;
    const cudaError_t status = cudaSetDevice(device);
    if (status == cudaSuccess) current = device;
    return status;
  }
  // That of `device`, which becomes the current one.
  Lane& lane(int device) {
    check_cuda(make_current(device), "cudaSetDevice");
    const auto d = static_cast<size_t>(device);
    if (lanes.size() <= d) lanes.resize(d + 1);
    if (!lanes[d].stream) lanes[d] = Lanes::get().take(device);
    return lanes[d];
  }
};

class Backend final : public CudaBackend {
 public:
  Backend() {
    status_ = cudaGetDeviceCount(&devices_);
    if (status_ != cudaSuccess) {
      (void)cudaGetLastError();
      devices_ = 0;
    }
    allocators_.resize(static_cast<size_t>(devices_));
  }

  [[nodiscard]] int device_count() const override { return devices_; }
  [[nodiscard]] std::string why_no_device() const override {
    return tessera::why_no_device(status_);
  }
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
    Lane& lane = ThreadLanes::get().lane(device.index);
    if (from_device.is_cpu()) {
      if (!lane.staging) lane.staging = std::make_unique<Staging>();
      lane.staging->send(to, from, size, lane.stream);
      return;
    }
    TESSERA_CUDA_CALL(cudaMemcpyAsync(
        to, from, size, to_device.is_cpu() ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice,
        lane.stream));
    if (to_device.is_cpu()) TESSERA_CUDA_CALL(cudaStreamSynchronize(lane.stream));
  }

  [[nodiscard]] std::unique_ptr<HostCopy> copy_to_host(const void* from, Device device,
                                                       int64_t bytes) override {
    check_device(device.index);
    Lane& lane = ThreadLanes::get().lane(device.index);
    if (!lane.host_copies) lane.host_copies = std::make_shared<HostCopies>();
    return lane.host_copies->begin(from, static_cast<size_t>(bytes), lane.stream);
  }

  void synchronize(int device) override {
    check_device(device);
    TESSERA_CUDA_CALL(cudaStreamSynchronize(cuda_stream(device)));
  }

  [[nodiscard]] std::string device_name(int device) const override {
    check_device(device);
    cudaDeviceProp properties{};
    TESSERA_CUDA_CALL(cudaGetDeviceProperties(&properties, device));
    return properties.name;
  }

  [[nodiscard]] int64_t device_memory(int device) const override {
    check_device(device);
    (void)cuda_stream(device);  // the current device is the one that is asked
    size_t free = 0, all = 0;
    TESSERA_CUDA_CALL(cudaMemGetInfo(&free, &all));
    return static_cast<int64_t>(all);
  }

  [[nodiscard]] Kernel kernel(std::string_view op) const override { return find_cuda_kernel(op); }

 private:
  void check_device(int device) const {
    if (device < 0 || device >= devices_)
      fail<DeviceError>("cuda", "there is no device cuda:", device, "; found ", devices_);
  }
  cudaError_t status_ = cudaSuccess;  // of counting the devices
  int devices_ = 0;
  std::mutex mutex_;
  std::vector<Ref<Allocator>> allocators_;
};

}  // namespace

cudaStream_t cuda_stream(int device) { return ThreadLanes::get().lane(device).stream; }

cudaError_t order_after_others(int device, cudaStream_t later) noexcept {
  const cudaError_t status = ThreadLanes::get().make_current(device);
  return status == cudaSuccess ? Lanes::get().order_after_others(device, later) : status;
}

}  // namespace tessera

extern "C" TESSERA_API int tessera_cuda_version() { return tessera::kCudaVersion; }

/// The one backend; never destroyed, since storages may outlive main's statics.
extern "C" TESSERA_API tessera::CudaBackend* tessera_cuda_backend() {
  static auto* backend = new tessera::Backend;
  return backend;
}
