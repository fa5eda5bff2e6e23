// SPDX-License-Identifier: Apache-2.0
// Non-blocking messages between the processes of a world, used by the engine for ranks without
// shared memory. Messages of one pair and tag keep their order.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace tessera {

class Messages {
 public:
  /// A pending message; null if there is none.
  using Handle = void*;
  virtual ~Messages() = default;
  /// Bytes must remain valid and unchanged until the message is done or abandoned with an owner.
  virtual Handle send(int to, int tag, const void* data, size_t bytes) = 0;
  virtual Handle receive(int from, int tag, void* data, size_t bytes) = 0;
  /// True once it is complete; the handle is then null. PeerFailed if the transport reports it.
  virtual bool done(Handle& handle) = 0;
  /// Abandons a message; `owner` keeps its bytes alive while the transport may use them.
  virtual void abandon(Handle& handle, std::shared_ptr<const void> owner) = 0;
  /// Owners of bytes that the transport needs no longer, since the last call. Whoever asks drops
  /// them where no lock is held.
  [[nodiscard]] virtual std::vector<std::shared_ptr<const void>> let_go() = 0;
  [[nodiscard]] virtual int largest_tag() const = 0;

  static constexpr int kFarewellTag = 0;  ///< of what a rank sends last in a world
  /// Tags below are not of groups; 1 is the transport's own.
  static constexpr int kFirstGroupTag = 2;
};

}  // namespace tessera
