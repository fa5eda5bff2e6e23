// SPDX-License-Identifier: Apache-2.0
// One thread polls all connections; exchanges are found by key and members, and end with an error
// as soon as a member is gone or is seen in an exchange that cannot be this one.
#include "tessera/core/error.h"
#include "tessera/dist/rendezvous/rendezvous_impl.h"
#include "tessera/dist/rendezvous/wire_impl.h"

#include <algorithm>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace tessera {

using Clock = std::chrono::steady_clock;

RendezvousServer::RendezvousServer(int port, int size, std::string job)
    : listening_(listen_at(port,
                           "choose another port by MASTER_PORT (the same on all ranks), or end the "
                           "program that uses this one")),
      port_(port_of(listening_)),
      job_(std::move(job)),
      peers_(static_cast<size_t>(size)) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    fail<LaunchError>("launch", "no file descriptors left for the rendezvous");
  wake_read_ = Descriptor(ends[0]);
  wake_write_ = Descriptor(ends[1]);
  thread_ = std::thread([this] { serve(); });
}

RendezvousServer::~RendezvousServer() {
  stop_ = true;
  (void)!write(wake_write_.get(), "x", 1);
  thread_.join();
}

void RendezvousServer::serve() {
  Clock::time_point end = Clock::time_point::max();
  while (Clock::now() < end) {
    if (!serve_once()) return;
    if (stop_ && end == Clock::time_point::max())
      end = Clock::now() + std::chrono::milliseconds(linger_ms_.load());
  }
}

// False when asked to stop and nobody is left to serve.
bool RendezvousServer::serve_once() {
  std::vector<pollfd> ready{{listening_.get(), POLLIN, 0}, {wake_read_.get(), POLLIN, 0}};
  const auto watch = [&](const FrameStream& stream) {
    const int events = POLLIN | (stream.wants_to_write() ? POLLOUT : 0);
    ready.push_back({stream.fd(), static_cast<short>(events), 0});  // negative fds are ignored
  };
  for (const Peer& peer : peers_) watch(peer.stream);
  for (const FrameStream& stranger : strangers_) watch(stranger);
  (void)poll(ready.data(), ready.size(), stop_ ? 10 : 500);
  if (stop_ &&
      std::none_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.stream.open(); })) {
    return false;
  }

  const size_t known = 2 + peers_.size();
  const size_t strangers = ready.size() - known;
  for (size_t r = 0; r < peers_.size(); ++r) {
    FrameStream& stream = peers_[r].stream;
    if (!stream.open() || ready[2 + r].revents == 0) continue;
    const bool here = stream.fill();
    while (auto frame = stream.next()) handle(static_cast<int>(r), *frame);
    if (!here || !stream.flush() || stream.garbled()) {
      stream.close();
      if (peers_[r].status.state == RemoteStatus::State::connected)
        gone(static_cast<int>(r), RemoteStatus::State::lost);
    }
  }
  std::vector<FrameStream> rest;
  for (size_t i = 0; i < strangers; ++i) {
    FrameStream& stream = strangers_[i];
    const bool here = ready[known + i].revents == 0 || stream.fill();
    if (auto frame = stream.next()) join(std::move(stream), *frame);
    else if (here && !stream.garbled()) rest.push_back(std::move(stream));
  }
  strangers_ = std::move(rest);
  while (Descriptor fd = accept_from(listening_)) strangers_.emplace_back(std::move(fd));
  return true;
}

