// SPDX-License-Identifier: Apache-2.0
// A block of bytes that tensors alias. It has a device, counts writes (version) for autograd's
// checks, and can release its bytes and regain them, while its identity, views and version are
// unchanged.
#pragma once

#include "tessera/core/allocator.h"
#include "tessera/core/device.h"

#include <atomic>
#include <cstdint>

namespace tessera {

class TESSERA_API Storage : public RefCounted<Storage> {
 public:
  /// `bytes` uninitialised bytes from `allocator` (which may be null only for 0 bytes and for the
  /// meta device).
  Storage(Ref<Allocator> allocator, int64_t bytes, Device device);
  ~Storage();

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] int64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] Device device() const noexcept { return device_; }
  /// True between release_bytes() and regain_bytes(): reading is then a StorageError.
  [[nodiscard]] bool released() const noexcept { return released_; }
  [[nodiscard]] uint32_t version() const noexcept {
    return version_.load(std::memory_order_relaxed);
  }
  void bump_version() noexcept { version_.fetch_add(1, std::memory_order_relaxed); }

  /// Returns the bytes to the allocator; handles and views stay valid but unreadable.
  void release_bytes() noexcept;
  /// Uninitialised bytes again, at a new address; the version does not change.
  void regain_bytes();

 private:
  Ref<Allocator> allocator_;
  void* data_ = nullptr;
  int64_t bytes_;
  std::atomic<uint32_t> version_{0};
  Device device_;
  bool released_ = false;
};

}  // namespace tessera
