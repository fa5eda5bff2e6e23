// SPDX-License-Identifier: Apache-2.0
// What is under way on a storage's bytes: an operation that still reads or writes them, such as a
// collective. A storage lists its pending uses; whoever needs the bytes waits for those that stand
// in the way, and bytes that a storage gives up meanwhile stay until the uses end. Modules above
// core derive from PendingUse.
#pragma once

#include "tessera/core/allocator.h"
#include "tessera/core/device.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace detail {
/// A block of an allocator; it goes back with its last owner, on any thread.
class Block : public RefCounted<Block> {
 public:
  Block(Ref<Allocator> allocator, void* data, int64_t bytes)
      : allocator_(std::move(allocator)), data_(data), bytes_(bytes) {}
  ~Block() { allocator_->free(data_, bytes_); }

 private:
  Ref<Allocator> allocator_;
  void* data_;
  int64_t bytes_;
};
}  // namespace detail

/// An operation under way. It ends once, on any thread, with or without an error.
class TESSERA_API PendingUse : public RefCounted<PendingUse> {
 public:
  virtual ~PendingUse();
  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  /// Whether it ended with an error that nobody has received yet.
  [[nodiscard]] bool failed() const noexcept {
    return ended() && error_ && !told_.load(std::memory_order_relaxed);
  }
  /// The error has been thrown to its rank: it is not thrown again.
  void told() noexcept { told_.store(true, std::memory_order_relaxed); }
  /// Whether it proceeds while nobody waits for it. One that does not is waited for where a
  /// collective is started on its bytes.
  [[nodiscard]] virtual bool advances() const noexcept { return true; }
  /// Advances it; true when it has ended. Throws its error.
  bool test();
  /// Returns when it has ended; throws its error.
  void wait();
  /// Makes what is queued on `stream` from now on run after it; on the CPU this is wait().
  virtual void wait_on(Stream stream);
  /// For errors: `all_gather f32[100]`.
  [[nodiscard]] virtual std::string text() const = 0;

  /// Keeps bytes until the end.
  void keep(Ref<detail::Block> block);
  /// Called once by whoever runs the operation; nobody touches the bytes after it.
  void end(std::exception_ptr error = nullptr) noexcept;

 protected:
  virtual bool advance() = 0;  ///< true when it has ended
  virtual void block() = 0;    ///< returns when it has ended

  std::mutex mutex_;  ///< held while it ends

 private:
  void raise();

  std::atomic<bool> ended_{false}, told_{false};
  std::exception_ptr error_;
  std::vector<Ref<detail::Block>> kept_;
};

}  // namespace tessera
