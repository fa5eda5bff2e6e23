// SPDX-License-Identifier: Apache-2.0
// Lanes and streams that are made stay for the life of the process. The runtime's current device is
// known per thread, so that it is set only where it changes.
#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/cuda/lanes_impl.h"

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

namespace tessera {
namespace {

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  TESSERA_CUDA_CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// Communication goes first where the device has to choose: other devices wait for it too.
cudaStream_t make_urgent_stream() {
  int least = 0, greatest = 0;
  TESSERA_CUDA_CALL(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  TESSERA_CUDA_CALL(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  return stream;
}

// What nobody uses at present. Made once and never destroyed: threads may end after main.
class Idle {
 public:
  static Idle& get() {
    static auto* idle = new Idle;
    return *idle;
  }
  // `device` is the current one.
  Lane take_lane(int device) {
    const std::lock_guard lock(mutex_);
    OfDevice& of_device = of(device);
    if (!of_device.lanes.empty()) {
      Lane lane = std::move(of_device.lanes.back());
      of_device.lanes.pop_back();
      return lane;
    }
    Lane lane;
    lane.stream = make_stream();
    lane.copy_stream = make_stream();
    DeviceMemory& memory = DeviceMemory::of(device);
    lane.arena = Ref(new StreamAllocator(memory, lane.stream, lane.stream));
    lane.upload_arena = Ref(new StreamAllocator(memory, lane.copy_stream, lane.stream));
    lane.memory = lane.arena;
    lane.upload_memory = lane.upload_arena;
    of_device.lanes_made.fetch_add(1, std::memory_order_relaxed);
    return lane;
  }
  void give_lane(int device, Lane lane) {
    const std::lock_guard lock(mutex_);
    of(device).lanes.push_back(std::move(lane));
  }
  cudaStream_t take_stream(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<cudaStream_t>& streams = of(device).streams;
    if (streams.empty()) return make_urgent_stream();
    const cudaStream_t stream = streams.back();
    streams.pop_back();
    return stream;
  }
  void give_stream(int device, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    of(device).streams.push_back(stream);
  }
  int lanes_made(int device) { return of(device).lanes_made.load(std::memory_order_relaxed); }

 private:
  struct OfDevice {
    std::vector<Lane> lanes;
    std::vector<cudaStream_t> streams;
    std::atomic<int> lanes_made{0};
  };
  OfDevice& of(int device) { return devices_[static_cast<size_t>(device)]; }
  std::mutex mutex_;
  std::array<OfDevice, kMostDevices> devices_;
};

struct ThreadLanes {
  int current = -1;
  std::deque<Lane> lanes;  // which stay where they are when a device is added
  ~ThreadLanes() {
    for (size_t d = 0; d < lanes.size(); ++d) {
      if (lanes[d].stream) Idle::get().give_lane(static_cast<int>(d), std::move(lanes[d]));
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
};

}  // namespace

Lane& lane_of(int device) {
  ThreadLanes& mine = ThreadLanes::get();
  check_cuda(mine.make_current(device), "cudaSetDevice");
  const auto d = static_cast<size_t>(device);
  if (mine.lanes.size() <= d) mine.lanes.resize(d + 1);
  Lane& lane = mine.lanes[d];
  if (!lane.stream) lane = Idle::get().take_lane(device);
  return lane;
}

int lanes_made(int device) noexcept { return Idle::get().lanes_made(device); }

OnDevice::OnDevice(int device) noexcept
    : before_(ThreadLanes::get().current), status_(ThreadLanes::get().make_current(device)) {}
OnDevice::~OnDevice() {
  if (before_ >= 0) (void)ThreadLanes::get().make_current(before_);
}

cudaError_t order(int device, cudaStream_t earlier, cudaStream_t later) noexcept {
  DeviceMemory& memory = DeviceMemory::of(device);
  cudaEvent_t event = nullptr;
  cudaError_t status = memory.take_event(&event);
  if (status != cudaSuccess) return status;
  status = cudaEventRecord(event, earlier);
  if (status == cudaSuccess) status = cudaStreamWaitEvent(later, event, 0);
  memory.give_event(event);  // a wait is for the record before it, whatever is recorded later
  return status;
}

cudaStream_t take_stream(int device) {
  const OnDevice there(device);
  check_cuda(there.status(), "cudaSetDevice");
  return Idle::get().take_stream(device);
}
void give_stream(int device, cudaStream_t stream) noexcept {
  Idle::get().give_stream(device, stream);
}

}  // namespace tessera