void RendezvousServer::join(FrameStream stream, const Frame& hello) {
  PackedReader in(hello.payload);
  const auto magic = in.get<uint64_t>();
  const auto version = in.get<uint32_t>();
  const std::string job = in.text();
  const auto rank = in.get<int32_t>();
  const auto size = in.get<int32_t>();
  if (hello.type != wire::kHello || !in.ok() || magic != wire::kMagic) return;  // a stranger
  const auto refuse = [&](const std::string& why) { stream.send(wire::kRefused, why); };
  const int expected = static_cast<int>(peers_.size());
  if (version != wire::kVersion) {
    stray_ = concat("a process of another build (protocol ", version, ") tried to join");
    return refuse(concat("rank 0 is of another build of Tessera (protocol ", wire::kVersion,
                         ", here ", version, "): start all ranks from one build"));
  }
  if (job != job_) {
    stray_ = concat("a process of job '", job, "' tried to join job '", job_, "'");
    return refuse(concat("the rank 0 that answers belongs to job '", job_, "', this is job '", job,
                         "': choose another MASTER_PORT"));
  }
  std::string conflict;
  if (size != expected) {
    conflict = concat("rank ", rank, " says that the world has ", size, " ranks, rank 0 says ",
                      expected, ": set the same world size on all ranks");
  } else if (rank < 0 || rank >= expected ||
             peers_[static_cast<size_t>(rank)].status.state != RemoteStatus::State::never_joined) {
    conflict = concat("two processes say that they are rank ", rank, " of ", size,
                      ": give every process its own rank");
  }
  if (!conflict.empty()) {
    refuse(conflict);
    // A world that is complete does not suffer from who comes too late.
    const bool complete = std::ranges::none_of(
        peers_, [](const Peer& p) { return p.status.state == RemoteStatus::State::never_joined; });
    if (!complete) to_all_but(-1, wire::kRefused, conflict);
    return;
  }
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.stream = std::move(stream);
  peer.status.state = RemoteStatus::State::connected;
  peer.heard = Clock::now();
  peer.stream.send(wire::kWelcome, {});
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (peers_[r].status.state != RemoteStatus::State::lost) continue;
    peer.stream.send(wire::kLost, PackedWriter().put(static_cast<int32_t>(r)).bytes());
  }
  while (auto frame = peer.stream.next()) handle(rank, *frame);
}

void RendezvousServer::handle(int rank, const Frame& frame) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.heard = Clock::now();
  PackedReader in(frame.payload);
  switch (frame.type) {
    case wire::kGather: return gather(rank, in);
    case wire::kWhoIsMissing: {
      const std::string key = in.text();
      std::string text;
      if (const auto found = exchanges_.find(key); found != exchanges_.end()) {
        for (int member : found->second.members) {
          if (found->second.parts.contains(member)) continue;
          const bool joined =
              peers_[static_cast<size_t>(member)].status.state != RemoteStatus::State::never_joined;
          text +=
              concat(text.empty() ? "rank " : ", rank ", member, joined ? "" : " (never joined)");
        }
      }
      if (!stray_.empty()) text += "; " + stray_;
      return peer.stream.send(wire::kMissing, PackedWriter().text(key).text(text).bytes());
    }
    case wire::kNotify:
      return to_all_but(rank, wire::kNotice,
                        PackedWriter().put(static_cast<int32_t>(rank)).text(frame.payload).bytes());
    case wire::kStatus:
      peer.status.sequence = in.get<uint64_t>();
      peer.status.operation = in.text();
      return;
    case wire::kTable: return peer.stream.send(wire::kTableReply, table());
    case wire::kBye: return gone(rank, RemoteStatus::State::left);
    default: return;
  }
}

