// SPDX-License-Identifier: Apache-2.0
// What the arenas of one device share: a lock, what is in use on all of its streams, and events.
// When the device has no more, each arena gives back what it has free, whichever stream wants it.
#pragma once

#include "tessera/core/allocator.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <string>
#include <vector>

namespace tessera {

class StreamAllocator;

inline constexpr size_t kMostDevices = 128;  // an index of Device has seven bits

/// Made once per device and never destroyed, since storages may outlive main's statics.
class DeviceMemory {
 public:
  static DeviceMemory& of(int device);
  explicit DeviceMemory(int device) : device_(device) {}

  [[nodiscard]] int device() const { return device_; }
  /// Held by whoever uses an arena of the device.
  [[nodiscard]] std::mutex& mutex() { return mutex_; }
  // Under the lock:
  void add(StreamAllocator& arena) { arenas_.push_back(&arena); }
  void remove(StreamAllocator& arena) { std::erase(arenas_, &arena); }
  void took(int64_t bytes);
  void gave_back(int64_t bytes) { live_ -= bytes; }
  /// The arena whose segments hold `address`; null for memory of others.
  [[nodiscard]] StreamAllocator* owner_of(const void* address) const;
  /// Gives all free segments back to the device, also those of blocks that streams still use.
  void release();
  [[nodiscard]] MemoryStats stats() const;
  void reset_peak() { peak_ = live_; }
  /// For an error: what was asked, and where the device's memory is.
  [[nodiscard]] std::string exhausted(int64_t bytes) const;

  // Without it:
  /// `stream` works on `bytes` bytes, which others may have used: it goes on after what the streams
  /// of those were given so far, and the bytes are not given out again before what it was given
  /// until they are freed. Of memory that no arena holds, nothing.
  [[nodiscard]] cudaError_t use(const std::byte* begin, int64_t bytes, cudaStream_t stream);
  /// An event without a time.
  [[nodiscard]] cudaError_t take_event(cudaEvent_t* event) noexcept;
  void give_event(cudaEvent_t event) noexcept;

 private:
  const int device_;
  std::mutex mutex_, events_mutex_;
  std::vector<StreamAllocator*> arenas_;
  std::vector<cudaEvent_t> events_;
  int64_t live_ = 0, peak_ = 0;
};

}  // namespace tessera
