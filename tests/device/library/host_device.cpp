// SPDX-License-Identifier: Apache-2.0
// CUDA devices made of host memory, for tests of everything above the kernels. An op runs its CPU
// kernel, so a program that keeps its tensors on these devices gives the CPU's bits. Their
// addresses are none of the host's (one bit is flipped): whoever reads bytes of a device without a
// copy ends with a fault of the processor. TESSERA_HOST_DEVICES says how many there are, default 2;
// TESSERA_HOST_DEVICE_MEMORY how many bytes of tensors each holds, default 2^30;
// TESSERA_HOST_DEVICE_LOST after how many kernels all are lost; TESSERA_HOST_DEVICE_VERSION what
// version the library says it has.
#include "tessera/tests/device/library/host_device.h"

#include "tessera/core/cuda_backend.h"
#include "tessera/core/error.h"
#include "tessera/core/op_row.h"
#include "tessera/core/out_of_memory.h"
#include "tessera/core/process.h"
#include "tessera/kernels/rooms.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera {
namespace {

test::HostDeviceCounts& counts() {
  static auto* counts = new test::HostDeviceCounts;
  return *counts;
}

int number_from(const char* variable, int otherwise) {
  const char* const given = std::getenv(variable);
  return given ? std::atoi(given) : otherwise;
}

int memory_of_a_device() { return number_from("TESSERA_HOST_DEVICE_MEMORY", 1 << 30); }

void fail_if_lost() {
  static const int after = number_from("TESSERA_HOST_DEVICE_LOST", -1);
  if (after >= 0 && counts().kernels >= after) fail<DeviceError>("cuda", "cuda:0 is lost");
}

// There and back.
void* flipped(const void* address) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) ^ (uintptr_t{1} << 62));
}

class HostDeviceMemory final : public Allocator {
 public:
  HostDeviceMemory() { ++counts().allocators; }
  void* allocate(int64_t bytes) override {
    fail_if_lost();
    if (const int64_t live = stats().live; live + bytes > memory_of_a_device())
      fail<OutOfMemory>("allocate", "cuda:0 is out of memory: ", bytes, " bytes asked, ", live,
                        " in use");
    constexpr size_t kAlignment = 64;
    const size_t size = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    void* const block = std::aligned_alloc(kAlignment, size);
    std::memset(block, 0xFF, size);  // nobody may count on zeros
    const std::lock_guard guard(mutex_);
    stats_.live += bytes;
    stats_.peak = std::max(stats_.peak, stats_.live);
    return flipped(block);
  }
  void free(void* block, int64_t bytes) noexcept override {
    std::free(flipped(block));
    const std::lock_guard guard(mutex_);
    stats_.live -= bytes;
  }
  void empty_cache() override {}
  [[nodiscard]] MemoryStats stats() const override {
    const std::lock_guard guard(mutex_);
    return stats_;
  }
  void reset_peak() override {
    const std::lock_guard guard(mutex_);
    stats_.peak = stats_.live;
  }

 private:
  mutable std::mutex mutex_;
  MemoryStats stats_;
};

// The same view of the same bytes, as a tensor of the host.
Tensor on_host(const Tensor& x) {
  if (!x.defined()) return x;
  const Storage& storage = x.storage();
  void* const bytes = storage.data() ? flipped(storage.data()) : nullptr;
  const Tensor whole = from_blob(bytes, {storage.bytes() / item_size(x.dtype())}, x.dtype());
  return alias(whole, x.shape(), x.strides(), x.offset());
}

void run_on_host(const OpRow& row, const void* op, Tensors in, Outputs y) {
  fail_if_lost();
  ++counts().kernels;
  TensorList from, to;
  for (const Tensor& x : in) from.push_back(on_host(x));
  for (const Tensor& x : y) to.push_back(on_host(x));
  row.cpu(op, from, to);
}

const OpRow& row_of(std::string_view name) {
  for (const OpRow* row : kernel_rows())
    if (row->name == name) return *row;
  std::abort();  // the same list made both
}

using Table = std::unordered_map<std::string_view, CudaBackend::Kernel>;

