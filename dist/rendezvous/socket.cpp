// SPDX-License-Identifier: Apache-2.0
// Listening, connecting until the deadline, and frames in and out of buffers without blocking.
#include "tessera/core/error.h"
#include "tessera/dist/rendezvous/socket_impl.h"

#include <algorithm>
#include <cerrno>
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
  ~Addresses() {
    if (list) freeaddrinfo(list);
  }
};

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

bool FrameStream::fill() {
  if (!open()) return false;
  char chunk[16384];
  while (true) {
    const ssize_t n = ::recv(fd(), chunk, sizeof(chunk), 0);
    if (n > 0) {
      in_.append(chunk, static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

std::optional<Frame> FrameStream::next() {
  if (garbled_ || in_.size() - used_ < kHeader) return {};
  uint32_t size = 0;
  std::memcpy(&size, in_.data() + used_, sizeof(size));
  if (size > kMaxFrame) {
    garbled_ = true;
    return {};
  }
  if (in_.size() - used_ < kHeader + size) return {};
  Frame frame;
  frame.type = static_cast<uint8_t>(in_[used_ + sizeof(size)]);
  frame.payload = in_.substr(used_ + kHeader, size);
  used_ += kHeader + size;
  if (used_ == in_.size()) {
    in_.clear();
    used_ = 0;
  }
  return frame;
}

Descriptor listen_at(int port, const std::string& remedy) {
  const int off = 0, on = 1;
  int error = 0;
  for (const int family :
       {AF_INET6, AF_INET}) {  // an IPv6 socket takes IPv4 too, where there is IPv6
    Descriptor fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) {
      error = errno;
      continue;
    }
    prepare(fd.get());
    // Only leftovers of closed connections may be overruled, never another program that listens.
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_storage address{};
    socklen_t size = 0;
    if (family == AF_INET6) {
      setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      auto* a = reinterpret_cast<sockaddr_in6*>(&address);
      a->sin6_family = AF_INET6;
      a->sin6_addr = in6addr_any;
      a->sin6_port = htons(static_cast<uint16_t>(port));
      size = sizeof(*a);
    } else {
      auto* a = reinterpret_cast<sockaddr_in*>(&address);
      a->sin_family = AF_INET;
      a->sin_addr.s_addr = htonl(INADDR_ANY);
      a->sin_port = htons(static_cast<uint16_t>(port));
      size = sizeof(*a);
    }
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
        listen(fd.get(), SOMAXCONN) == 0) {
      return fd;
    }
    error = errno;
    if (error == EADDRINUSE) break;
  }
  fail<LaunchError>("launch", "cannot listen at port ", port, ": ", std::strerror(error), "; ",
                    remedy);
}

int port_of(const Descriptor& listening) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

Descriptor accept_from(const Descriptor& listening) {
  Descriptor fd(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (fd) prepare(fd.get());
  return fd;
}

Descriptor connect_to(const std::string& host, int port, Deadline deadline,
                      const std::string& remedy) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  std::string why;
  auto pause = std::chrono::milliseconds(2);
  do {
    Addresses addresses;
    if (const int code =
            getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &addresses.list);
        code != 0) {
      why = gai_strerror(code);
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