void RendezvousServer::gather(int rank, PackedReader& in) {
  const std::string key = in.text();
  std::vector<int> members(in.get<uint32_t>() % (1u << 20));
  for (int& member : members) member = in.get<int32_t>();
  std::string part = in.text();
  FrameStream& stream = peers_[static_cast<size_t>(rank)].stream;
  const auto refuse = [&](const std::string& why) {
    stream.send(wire::kGatherFailed, PackedWriter().text(key).put(true).text(why).bytes());
  };
  const int size = static_cast<int>(peers_.size());
  for (int member : members) {
    if (!in.ok() || member < 0 || member >= size) return refuse("a member outside the world");
  }
  // An exchange blocks its rank, so this one has given up on any other.
  for (auto& [other, exchange] : exchanges_) exchange.parts.erase(rank);
  Exchange& exchange = exchanges_[key];
  if (exchange.parts.empty()) exchange.members = members;
  if (exchange.members != members) return refuse("its ranks name different members");
  exchange.parts[rank] = std::move(part);
  if (exchange.parts.size() == members.size()) {
    PackedWriter reply;
    reply.text(key).put(static_cast<uint32_t>(members.size()));
    for (int member : members) reply.text(exchange.parts[member]);
    for (int member : members)
      peers_[static_cast<size_t>(member)].stream.send(wire::kGathered, reply.bytes());
    exchanges_.erase(key);
    return;
  }
  if (crosses_another(key)) return;
  for (int member : members) {
    const RemoteStatus::State state = peers_[static_cast<size_t>(member)].status.state;
    if (state == RemoteStatus::State::lost || state == RemoteStatus::State::left)
      return fail_exchanges_of(member);
  }
}

void RendezvousServer::gone(int rank, RemoteStatus::State how) {
  peers_[static_cast<size_t>(rank)].status.state = how;
  if (how == RemoteStatus::State::lost)
    to_all_but(rank, wire::kLost, PackedWriter().put(static_cast<int32_t>(rank)).bytes());
  fail_exchanges_of(rank);
}

void RendezvousServer::fail_exchanges_of(int rank) {
  const bool lost = peers_[static_cast<size_t>(rank)].status.state == RemoteStatus::State::lost;
  for (auto it = exchanges_.begin(); it != exchanges_.end();) {
    const Exchange& exchange = it->second;
    const bool waits_for_it = std::find(exchange.members.begin(), exchange.members.end(), rank) !=
                                  exchange.members.end() &&
                              !exchange.parts.contains(rank);
    if (!waits_for_it) {
      ++it;
      continue;
    }
    const std::string key = (it++)->first;
    fail_exchange(key, false, concat("rank ", rank, lost ? " died" : " left"));
  }
}

void RendezvousServer::fail_exchange(const std::string& key, bool mismatch,
                                     const std::string& why) {
  const std::string payload = PackedWriter().text(key).put(mismatch).text(why).bytes();
  for (const auto& [member, part] : exchanges_[key].parts)
    peers_[static_cast<size_t>(member)].stream.send(wire::kGatherFailed, payload);
  exchanges_.erase(key);
}

// A rank that waits here for one that waits elsewhere for a third rank of this exchange: they make
// different groups, and would wait for ever.
bool RendezvousServer::crosses_another(const std::string& key) {
  const Exchange& own = exchanges_[key];
  const auto wants = [](const Exchange& e, int rank) {
    return std::ranges::find(e.members, rank) != e.members.end() && !e.parts.contains(rank);
  };
  for (const auto& [other_key, other] : exchanges_) {
    if (other_key == key) continue;
    for (const auto& [here, part] : own.parts) {
      if (!wants(other, here)) continue;
      for (const auto& [there, their_part] : other.parts) {
        if (!wants(own, there)) continue;
        const std::string why =
            concat("rank ", here, " is in exchange '", key, "', rank ", there, " in '", other_key,
                   "', and each waits for the other; make groups in the same order on all ranks");
        const std::string second = other_key;
        fail_exchange(key, true, why);
        fail_exchange(second, true, why);
        return true;
      }
    }
  }
  return false;
}

void RendezvousServer::to_all_but(int rank, uint8_t type, std::string_view payload) {
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (static_cast<int>(r) != rank && peers_[r].stream.open())
      peers_[r].stream.send(type, payload);
  }
}

std::string RendezvousServer::table() const {
  PackedWriter out;
  for (const Peer& peer : peers_) {
    const auto silent =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - peer.heard);
    out.put(peer.status.state)
        .put(static_cast<int64_t>(silent.count()))
        .put(peer.status.sequence)
        .text(peer.status.operation);
  }
  return out.bytes();
}

}  // namespace tessera
