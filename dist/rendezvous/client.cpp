// SPDX-License-Identifier: Apache-2.0
// The client has no thread: messages of the server are read in calls that wait, by any thread of
// the rank.
#include "tessera/core/error.h"
#include "tessera/dist/rendezvous/rendezvous_impl.h"
#include "tessera/dist/rendezvous/wire_impl.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <sys/socket.h>

namespace tessera {
namespace {

constexpr int kSliceMs = 20;
// Time limit for an answer of a live server.
constexpr auto kAnswer = std::chrono::milliseconds(500);
constexpr auto kPause = std::chrono::milliseconds(100);
constexpr int kAttempts = 20;
constexpr const char* kDoor = "rendezvous";

// A server that knows the secret, and says why this rank cannot be in its world.
class Refused final : public LaunchError {
 public:
  using LaunchError::LaunchError;
};

std::string exchange_key(std::string_view key, std::span<const int> members) {
  std::string full(key);
  for (int member : members) full += concat('/', member);
  return full;
}

// Listens where the other ranks will look for this host.
Listening listen_for(const RendezvousClient::Options& options) {
  const std::string& host = options.bind.empty() ? options.host : options.bind;
  const std::string remedy =
      "choose another port by MASTER_PORT (the same on all ranks), or end the program that uses "
      "this one; set MASTER_ADDR to an address of rank 0's host, or TESSERA_BIND_ADDR to the one "
      "to listen at";
  Listening listening = listen_at(host, options.port, remedy);
  const bool named = !host.starts_with("localhost") && host != listening.address;
  // Many systems give the host's own name a loopback address, which other hosts cannot mean.
  if (!is_loopback(listening.address) || !named || options.one_host) return listening;
  std::cerr << concat("rendezvous: MASTER_ADDR ", host, " is ", listening.address,
                      " on its own host, where others cannot connect, so rank 0 listens on all "
                      "interfaces; set MASTER_ADDR to the address that the other hosts use\n");
  listening.socket = Descriptor();
  return listen_at("", options.port, remedy);
}

}  // namespace

RendezvousClient::RendezvousClient(const Options& options, Deadline deadline) : options_(options) {
  if (options_.rank == 0) {
    serve(deadline);
  } else {
    stream_ = enter(deadline);
    address_ = address_of(stream_.fd());
  }
}

void RendezvousClient::serve(Deadline deadline) {
  Listening listening;
  try {
    listening = listen_for(options_);
  } catch (const LaunchError&) {
    try {  // if another job listens there, that is the better message
      (void)enter(std::min(deadline, deadline_after(std::chrono::seconds(1))));
    } catch (const Refused&) {
      throw;
    } catch (const LaunchError&) {
    }
    throw;
  }
  options_.port = listening.port;
  address_ = listening.address;
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    fail<LaunchError>("launch", "no file descriptors left for the rendezvous");
  stream_ = FrameStream(Descriptor(ends[0]));
  Descriptor theirs(ends[1]);
  const auto size = static_cast<size_t>(options_.size);
  server_ = std::make_unique<RendezvousServer>(
      Door(std::move(listening), {.secret = options_.secret,
                                  .name = kDoor,
                                  .most = size + kMoreStrangers,
                                  .patience = options_.patience}),
      options_.size, std::move(theirs));
}

// The connection to a server that accepts this rank.
FrameStream RendezvousClient::enter(Deadline deadline) const {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  Knock::State state = Knock::State::broken;
  // Under a flood of strangers a server may drop the wrong one: then this one comes again.
  for (int i = 0; i < kAttempts && state == Knock::State::broken; ++i) {
    if (i > 0) std::this_thread::sleep_for(kPause);
    Knock knock(connect_to(options_.host, options_.port, deadline, options_.remedy),
                options_.secret, kDoor, options_.rank, options_.size);
    while ((state = knock.advance()) == Knock::State::waits && now() < deadline)
      wait_readable(knock.fd(), kSliceMs);
    if (state == Knock::State::welcome) return knock.take();
    if (state == Knock::State::refused) fail<Refused>("launch", knock.why());
    if (now() + kPause > deadline) break;
  }
  fail<LaunchError>("launch", "what answers at ", options_.host, ":", options_.port,
                    " is not rank 0 of this job (",
                    state == Knock::State::broken ? "it hung up" : "it does not answer", "); ",
                    options_.remedy);
}

RendezvousClient::~RendezvousClient() { (void)finish(false, {}); }

std::string RendezvousClient::name() const {
  return concat("rendezvous at ", options_.host, ':', options_.port);
}

bool RendezvousClient::wait_for(std::unique_lock<Mutex>& lock, Deadline deadline) {
  if (broken_ || std::chrono::steady_clock::now() >= deadline) return false;
  lock.unlock();
  expect_no_lock("a rank waits for the rendezvous");
  wait_readable(stream_.fd(), kSliceMs);
  lock.lock();
  pump();
  return true;
}

std::vector<std::string> RendezvousClient::all_gather(std::span<const int> members,
                                                      std::string_view key, std::string_view mine,
                                                      Deadline deadline) {
  const std::string full = exchange_key(key, members);
  PackedWriter request;
  request.text(full).put(static_cast<uint32_t>(members.size()));
  for (int member : members) request.put(static_cast<int32_t>(member));
  request.text(mine);
  std::unique_lock lock(mutex_);
  stream_.send(wire::kGather, request.bytes());
  bool asked = false;
  while (true) {
    if (const auto found = gathered_.find(full); found != gathered_.end()) {
      std::vector<std::string> parts = std::move(found->second);
      gathered_.erase(found);
      return parts;
    }
    if (!refused_.empty()) fail<LaunchError>("launch", refused_);
    if (const auto found = failed_.find(full); found != failed_.end()) {
      const auto [mismatch, why] = found->second;
      if (mismatch) fail<CollectiveMismatch>("launch", why);
      fail<PeerFailed>("launch", "exchange '", key, "': ", why);
    }
    if (interrupted) {
      lock.unlock();
      interrupted();
      lock.lock();
    }
    if (broken_)
      fail<PeerFailed>("launch", "exchange '", key, "': rank 0, which serves it, died or left");
    if (const auto found = missing_.find(full); found != missing_.end())
      fail<CollectiveTimeout>("launch", "exchange '", key, "': got no answer from ", found->second);
    if (wait_for(lock, asked ? deadline + kAnswer : deadline) || broken_) continue;
    if (asked)
      fail<CollectiveTimeout>("launch", "exchange '", key, "': rank 0, which serves it, is silent");
    asked = true;
    stream_.send(wire::kWhoIsMissing, PackedWriter().text(full).bytes());
  }
}

bool RendezvousClient::finish(bool clean, Deadline) noexcept {  // it waits for seconds at most
  try {
    {
      const std::lock_guard lock(mutex_);
      if (stream_.open()) {
        stream_.send(wire::kBye, {});
        stream_.flush();
        stream_.close();
      }
      broken_ = true;
    }
    if (server_) server_->set_linger(std::chrono::milliseconds(clean ? 5000 : 300));
    server_.reset();
  } catch (const std::exception&) {  // out of memory on the way out: the connection closes anyway
  }
  return true;
}

void RendezvousClient::notify(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (stream_.open()) stream_.send(wire::kNotify, text);
}

std::vector<RendezvousClient::Notice> RendezvousClient::take_notices() {
  const std::lock_guard lock(mutex_);
  pump();
  return std::exchange(notices_, {});
}

RendezvousClient::Lost RendezvousClient::lost() {
  const std::lock_guard lock(mutex_);
  pump();
  return lost_;
}

void RendezvousClient::publish(uint64_t sequence, std::string_view operation) {
  const std::lock_guard lock(mutex_);
  if (stream_.open())
    stream_.send(wire::kStatus, PackedWriter().put(sequence).text(operation).bytes());
}

std::vector<RemoteStatus> RendezvousClient::table(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!stream_.open()) return {};
  table_came_ = false;
  stream_.send(wire::kTable, {});
  while (!table_came_ && wait_for(lock, deadline)) continue;
  return table_came_ ? table_ : std::vector<RemoteStatus>{};
}

