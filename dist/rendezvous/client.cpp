// SPDX-License-Identifier: Apache-2.0
// The client has no thread: what the server sends is read in the calls that wait, by whichever
// thread of the rank calls.
#include "tessera/core/error.h"
#include "tessera/dist/rendezvous/rendezvous_impl.h"
#include "tessera/dist/rendezvous/wire_impl.h"

namespace tessera {
namespace {

constexpr int kSliceMs = 20;
// How long a server that is alive may take to answer a question.
constexpr auto kAnswer = std::chrono::milliseconds(500);

std::string exchange_key(std::string_view key, std::span<const int> members) {
  std::string full(key);
  for (int member : members) full += concat('/', member);
  return full;
}

}  // namespace

RendezvousClient::RendezvousClient(const Options& options, Deadline deadline) : options_(options) {
  if (options_.rank == 0) {
    server_ = std::make_unique<RendezvousServer>(options_.port, options_.size, options_.job);
    options_.port = server_->port();
  }
  const std::string host = options_.rank == 0 ? "localhost" : options_.host;
  stream_ = FrameStream(connect_to(host, options_.port, deadline, options_.remedy));
  PackedWriter hello;
  hello.put(wire::kMagic).put(wire::kVersion).text(options_.job);
  hello.put(static_cast<int32_t>(options_.rank)).put(static_cast<int32_t>(options_.size));
  std::unique_lock lock(mutex_);
  stream_.send(wire::kHello, hello.bytes());
  while (!welcome_ && refused_.empty() && !broken_ && wait_for(lock, deadline)) continue;
  if (!refused_.empty()) fail<LaunchError>("launch", refused_);
  if (!welcome_) {
    fail<LaunchError>("launch", "what answers at ", host, ":", options_.port,
                      " is not rank 0 of this job (", broken_ ? "it hung up" : "it says nothing",
                      "); ", options_.remedy);
  }
}

RendezvousClient::~RendezvousClient() { finish(false); }

std::string RendezvousClient::name() const {
  return concat("rendezvous at ", options_.host, ':', options_.port);
}

bool RendezvousClient::wait_for(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  if (broken_ || std::chrono::steady_clock::now() >= deadline) return false;
  lock.unlock();
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
      fail<CollectiveTimeout>("launch", "exchange '", key, "': waited in vain for ", found->second);
    if (wait_for(lock, asked ? deadline + kAnswer : deadline) || broken_) continue;
    if (asked)
      fail<CollectiveTimeout>("launch", "exchange '", key, "': rank 0, which serves it, is silent");
    asked = true;
    stream_.send(wire::kWhoIsMissing, PackedWriter().text(full).bytes());
  }
}

void RendezvousClient::finish(bool clean) noexcept {
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

int RendezvousClient::lost_rank() {
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
  const bool here = stream_.fill() && stream_.flush();
  while (auto frame = stream_.next()) handle(std::move(*frame));
  if (here && !stream_.garbled()) return;
  broken_ = true;
  if (lost_ < 0) lost_ = 0;
}

void RendezvousClient::handle(Frame frame) {
  PackedReader in(frame.payload);
  switch (frame.type) {
    case wire::kWelcome: welcome_ = true; return;
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
      if (const auto rank = in.get<int32_t>(); lost_ < 0) lost_ = rank;
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
