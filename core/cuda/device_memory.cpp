// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/cuda/device_memory_impl.h"
#include "tessera/core/cuda/lanes_impl.h"
#include "tessera/core/error.h"
#include "tessera/core/message.h"

#include <algorithm>
#include <array>
#include <memory>

namespace tessera {

DeviceMemory& DeviceMemory::of(int device) {
  static auto* const devices = [] {
    auto* all = new std::array<std::unique_ptr<DeviceMemory>, kMostDevices>;
    for (size_t d = 0; d < all->size(); ++d)
      (*all)[d] = std::make_unique<DeviceMemory>(static_cast<int>(d));
    return all;
  }();
  return *(*devices)[static_cast<size_t>(device)];
}

void DeviceMemory::took(int64_t bytes) {
  live_ += bytes;
  peak_ = std::max(peak_, live_);
}

// The memory of a capture lies in its parent's, which was made before it.
StreamAllocator* DeviceMemory::owner_of(const void* address) const {
  const auto owner = std::find_if(arenas_.rbegin(), arenas_.rend(), [&](const StreamAllocator* a) {
    return a->holds(static_cast<const std::byte*>(address));
  });
  return owner == arenas_.rend() ? nullptr : *owner;
}

void DeviceMemory::release() {
  for (StreamAllocator* const arena : arenas_) arena->release();
}

MemoryStats DeviceMemory::stats() const {
  int64_t reserved = 0;
  for (const StreamAllocator* const arena : arenas_) reserved += arena->reserved();
  return {.live = live_, .peak = peak_, .cached = std::max<int64_t>(0, reserved - live_)};
}

std::string DeviceMemory::exhausted(int64_t bytes) const {
  const MemoryStats now = stats();
  size_t free = 0, all = 0;
  std::string of_device;
  const OnDevice there(device_);
  if (cudaMemGetInfo(&free, &all) == cudaSuccess)
    of_device = concat("; the device has ", counted(all, "byte"), ", ", free, " of them free");
  return concat("cuda:", device_, " is out of memory: ", counted(bytes, "byte"), " asked, ",
                now.live, " in use by tensors (at most ", now.peak, " so far), ", now.cached,
                " cached in pieces that are too small", of_device,
                "; use a smaller batch or sequence, activation checkpointing, or more ranks that "
                "share the model");
}

cudaError_t DeviceMemory::use(const std::byte* begin, int64_t bytes, cudaStream_t stream) {
  std::vector<cudaStream_t> before;
  {
    const std::lock_guard lock(mutex_);
    StreamAllocator* const owner = owner_of(begin);
    if (!owner) return cudaSuccess;
    before = owner->users_of(begin, bytes);
    before.push_back(owner->user());
    if (owner->user() != stream) owner->add_use(begin, bytes, stream);
  }
  for (const cudaStream_t other : before) {
    if (other == stream) continue;
    if (const cudaError_t status = order(device_, other, stream); status != cudaSuccess)
      return status;
  }
  return cudaSuccess;
}

cudaError_t DeviceMemory::take_event(cudaEvent_t* event) noexcept {
  {
    const std::lock_guard lock(events_mutex_);
    if (!events_.empty()) {
      *event = events_.back();
      events_.pop_back();
      return cudaSuccess;
    }
  }
  const OnDevice there(device_);
  if (there.status() != cudaSuccess) return there.status();
  return cudaEventCreateWithFlags(event, cudaEventDisableTiming);
}

void DeviceMemory::give_event(cudaEvent_t event) noexcept {
  const std::lock_guard lock(events_mutex_);
  events_.push_back(event);
}

}  // namespace tessera
