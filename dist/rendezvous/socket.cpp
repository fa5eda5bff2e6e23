// SPDX-License-Identifier: Apache-2.0
// Listening, connecting until the deadline, and frames in and out of buffers without blocking.
#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/dist/rendezvous/socket_impl.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace tessera {
namespace {

constexpr size_t kHeader = sizeof(uint32_t) + 1;

void prepare(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

struct Addresses {
  addrinfo* list = nullptr;
  int code = 0;  // an error of getaddrinfo
  Addresses(const std::string& host, int port) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (code != 0) list = nullptr;
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  ~Addresses() {
    if (list) freeaddrinfo(list);
  }
};

// Numeric address and port.
std::pair<std::string, int> text_of(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(),
                  port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  return {host.data(), std::atoi(port.data())};
}

std::pair<std::string, int> own_end(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return text_of(address, size);
}

// A socket that listens at this address, or none and an error number.
Descriptor try_listen(const addrinfo& at, int& error) {
  Descriptor fd(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC, at.ai_protocol));
  const int off = 0, on = 1;
  if (fd) {
    prepare(fd.get());
    // Only leftovers of closed connections may be overruled, never another program that listens.
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    // All interfaces are those of IPv4 too.
    if (at.ai_family == AF_INET6)
      setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd.get(), at.ai_addr, at.ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0)
      return fd;
  }
  error = errno;
  return {};
}

// One attempt at all addresses of a name; an error number, or 0 and the socket.
int try_connect(const addrinfo* list, Deadline deadline, Descriptor& connected) {
  int error = ECONNREFUSED;
  for (const addrinfo* a = list; a; a = a->ai_next) {
    Descriptor fd(socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (!fd) {
      error = errno;
      continue;
    }
    prepare(fd.get());
    if (connect(fd.get(), a->ai_addr, a->ai_addrlen) != 0) {
      error = errno;
      if (error != EINPROGRESS) continue;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      pollfd ready{fd.get(), POLLOUT, 0};
      if (poll(&ready, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 5000))) != 1) {
        error = ETIMEDOUT;
        continue;
      }
      socklen_t size = sizeof(error);
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) continue;
    }
    connected = std::move(fd);
    return 0;
  }
  return error;
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void FrameStream::send(uint8_t type, std::string_view payload) {
  if (payload.size() > kMaxFrame) {
    fail<LaunchError>("rendezvous", "a message of ", counted(payload.size(), "byte"), ": at most ",
                      kMaxFrame, " can be sent; give less to each exchange");
  }
  const auto size = static_cast<uint32_t>(payload.size());
  out_.append(reinterpret_cast<const char*>(&size), sizeof(size));
  out_.push_back(static_cast<char>(type));
  out_.append(payload);
  flush();
}

bool FrameStream::flush() {
  while (!out_.empty()) {
    const ssize_t n = ::send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (n > 0) {
      out_.erase(0, static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  return true;
}

size_t FrameStream::missing() const {
  if (in_.size() < kHeader) return kHeader - in_.size();
  uint32_t size = 0;
  std::memcpy(&size, in_.data(), sizeof(size));
  return kHeader + size - in_.size();
}

bool FrameStream::fill() {
  constexpr size_t kChunk = 65536;
  while (open() && !garbled_) {
    const size_t wanted = missing(), had = in_.size();
    if (wanted == 0) return true;
    garbled_ = had >= kHeader && had + wanted > kHeader + largest_;
    if (garbled_) return true;
    in_.resize(had + std::min(wanted, kChunk));
    const ssize_t n = ::recv(fd(), in_.data() + had, in_.size() - had, 0);
    const int error = errno;
    in_.resize(had + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n > 0 || (n < 0 && error == EINTR)) continue;
    return n < 0 && (error == EAGAIN || error == EWOULDBLOCK);
  }
  return open();
}

std::optional<Frame> FrameStream::next() {
  if (garbled_ || missing() > 0) return {};
  Frame frame;
  frame.type = static_cast<uint8_t>(in_[kHeader - 1]);
  frame.payload = std::exchange(in_, {});
  frame.payload.erase(0, kHeader);
  return frame;
}

Listening listen_at(const std::string& host, int port, const std::string& remedy) {
  // "::" takes IPv4 too, where there is IPv6.
  const auto names = host.empty() ? std::vector<std::string>{"::", "0.0.0.0"} : std::vector{host};
  int error = 0;
  std::string why;
  for (const std::string& name : names) {
    const Addresses addresses(name, port);
    if (addresses.code != 0) why = gai_strerror(addresses.code);
    for (const addrinfo* a = addresses.list; a && error != EADDRINUSE; a = a->ai_next) {
      if (Descriptor fd = try_listen(*a, error)) {
        auto [address, chosen] = own_end(fd.get());
        if (address == "::" || address == "0.0.0.0") address.clear();
        return {std::move(fd), address, chosen};
      }
    }
  }
  if (error != 0)
    why = error == EADDRNOTAVAIL ? "not an address of this host" : std::strerror(error);
  fail<LaunchError>("launch", "cannot listen at ", host.empty() ? "all interfaces" : host,
                    ", port ", port, ": ", why, "; ", remedy);
}

Descriptor accept_from(const Descriptor& listening, int& error) {
  Descriptor fd(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  error = fd ? 0 : errno;
  if (fd) prepare(fd.get());
  return fd;
}

std::string address_of(int fd) { return own_end(fd).first; }

std::string address_of_peer(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return "a closed connection";
  const auto [host, port] = text_of(address, size);
  return concat(host, ':', port);
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address.starts_with("::ffff:127.") || address == "::1";
}

Descriptor connect_to(const std::string& host, int port, Deadline deadline,
                      const std::string& remedy) {
  std::string why;
  auto pause = std::chrono::milliseconds(2);
  do {
    const Addresses addresses(host, port);
    if (addresses.code != 0) {
      why = gai_strerror(addresses.code);
    } else {
      Descriptor connected;
      const int error = try_connect(addresses.list, deadline, connected);
      if (error == 0) return connected;
      why = std::strerror(error);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(250));
  } while (std::chrono::steady_clock::now() < deadline);
  fail<LaunchError>("launch", "rank 0 cannot be reached at ", host, ":", port, ": ", why, "; ",
                    remedy);
}

void wait_readable(int fd, int milliseconds) {
  pollfd ready{fd, POLLIN, 0};
  (void)poll(&ready, 1, milliseconds);
}

}  // namespace tessera
