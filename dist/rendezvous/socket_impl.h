// SPDX-License-Identifier: Apache-2.0
// Non-blocking TCP sockets, and frames: a length of 4 bytes, a type of 1 byte, the payload. A
// longer frame than the stream allows comes from another program: none of it is read.
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

/// One connection: splits incoming bytes into frames and buffers outgoing bytes. It reads no byte
/// beyond the next frame, and keeps no more of it than has come.
class FrameStream {
 public:
  static constexpr size_t kMaxFrame = 16 << 20;

  FrameStream() = default;
  /// `largest`: bytes of the longest payload that the peer may send.
  explicit FrameStream(Descriptor socket, size_t largest = kMaxFrame)
      : socket_(std::move(socket)), largest_(largest) {}
  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] bool open() const { return static_cast<bool>(socket_); }
  [[nodiscard]] bool wants_to_write() const { return !out_.empty(); }
  void allow(size_t largest) { largest_ = largest; }
  /// LaunchError: a payload above kMaxFrame, which the other end would take for garbage.
  void send(uint8_t type, std::string_view payload);
  /// Writes buffered bytes; false if the peer has closed the connection.
  bool flush();
  /// Reads until a frame is complete or nothing more is there; false if the peer has closed the
  /// connection.
  bool fill();
  std::optional<Frame> next();
  /// Calls f(frame) for the frames that are here, a limited number; false if the peer has closed
  /// the connection or does not send frames.
  template <class F> bool read(F f) {
    for (int i = 0; i < kAtOnce; ++i) {
      const bool here = fill();
      auto frame = next();
      if (!frame) return here && !garbled_;
      f(std::move(*frame));
    }
    return true;
  }
  /// The incoming bytes are not frames.
  [[nodiscard]] bool garbled() const { return garbled_; }
  void close() { socket_ = Descriptor(); }
  /// Gives up the socket; no frame must be half read or half written.
  [[nodiscard]] Descriptor release() { return std::move(socket_); }

 private:
  static constexpr int kAtOnce = 64;
  /// Bytes of the next frame that are still to come, as far as is known.
  [[nodiscard]] size_t missing() const;

  Descriptor socket_;
  std::string in_, out_;
  size_t largest_ = kMaxFrame;
  bool garbled_ = false;
};

/// A socket that listens.
struct Listening {
  Descriptor socket;
  std::string address;  ///< numeric; empty: all interfaces
  int port = 0;
};
/// Listens at the first address of `host` (empty: on all interfaces) and `port` (0: any).
/// LaunchError with `remedy`: the port is in use, the address is not of this host.
Listening listen_at(const std::string& host, int port, const std::string& remedy);
/// Accepts one waiting connection; without one, `error` is an error number.
Descriptor accept_from(const Descriptor& listening, int& error);
/// Numeric address of this end of a connection.
[[nodiscard]] std::string address_of(int fd);
/// `10.0.0.7:41234`, for people.
[[nodiscard]] std::string address_of_peer(int fd);
/// Of a numeric address.
[[nodiscard]] bool is_loopback(std::string_view address);
/// Tries to connect until the deadline (then LaunchError with `remedy`): the server may start later
/// than its clients.
Descriptor connect_to(const std::string& host, int port, Deadline deadline,
                      const std::string& remedy);
/// Waits until something can be read, at most `milliseconds`.
void wait_readable(int fd, int milliseconds);

}  // namespace tessera