template <class... Ops> Table make_table(OpList<Ops...>) {
  Table table;
  const auto add = [&]<class Op>(std::type_identity<Op>) {
    if constexpr (!ViewOp<Op>) {
      table[Op::name] = [](const void* op, Tensors in, Outputs y, Stream) {
        static const OpRow& row = row_of(Op::name);
        run_on_host(row, op, in, y);
      };
    }
  };
  (add(std::type_identity<Ops>{}), ...);
  return table;
}

class CopyUnderWay final : public HostCopy {
 public:
  CopyUnderWay(const void* from, int64_t bytes)
      : bytes_(static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + bytes) {}
  [[nodiscard]] const void* wait() override {
    fail_if_lost();
    ++counts().synchronised;
    return bytes_.data();
  }

 private:
  std::vector<std::byte> bytes_;
};

class HostDevices final : public CudaBackend {
 public:
  [[nodiscard]] int device_count() const override { return devices_; }
  [[nodiscard]] std::string why_no_device() const override { return "no device is visible"; }
  [[nodiscard]] const Process* process() const override { return &Process::get(); }
  [[nodiscard]] const Ref<Allocator>& allocator(int device) override {
    const std::lock_guard guard(mutex_);
    Ref<Allocator>& memory = memory_[device];
    if (!memory) memory = Ref<Allocator>(new HostDeviceMemory);
    return memory;
  }
  [[nodiscard]] const Ref<Allocator>& upload_allocator(int device) override {
    return allocator(device);
  }
  // What a stream is given is done at once.
  [[nodiscard]] Stream stream(int device) override { return {this, cuda(device)}; }
  [[nodiscard]] Stream stream_for(int device, Tensors) override { return stream(device); }
  [[nodiscard]] Stream take_stream(int device) override { return stream(device); }
  void give_stream(Stream) override {}
  void order(Stream, Stream) override {}
  void record_stream(const Storage&, Stream) override {}
  void copy(void* to, Device to_device, const void* from, Device from_device,
            int64_t bytes) override {
    fail_if_lost();
    if (to_device.is_cpu()) ++counts().to_host;
    std::memcpy(to_device.is_cuda() ? flipped(to) : to,
                from_device.is_cuda() ? flipped(from) : from, static_cast<size_t>(bytes));
  }
  [[nodiscard]] std::unique_ptr<HostCopy> copy_to_host(const void* from, Device,
                                                       int64_t bytes) override {
    fail_if_lost();
    ++counts().begun;
    return std::make_unique<CopyUnderWay>(flipped(from), bytes);
  }
  void upload(void* to, int device, const void* from, int64_t bytes) override {
    copy(to, cuda(device), from, kCpu, bytes);
  }
  void synchronize(int) override {
    fail_if_lost();
    ++counts().synchronised;
  }
  void begin_capture(int, int64_t) override {
    fail<DeviceError>("capture", "host memory records no graphs");
  }
  [[nodiscard]] Ref<CudaGraph> end_capture(int) override { return nullptr; }
  [[nodiscard]] DeviceTrace& trace() override {
    fail<DeviceError>("trace", "host memory has no kernels");
  }
  [[nodiscard]] std::string device_name(int) const override { return "host memory"; }
  [[nodiscard]] int64_t device_memory(int) const override { return memory_of_a_device(); }
  [[nodiscard]] Kernel kernel(std::string_view op) const override {
    static const Table table = make_table(KernelRooms{});
    const auto found = table.find(op);
    return found == table.end() ? nullptr : found->second;
  }

 private:
  const int devices_ = number_from("TESSERA_HOST_DEVICES", 2);
  std::mutex mutex_;
  std::map<int, Ref<Allocator>> memory_;
};

}  // namespace
}  // namespace tessera

extern "C" TESSERA_API int tessera_cuda_version() {
  return tessera::number_from("TESSERA_HOST_DEVICE_VERSION", tessera::kCudaVersion);
}

extern "C" TESSERA_API tessera::CudaBackend* tessera_cuda_backend() {
  static auto* backend = new tessera::HostDevices;
  return backend;
}

extern "C" TESSERA_API tessera::test::HostDeviceCounts* tessera_host_device_counts() {
  return &tessera::counts();
}
