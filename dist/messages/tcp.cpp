// SPDX-License-Identifier: Apache-2.0
// A message is a header and its bytes. Incoming bytes are read into the receive posted for their
// tag, or stored until one is posted; outgoing bytes that the socket does not accept are queued.
#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/dist/messages/tcp_impl.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <sys/socket.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>

namespace tessera {

struct TcpMessages::Message {
  int peer = 0;
  Header header{};
  const std::byte* from = nullptr;  // of a send
  std::byte* to = nullptr;          // of a receive, or into `kept`
  size_t room = 0;                  // at `to`
  size_t moved = 0;                 // of a send, its header included
  bool done = false;
  std::string error;
  std::vector<std::byte> kept;        // of one that came before its receive
  std::shared_ptr<const void> owner;  // of the bytes, once nobody waits for it
};

namespace {

constexpr const char* kRemedy = "open the ports between the hosts";

// Proofs for one rank are none for another.
std::string door_of(int rank) { return concat("messages of rank ", rank); }

}  // namespace

TcpMessages::TcpMessages(Bootstrap& bootstrap, const Options& options, Deadline deadline)
    : rank_(bootstrap.rank()), peers_(static_cast<size_t>(bootstrap.size())) {
  Door door(listen_at(options.address, 0, kRemedy), {.secret = options.secret,
                                                     .name = door_of(rank_),
                                                     .most = peers_.size() + kMoreStrangers,
                                                     .patience = options.patience});
  const Listening& own = door.listening();
  std::vector<int> all(peers_.size());
  std::iota(all.begin(), all.end(), 0);
  const std::string& host = own.address.empty() ? options.hostname : own.address;
  const auto places = bootstrap.all_gather(
      all, "ports", PackedWriter().text(host).text(options.hostname).put(own.port).bytes(),
      deadline);
  connect_all(door, places, options.secret, deadline);
  bootstrap.barrier(all, "connected", deadline);
}

// To lower ranks this one connects; the higher ones connect to it.
void TcpMessages::connect_all(Door& door, const std::vector<std::string>& places,
                              const std::string& secret, Deadline deadline) {
  const int size = static_cast<int>(peers_.size());
  const auto knock_at = [&](int rank) {
    PackedReader theirs(places[static_cast<size_t>(rank)]),
        ours(places[static_cast<size_t>(rank_)]);
    std::string host = theirs.text();
    (void)ours.text();
    const std::string hostname = theirs.text();
    if (host == hostname && hostname == ours.text()) host = "localhost";
    return Knock(connect_to(host, theirs.get<int>(), deadline, kRemedy), secret, door_of(rank),
                 rank_, size);
  };
  std::vector<Knock> knocks;
  for (int r = 0; r < rank_; ++r) knocks.push_back(knock_at(r));
  const auto connected = [](const Peer& peer) { return static_cast<bool>(peer.socket); };
  while (std::ranges::count_if(peers_, connected) < size - 1) {
    if (std::chrono::steady_clock::now() > deadline) {
      const auto missing = size - 1 - std::ranges::count_if(peers_, connected);
      fail<CollectiveTimeout>("launch", "rank ", rank_, " has no connection to ", missing,
                              " of the other ", counted(size - 1, "rank"), "; ", kRemedy);
    }
    for (int r = 0; r < rank_; ++r) {
      Peer& peer = peers_[static_cast<size_t>(r)];
      if (peer.socket) continue;
      Knock& knock = knocks[static_cast<size_t>(r)];
      switch (knock.advance()) {
        case Knock::State::waits: break;
        case Knock::State::welcome: peer.socket = knock.take().release(); break;
        case Knock::State::refused:
          fail<LaunchError>("launch", "rank ", r, " refused rank ", rank_, ": ", knock.why());
        case Knock::State::broken: knock = knock_at(r); break;  // dropped among strangers
      }
    }
    for (Door::Guest& guest : door.admit()) {
      if (guest.rank <= rank_ || guest.rank >= size || guest.size != size) continue;
      Peer& peer = peers_[static_cast<size_t>(guest.rank)];
      if (peer.socket) continue;
      Door::welcome(guest);
      peer.socket = guest.stream.release();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TcpMessages::~TcpMessages() = default;

// Its owner goes when no lock is held.
void TcpMessages::end(Message& message) {
  message.done = true;
  if (!message.owner) return;
  gone_.push_back(std::move(message.owner));
  some_gone_.store(true, std::memory_order_relaxed);
}

void TcpMessages::fail_all(Peer& peer, const std::string& why) {
  peer.broken = true;
  const auto fail_one = [&](const std::shared_ptr<Message>& message) {
    if (message->done) return;
    message->error = why;
    end(*message);
  };
  for (const auto& message : peer.outgoing) fail_one(message);
  for (const auto& message : peer.posted) fail_one(message);
  if (peer.current) fail_one(peer.current);
  peer.outgoing.clear();
  peer.posted.clear();
  peer.current = nullptr;
}

void TcpMessages::write_some(Peer& peer) {
  while (!peer.outgoing.empty() && !peer.broken) {
    Message& m = *peer.outgoing.front();
    const size_t whole = sizeof(Header) + m.header.bytes;
    std::array<iovec, 2> parts{};
    size_t n = 0;
    if (m.moved < sizeof(Header)) {
      parts[n++] = {reinterpret_cast<char*>(&m.header) + m.moved, sizeof(Header) - m.moved};
    }
    const size_t body = m.moved > sizeof(Header) ? m.moved - sizeof(Header) : 0;
    if (m.header.bytes > body)
      parts[n++] = {const_cast<std::byte*>(m.from) + body, m.header.bytes - body};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = n;
    const ssize_t sent = ::sendmsg(peer.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
      return fail_all(peer, std::strerror(errno));
    }
    m.moved += static_cast<size_t>(sent);
    if (m.moved < whole) continue;
    end(m);
    peer.outgoing.pop_front();
  }
}

void TcpMessages::read_some(Peer& peer) {
  while (!peer.broken) {
    const bool in_header = !peer.current;
    std::byte* to = in_header ? reinterpret_cast<std::byte*>(&peer.header) + peer.header_bytes
                              : peer.current->to + peer.body_bytes;
    const size_t wanted =
        in_header ? sizeof(Header) - peer.header_bytes : peer.header.bytes - peer.body_bytes;
    const ssize_t n = ::recv(peer.socket.get(), to, wanted, MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
      return fail_all(peer, std::strerror(errno));
    }
    if (n == 0) return fail_all(peer, "it closed the connection");
    if (in_header) {
      peer.header_bytes += static_cast<size_t>(n);
      if (peer.header_bytes == sizeof(Header)) begin(peer);
    } else {
      peer.body_bytes += static_cast<size_t>(n);
    }
    if (peer.current && peer.body_bytes == peer.header.bytes) finish(peer);
  }
}

// A header is here: finds who waits for the message, or keeps it.
void TcpMessages::begin(Peer& peer) {
  peer.header_bytes = peer.body_bytes = 0;
  const auto waiting = std::ranges::find_if(
      peer.posted, [&](const auto& message) { return message->header.tag == peer.header.tag; });
  if (waiting != peer.posted.end()) {
    peer.current = *waiting;
    peer.posted.erase(waiting);
    if (peer.header.bytes > peer.current->room)
      fail_all(peer, "its message is longer than what was expected");
    return;
  }
  constexpr uint64_t kKeptAtMost = uint64_t{1}
                                   << 34;  // more than any peer of ours would send ahead
  if (peer.header.bytes > kKeptAtMost)
    return fail_all(peer, "it announces an implausibly large message");
  peer.current = std::make_shared<Message>();
  peer.current->header = peer.header;
  peer.current->kept.resize(peer.header.bytes);
  peer.current->to = peer.current->kept.data();
}

void TcpMessages::finish(Peer& peer) {
  const std::shared_ptr<Message> came = std::exchange(peer.current, nullptr);
  const bool was_posted = came->room > 0 || came->owner != nullptr;
  end(*came);
  if (!was_posted) take(peer, came);
}

// A message that was kept: its receive may have been posted meanwhile.
void TcpMessages::take(Peer& peer, const std::shared_ptr<Message>& came) {
  const auto waiting = std::ranges::find_if(
      peer.posted, [&](const auto& message) { return message->header.tag == came->header.tag; });
  if (waiting == peer.posted.end()) {
    peer.arrived.push_back(came);
    return;
  }
  Message& to = **waiting;
  if (came->kept.size() > to.room) to.error = "its message is longer than what was expected";
  else std::copy(came->kept.begin(), came->kept.end(), to.to);
  to.done = true;
  peer.posted.erase(waiting);
}

Messages::Handle TcpMessages::send(int to, int tag, const void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<size_t>(to)];
  auto message = std::make_shared<Message>();
  message->peer = to;
  message->header = {bytes, tag};
  message->from = static_cast<const std::byte*>(data);
  if (to == rank_) {
    auto came = std::make_shared<Message>();
    came->header = message->header;
    came->kept.assign(message->from, message->from + bytes);
    message->done = true;
    take(peer, came);
  } else if (peer.broken) {
    message->error = "the connection is broken";
    message->done = true;
  } else {
    peer.outgoing.push_back(message);
    write_some(peer);
  }
  return new std::shared_ptr<Message>(std::move(message));
}

Messages::Handle TcpMessages::receive(int from, int tag, void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<size_t>(from)];
  auto message = std::make_shared<Message>();
  message->peer = from;
  message->header.tag = tag;
  message->to = static_cast<std::byte*>(data);
  message->room = bytes;
  peer.posted.push_back(message);
  const auto came = std::ranges::find_if(
      peer.arrived, [&](const auto& other) { return other->header.tag == tag; });
  if (came != peer.arrived.end()) {
    const auto first = *came;
    peer.arrived.erase(came);
    take(peer, first);
  } else if (peer.broken) {
    message->error = "the connection is broken";
    message->done = true;
    peer.posted.pop_back();
  }
  return new std::shared_ptr<Message>(std::move(message));
}

bool TcpMessages::done(Handle& handle) {
  if (!handle) return true;
  const std::lock_guard lock(mutex_);
  auto* held = static_cast<std::shared_ptr<Message>*>(handle);
  const std::shared_ptr<Message> message = *held;
  Peer& peer = peers_[static_cast<size_t>(message->peer)];
  if (!message->done && message->peer != rank_) {
    write_some(peer);
    read_some(peer);
  }
  if (!message->done) return false;
  delete held;
  handle = nullptr;
  if (!message->error.empty()) {
    fail<PeerFailed>("messages", message->from ? "sending to" : "receiving from", " rank ",
                     message->peer, " failed: ", message->error);
  }
  return true;
}

void TcpMessages::abandon(Handle& handle, std::shared_ptr<const void> owner) {
  if (!handle) return;
  const std::lock_guard lock(mutex_);
  auto* held = static_cast<std::shared_ptr<Message>*>(handle);
  const std::shared_ptr<Message> message = *held;
  delete held;
  handle = nullptr;
  // A send stays in line: the stream must keep its frames. So does what has begun to come.
  message->owner = std::move(owner);
  Peer& peer = peers_[static_cast<size_t>(message->peer)];
  if (message->done || std::erase(peer.posted, message) > 0) end(*message);
}

std::vector<std::shared_ptr<const void>> TcpMessages::let_go() {
  if (!some_gone_.load(std::memory_order_relaxed)) return {};
  const std::lock_guard lock(mutex_);
  some_gone_.store(false, std::memory_order_relaxed);
  return std::exchange(gone_, {});
}

}  // namespace tessera
