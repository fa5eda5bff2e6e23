// SPDX-License-Identifier: Apache-2.0
// One thread polls all connections; exchanges are identified by key and members, and end with an
// error as soon as a member is gone or takes part in another exchange. After a conflict of two
// worlds the server stays for a moment, so that ranks that come late learn of it too.
#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/dist/rendezvous/rendezvous_impl.h"
#include "tessera/dist/rendezvous/wire_impl.h"

#include <algorithm>
#include <fcntl.h>
#include <iostream>
#include <unistd.h>

namespace tessera {

using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kTellConflict = std::chrono::milliseconds(2000);

}  // namespace

RendezvousServer::RendezvousServer(Door door, int size, Descriptor rank_zero)
    : door_(std::move(door)), peers_(static_cast<size_t>(size)) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    fail<LaunchError>("launch", "no file descriptors left for the rendezvous");
  wake_read_ = Descriptor(ends[0]);
  wake_write_ = Descriptor(ends[1]);
  peers_[0] = {FrameStream(std::move(rank_zero)), {}, Clock::now()};
  peers_[0].status.state = RemoteStatus::State::connected;
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
    if (stop_ && end == Clock::time_point::max()) {
      const auto linger = std::chrono::milliseconds(linger_ms_.load());
      end = Clock::now() + (conflict_.empty() ? linger : std::max(linger, kTellConflict));
    }
  }
}

// False when asked to stop and nobody is left to serve.
bool RendezvousServer::serve_once() {
  std::vector<pollfd> ready{{stop_ ? -1 : wake_read_.get(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    const int events = POLLIN | (peer.stream.wants_to_write() ? POLLOUT : 0);
    ready.push_back({peer.stream.fd(), static_cast<short>(events), 0});  // negative: ignored
  }
  door_.watch(ready);
  (void)poll(ready.data(), ready.size(), stop_ ? 10 : door_.busy() ? 50 : 500);
  if (stop_ && concerned_ == 0 &&
      std::ranges::none_of(peers_, [](const Peer& p) { return p.stream.open(); })) {
    return false;
  }
  for (size_t r = 0; r < peers_.size(); ++r) {
    const int rank = static_cast<int>(r);
    FrameStream& stream = peers_[r].stream;
    if (!stream.open() || ready[1 + r].revents == 0) continue;
    try {
      if (stream.read([&](const Frame& frame) { handle(rank, frame); }) && stream.flush()) continue;
    } catch (const LaunchError& e) {  // an answer that is too long: no rank of ours asks for one
      std::cerr << concat("rendezvous: drops rank ", rank, ": ", e.what(), '\n');
    }
    stream.close();
    if (peers_[r].status.state == RemoteStatus::State::connected)
      gone(rank, RemoteStatus::State::lost);
  }
  for (Door::Guest& guest : door_.admit()) join(std::move(guest));
  return true;
}

std::string RendezvousServer::conflict_with(const Door::Guest& guest) const {
  const int expected = static_cast<int>(peers_.size());
  constexpr const char* kRemedy =
      ", or, if these are two jobs, another MASTER_PORT for one of them";
  if (guest.size != expected) {
    return concat("rank ", guest.rank, " of ", guest.size, " came to a world of ",
                  counted(expected, "rank"), ": set the same world size on all ranks", kRemedy);
  }
  const bool taken =
      guest.rank < 0 || guest.rank >= expected ||
      peers_[static_cast<size_t>(guest.rank)].status.state != RemoteStatus::State::never_joined;
  return taken ? concat("two processes say that they are rank ", guest.rank, " of ", guest.size,
                        ": give every process its own rank", kRemedy)
               : "";
}

void RendezvousServer::join(Door::Guest guest) {
  const std::string conflict = conflict_.empty() ? conflict_with(guest) : conflict_;
  if (!conflict.empty()) {
    Door::refuse(guest.stream, conflict);
    const auto joined = std::ranges::count_if(
        peers_, [](const Peer& p) { return p.status.state != RemoteStatus::State::never_joined; });
    if (!conflict_.empty()) {
      concerned_ -= std::min<size_t>(concerned_, 1);
      return;
    }
    std::cerr << concat("rendezvous: ", conflict, '\n');
    if (static_cast<size_t>(joined) < peers_.size()) {
      conflict_ = conflict;
      to_all_but(-1, wire::kRefused, conflict);
      // All ranks of both worlds, less those who know it now.
      const size_t both = peers_.size() + static_cast<size_t>(std::max(guest.size, 1));
      concerned_ = both - std::min<size_t>(both, static_cast<size_t>(joined) + 1);
    }
    return;
  }
  Door::welcome(guest);
  Peer& peer = peers_[static_cast<size_t>(guest.rank)];
  peer.stream = std::move(guest.stream);
  peer.status.state = RemoteStatus::State::connected;
  peer.heard = Clock::now();
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (peers_[r].status.state != RemoteStatus::State::lost) continue;
    peer.stream.send(wire::kLost, loss_of(static_cast<int>(r)));
  }
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
      if (!door_.stray().empty()) text += "; " + door_.stray();
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
  std::vector<int> members(std::min<size_t>(in.get<uint32_t>(), peers_.size()));
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
    if (reply.bytes().size() > FrameStream::kMaxFrame) {
      return fail_exchange(key, false,
                           concat("its parts have ", counted(reply.bytes().size(), "byte"),
                                  " together: at most ", FrameStream::kMaxFrame));
    }
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
  if (how == RemoteStatus::State::lost) to_all_but(rank, wire::kLost, loss_of(rank));
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

std::string RendezvousServer::loss_of(int rank) const {
  const RemoteStatus& last = peers_[static_cast<size_t>(rank)].status;
  return PackedWriter()
      .put(static_cast<int32_t>(rank))
      .put(last.sequence)
      .text(last.operation)
      .bytes();
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
