// SPDX-License-Identifier: Apache-2.0
// TCP sockets that never block, and frames on them: a length of 4 bytes, a type of 1, the payload.
// A frame above 16 MiB, or one of an unknown type, means that something else talks: the connection
// ends.
#pragma once

#include "tessera/dist/rendezvous/bootstrap_impl.h"

#include <optional>
#include <utility>

namespace tessera {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~Descriptor();
  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Frame {
  uint8_t type = 0;
  std::string payload;
};

/// One connection: what arrived is cut into frames, what cannot be sent at once is kept.
class FrameStream {
 public:
  static constexpr size_t kMaxFrame = 16 << 20;

  FrameStream() = default;
  explicit FrameStream(Descriptor socket) : socket_(std::move(socket)) {}
  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] bool open() const { return static_cast<bool>(socket_); }
  [[nodiscard]] bool wants_to_write() const { return !out_.empty(); }
  void send(uint8_t type, std::string_view payload);
  /// Writes what is left; false when the peer is gone.
  bool flush();
  /// Reads what is there; false when the peer is gone (frames that came before stay readable).
  bool fill();
  std::optional<Frame> next();
  /// What came does not look like frames.
  [[nodiscard]] bool garbled() const { return garbled_; }
  void close() { socket_ = Descriptor(); }

 private:
  Descriptor socket_;
  std::string in_, out_;
  size_t used_ = 0;
  bool garbled_ = false;
};

/// Listens at `port` (0: any) on all interfaces of this host. LaunchError if it is taken.
Descriptor listen_at(int port, const std::string& remedy);
[[nodiscard]] int port_of(const Descriptor& listening);
/// Accepts one waiting connection, if there is one.
Descriptor accept_from(const Descriptor& listening);
/// Connects until it works or the deadline is over (then LaunchError with `remedy`): the server may
/// start later than its clients.
Descriptor connect_to(const std::string& host, int port, Deadline deadline,
                      const std::string& remedy);
/// Waits until something can be read, at most `milliseconds`.
void wait_readable(int fd, int milliseconds);

}  // namespace tessera