void RendezvousClient::pump() {
  if (broken_ || !stream_.open()) return;
  const bool here = stream_.read([this](Frame frame) { handle(std::move(frame)); });
  if (here && stream_.flush()) return;
  broken_ = true;
  if (lost_.rank < 0) lost_.rank = 0;
}

void RendezvousClient::handle(Frame frame) {
  PackedReader in(frame.payload);
  switch (frame.type) {
    case wire::kRefused: refused_ = frame.payload; return;
    case wire::kGathered: {
      const std::string key = in.text();
      std::vector<std::string> parts(in.get<uint32_t>() % (1u << 20));
      for (std::string& part : parts) part = in.text();
      gathered_[key] = std::move(parts);
      return;
    }
    case wire::kGatherFailed: {
      const std::string key = in.text();
      const bool mismatch = in.get<bool>();
      failed_[key] = {mismatch, in.text()};
      return;
    }
    case wire::kMissing: {
      const std::string key = in.text();
      missing_[key] = in.text();
      return;
    }
    case wire::kNotice: {
      const auto from = in.get<int32_t>();
      notices_.push_back({from, in.text()});
      return;
    }
    case wire::kLost:
      if (lost_.rank >= 0) return;
      lost_.rank = in.get<int32_t>();
      lost_.status.state = RemoteStatus::State::lost;
      lost_.status.sequence = in.get<uint64_t>();
      lost_.status.operation = in.text();
      return;
    case wire::kTableReply:
      table_.assign(static_cast<size_t>(options_.size), {});
      for (RemoteStatus& status : table_) {
        status.state = in.get<RemoteStatus::State>();
        status.silent_ms = in.get<int64_t>();
        status.sequence = in.get<uint64_t>();
        status.operation = in.text();
      }
      table_came_ = in.ok();
      return;
    default: return;
  }
}

}  // namespace tessera
