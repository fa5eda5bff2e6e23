// SPDX-License-Identifier: Apache-2.0
// The CUDA library's entry: what the core asks of devices, by the lanes of the calling thread.
#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/cuda/device_trace_impl.h"
#include "tessera/core/cuda/graph_impl.h"
#include "tessera/core/cuda/kernel_table_impl.h"
#include "tessera/core/cuda/lanes_impl.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/core/tensor.h"

#include <cstdlib>

namespace tessera {
namespace {

cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

// A graph would repeat the bytes of the capture, or a wait that cannot end.
void outside_capture(const Lane& lane, std::string_view what, std::string_view instead) {
  if (lane.captured) fail<UsageError>("capture", what, " inside a captured graph: ", instead);
}

void no_host_copy(const Lane& lane) {
  outside_capture(lane, "a copy from the host",
                  "each launch would copy what the host had then; write a tensor of the device "
                  "between launches");
}

class Backend final : public CudaBackend {
 public:
  Backend() {
    // Streams share a device's queues, eight by default, and two streams of one queue wait for each
    // other. CUDA reads this when it starts.
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    status_ = cudaGetDeviceCount(&devices_);
    if (status_ != cudaSuccess) {
      (void)cudaGetLastError();
      devices_ = 0;
    }
  }

  [[nodiscard]] int device_count() const override { return devices_; }
  [[nodiscard]] std::string why_no_device() const override {
    return tessera::why_no_device(status_);
  }
  [[nodiscard]] const Process* process() const override { return &Process::get(); }

  [[nodiscard]] const Ref<Allocator>& allocator(int device) override {
    check_device(device);
    return lane_of(device).memory;
  }
  [[nodiscard]] const Ref<Allocator>& upload_allocator(int device) override {
    check_device(device);
    const Lane& lane = lane_of(device);
    no_host_copy(lane);
    return lane.upload_memory;
  }

  [[nodiscard]] Stream stream(int device) override {
    check_device(device);
    return {lane_of(device).stream, cuda(device)};
  }
  [[nodiscard]] Stream stream_for(int device, Tensors tensors) override {
    const Stream mine = stream(device);
    if (lanes_made(device) > 1) {
      for (const Tensor& t : tensors) {
        if (t.defined()) record_stream(t.storage(), mine);
      }
    }
    return mine;
  }
  [[nodiscard]] Stream take_stream(int device) override {
    check_device(device);
    return {tessera::take_stream(device), cuda(device)};
  }
  void give_stream(Stream stream) override {
    tessera::give_stream(stream.device.index, cuda_stream(stream));
  }
  void order(Stream earlier, Stream later) override {
    TESSERA_CUDA_CALL(
        tessera::order(earlier.device.index, cuda_stream(earlier), cuda_stream(later)));
  }
  void record_stream(const Storage& storage, Stream stream) override {
    use(storage.data(), storage.bytes(), stream.device.index, cuda_stream(stream));
  }

  void copy(void* to, Device to_device, const void* from, Device from_device,
            int64_t bytes) override {
    if (bytes == 0) return;
    const auto size = static_cast<size_t>(bytes);
    const Device device = from_device.is_cuda() ? from_device : to_device;
    check_device(device.index);
    Lane& lane = lane_of(device.index);
    if (lanes_made(device.index) > 1) {
      if (from_device == device) use(from, bytes, device.index, lane.stream);
      if (to_device == device) use(to, bytes, device.index, lane.stream);
    }
    if (from_device.is_cpu()) return send(lane, to, from, size, lane.stream);
    if (to_device.is_cpu()) {
      outside_capture(lane, "a read of a device's tensor", "read it after a launch");
      TESSERA_CUDA_CALL(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToHost, lane.stream));
      TESSERA_CUDA_CALL(cudaStreamSynchronize(lane.stream));
    } else if (to_device == from_device) {
      TESSERA_CUDA_CALL(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, lane.stream));
    } else {
      copy_to_peer(to, to_device.index, from, from_device.index, size);
    }
  }
  void upload(void* to, int device, const void* from, int64_t bytes) override {
    check_device(device);
    Lane& lane = lane_of(device);
    send(lane, to, from, static_cast<size_t>(bytes), lane.copy_stream);
    TESSERA_CUDA_CALL(tessera::order(device, lane.copy_stream, lane.stream));
  }

  [[nodiscard]] std::unique_ptr<HostCopy> copy_to_host(const void* from, Device device,
                                                       int64_t bytes) override {
    check_device(device.index);
    Lane& lane = lane_of(device.index);
    outside_capture(lane, "a read of a device's tensor", "read it after a launch");
    if (lanes_made(device.index) > 1) use(from, bytes, device.index, lane.stream);
    if (!lane.host_copies) lane.host_copies = std::make_shared<HostCopies>();
    return lane.host_copies->begin(from, static_cast<size_t>(bytes), lane.stream);
  }

  void synchronize(int device) override {
    check_device(device);
    const Lane& lane = lane_of(device);
    outside_capture(lane, "a wait for the device", "wait after a launch");
    TESSERA_CUDA_CALL(cudaStreamSynchronize(lane.stream));
  }

  void begin_capture(int device, int64_t reserve) override {
    check_device(device);
    tessera::begin_capture(lane_of(device), device, reserve);
  }
  [[nodiscard]] Ref<CudaGraph> end_capture(int device) override {
    check_device(device);
    return tessera::end_capture(lane_of(device), device);
  }

  [[nodiscard]] DeviceTrace& trace() override { return device_trace(); }

  [[nodiscard]] std::string device_name(int device) const override {
    check_device(device);
    cudaDeviceProp properties{};
    TESSERA_CUDA_CALL(cudaGetDeviceProperties(&properties, device));
    return properties.name;
  }

  [[nodiscard]] int64_t device_memory(int device) const override {
    check_device(device);
    const OnDevice there(device);
    check_cuda(there.status(), "cudaSetDevice");
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
  static void use(const void* begin, int64_t bytes, int device, cudaStream_t stream) {
    check_cuda(DeviceMemory::of(device).use(static_cast<const std::byte*>(begin), bytes, stream),
               "ordering two streams");
  }
  static void send(Lane& lane, void* to, const void* from, size_t bytes, cudaStream_t stream) {
    no_host_copy(lane);
    if (!lane.staging) lane.staging = std::make_unique<Staging>();
    lane.staging->send(to, from, bytes, stream);
  }
  // On the stream of the device that it comes from, between what both streams do before and after.
  static void copy_to_peer(void* to, int to_device, const void* from, int from_device,
                           size_t bytes) {
    const cudaStream_t target = lane_of(to_device).stream, source = lane_of(from_device).stream;
    if (lanes_made(to_device) > 1) use(to, static_cast<int64_t>(bytes), to_device, target);
    TESSERA_CUDA_CALL(tessera::order(to_device, target, source));
    TESSERA_CUDA_CALL(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, source));
    TESSERA_CUDA_CALL(tessera::order(from_device, source, target));
  }

  cudaError_t status_ = cudaSuccess;  // of counting the devices
  int devices_ = 0;
};

}  // namespace
}  // namespace tessera

extern "C" TESSERA_API int tessera_cuda_version() { return tessera::kCudaVersion; }

/// The one backend; never destroyed, since storages may outlive main's statics.
extern "C" TESSERA_API tessera::CudaBackend* tessera_cuda_backend() {
  static auto* backend = new tessera::Backend;
  return backend;
}
