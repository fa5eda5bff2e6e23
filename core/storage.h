// SPDX-License-Identifier: Apache-2.0
// A block of bytes that tensors alias. It has a device, counts writes (version) for autograd's
// checks, and can release its bytes and regain them, while its identity, views and version are
// unchanged. It lists what is under way on its bytes (pending.h), by range: ops, data() and
// collectives wait for what stands in their way, and for nothing else.
#pragma once

#include "tessera/core/allocator.h"
#include "tessera/core/device.h"
#include "tessera/core/pending.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace tessera {

enum class Access : uint8_t { read, write };

/// Bytes [begin, end) of a storage.
struct ByteRange {
  int64_t begin = 0, end = 0;
  [[nodiscard]] bool overlaps(ByteRange o) const { return begin < o.end && o.begin < end; }
};

class TESSERA_API Storage : public RefCounted<Storage> {
 public:
  /// `bytes` uninitialised bytes from `allocator` (which may be null only for 0 bytes and for the
  /// meta device).
  Storage(Ref<Allocator> allocator, int64_t bytes, Device device);
  ~Storage();
  /// A storage on a range of `whole`, which stays as long as it: its owners and its version are its
  /// own. What is under way there now is under way on it. StorageError: `whole` is released.
  static Ref<Storage> part(const Ref<Storage>& whole, ByteRange range);

  /// The first byte, whatever is under way; null if there are none.
  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] int64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] Device device() const noexcept { return device_; }
  /// True between release_bytes() and regain_bytes(): reading is then a StorageError.
  [[nodiscard]] bool released() const noexcept { return (state() & kReleased) != 0; }
  /// Whether its bytes are there and nothing is under way on them: one load for the usual case.
  [[nodiscard]] bool ready() const noexcept { return (state() & (kReleased | kInUse)) == 0; }
  [[nodiscard]] uint32_t version() const noexcept {
    return version_.load(std::memory_order_relaxed);
  }
  void bump_version() noexcept {
    if (!(state() & kRefilling)) version_.fetch_add(1, std::memory_order_relaxed);
  }

  /// Gives up the bytes: at once, or when what is under way on them ends. Handles and views stay
  /// valid but unreadable.
  void release_bytes() noexcept;
  /// Uninitialised bytes again, at a new address; the version does not change. For the values of
  /// before, use a Refill.
  void regain_bytes();

  /// Regains released bytes for the values that they had: until its end, writes (of ops, and of
  /// collectives started meanwhile) do not count, so that what autograd saved stays valid. Ended by
  /// an exception, it releases them again.
  class TESSERA_API Refill {
   public:
    /// StorageError: the bytes are there, so that a write would change what others see.
    explicit Refill(Storage& storage);
    ~Refill();
    Refill(const Refill&) = delete;
    Refill& operator=(const Refill&) = delete;

   private:
    Ref<Storage> storage_;
    int exceptions_;
  };

  /// Registers an operation that reads or writes `range` until it ends.
  void add_use(Ref<PendingUse> use, Access access, ByteRange range);
  /// The uses that `access` to `range` must wait for; those of writes that failed, too.
  [[nodiscard]] std::vector<Ref<PendingUse>> pending(Access access, ByteRange range) const;
  /// Waits for them, or makes `stream` wait if it is a device's. Throws their errors.
  void wait(Access access, ByteRange range, Stream stream = {});

 private:
  enum State : uint8_t { kReleased = 1, kInUse = 2, kRefilling = 4 };
  struct Use {
    Ref<PendingUse> use;
    Access access;
    ByteRange range;
  };
  struct Uses {
    std::mutex mutex;
    std::vector<Use> list;
  };
  [[nodiscard]] uint8_t state() const noexcept { return state_.load(std::memory_order_relaxed); }
  void give_up_block() noexcept;

  Ref<Allocator> allocator_;
  void* data_ = nullptr;
  int64_t bytes_;
  mutable std::atomic<Uses*> uses_{nullptr};  // made by the first use; only then is kInUse ever set
  std::atomic<uint32_t> version_{0};
  Device device_;
  mutable std::atomic<uint8_t> state_{0};
};

}  // namespace tessera
