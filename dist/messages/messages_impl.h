// SPDX-License-Identifier: Apache-2.0
// Messages between the processes of a world, without blocking: what the engine for ranks that share
// no memory is built on. Messages of one pair and tag keep their order.
#pragma once

#include <cstddef>
#include <memory>

namespace tessera {

class Messages {
 public:
  /// A message under way; null when there is none.
  using Handle = void*;
  virtual ~Messages() = default;
  /// Bytes stay where they are, unchanged, until the message is done or abandoned with an owner.
  virtual Handle send(int to, int tag, const void* data, size_t bytes) = 0;
  virtual Handle receive(int from, int tag, void* data, size_t bytes) = 0;
  /// True once it is complete; the handle is then null. PeerFailed where the transport says so.
  virtual bool done(Handle& handle) = 0;
  /// Gives up on a message; `owner` keeps its bytes alive for as long as anybody may touch them.
  virtual void abandon(Handle& handle, std::shared_ptr<const void> owner) = 0;
  [[nodiscard]] virtual int largest_tag() const = 0;

  /// Tags below are the transport's own.
  static constexpr int kFirstGroupTag = 2;
};

}  // namespace tessera
