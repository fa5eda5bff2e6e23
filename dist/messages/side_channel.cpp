// SPDX-License-Identifier: Apache-2.0
// On one host, look() reads /proc and the shared board. Across hosts the board is this rank's copy:
// a thread publishes its entry periodically, and look() reads the other ranks' notices.
#include "tessera/dist/messages/side_channel_impl.h"

#include <algorithm>

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kBeat = std::chrono::milliseconds(500);
constexpr int64_t kSilentMs = 2000;

// Notices to all ranks.
enum class Notice : uint8_t { world_failed, group_failed, left };

}  // namespace

SideChannel::SideChannel(int rank, std::vector<RankPlace> places, std::shared_ptr<WorldBoard> board,
                         std::shared_ptr<RendezvousClient> remote,
                         std::shared_ptr<Messages> messages, uint64_t world)
    : rank_(rank),
      places_(std::move(places)),
      board_(std::move(board)),
      remote_(std::move(remote)),
      messages_(std::move(messages)),
      world_(world),
      sent_(places_.size()),
      received_(places_.size()) {
  if (remote_) heart_ = std::thread([this] { beat(); });
}

SideChannel::~SideChannel() {
  for (const auto* farewells : {&sent_, &received_}) {
    for (const auto& farewell : *farewells)
      if (farewell) messages_->abandon(farewell->handle, farewell);
  }
  if (!heart_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  heart_.join();
}

void SideChannel::beat() {
  for (bool stop = false; !stop;) {
    publish();
    std::unique_lock lock(mutex_);
    stop = wake_.wait_for(lock, kBeat, [&] { return stop_; });
  }
}

void SideChannel::publish() {
  const WorldBoard::Rank& own = board_->rank(rank_);
  remote_->publish(own.operation.load(std::memory_order_relaxed),
                   std::to_string(own.waits_for.load(std::memory_order_relaxed)));
}

void SideChannel::look() noexcept {
  const auto now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLook;
  try {
    if (remote_) look_at_remote();
    else look_at_processes();
  } catch (const std::exception&) {  // out of memory or descriptors: the deadline still holds
  }
}

void SideChannel::look_at_processes() {
  if (board_->failure.happened()) return;
  for (size_t r = 0; r < places_.size(); ++r) {
    const int rank = static_cast<int>(r);
    WorldBoard::Rank& theirs = board_->rank(rank);
    if (rank == rank_ || theirs.left.load(std::memory_order_seq_cst) != 0) continue;
    const RankPlace& place = places_[r];
    if (process_state(place.pid, place.started) != ProcessState::gone) continue;
    // It may have left and ended between the two looks.
    if (theirs.left.load(std::memory_order_seq_cst) != 0) continue;
    board_->failure.claim(FailureKind::peer, rank,
                          concat("rank ", rank, " died: its process ", place.pid, " on ",
                                 place.hostname, " was killed or exited; ", whereabouts(rank)));
    return;
  }
}

void SideChannel::look_at_remote() {
  // A waiting rank publishes for whom it waits before the next heartbeat, so that peers can blame
  // the right rank.
  const WorldBoard::Rank& own = board_->rank(rank_);
  const std::pair now(own.operation.load(std::memory_order_relaxed),
                      own.waits_for.load(std::memory_order_relaxed));
  if (now.second != 0 && now != published_) {
    published_ = now;
    publish();
  }
  for (const RendezvousClient::Notice& notice : remote_->take_notices()) {
    PackedReader in(notice.text);
    const auto world = in.get<uint64_t>();
    const auto what = in.get<Notice>();
    const auto id = in.get<uint64_t>();
    const auto kind = in.get<FailureKind>();
    const auto blamed = in.get<int32_t>();
    const std::string text = in.text();
    if (!in.ok() || world != world_ || notice.from >= static_cast<int>(places_.size())) continue;
    switch (what) {
      case Notice::world_failed: board_->failure.claim(kind, blamed, text); break;
      case Notice::group_failed:
        if (const auto failure = group_failure(id)) failure->claim(kind, blamed, text);
        break;
      case Notice::left: board_->rank(notice.from).left.store(1, std::memory_order_seq_cst); break;
    }
  }
  const auto [lost, status] = remote_->lost();
  if (lost < 0 || lost >= static_cast<int>(places_.size()) ||
      board_->rank(lost).left.load(std::memory_order_seq_cst) != 0)
    return;
  learn(lost, status);
  const RankPlace& place = places_[static_cast<size_t>(lost)];
  board_->failure.claim(FailureKind::peer, lost,
                        concat("rank ", lost, " died: the connection to its process ", place.pid,
                               " on ", place.hostname, " broke; ", whereabouts(lost)));
}

std::string SideChannel::whereabouts(int world_rank) const {
  const WorldBoard::Rank& theirs = board_->rank(world_rank);
  const uint64_t operation = theirs.operation.load(std::memory_order_relaxed);
  // A board of other hosts knows what their ranks have told, some time ago.
  if (operation == 0)
    return remote_ ? "it has told of no operation yet" : "it has started no operation";
  const int waits_for = theirs.waits_for.load(std::memory_order_relaxed) - 1;
  const auto kind = static_cast<CollectiveKind>(operation & 0xff);
  std::string text =
      concat(remote_ ? "the last operation that it told of is " : "its last operation is ", kind,
             " #", operation >> 8);
  if (waits_for >= 0) text += concat(", where it waits for rank ", waits_for);
  return text;
}

void SideChannel::learn(int world_rank, const RemoteStatus& status) {
  if (status.sequence == 0) return;
  WorldBoard::Rank& theirs = board_->rank(world_rank);
  theirs.operation.store(status.sequence, std::memory_order_relaxed);
  // A rank that is stopped or cut off may have told last of a wait that is over.
  const bool known = status.silent_ms <= kSilentMs;
  theirs.waits_for.store(known ? std::atoi(status.operation.c_str()) : 0,
                         std::memory_order_relaxed);
}

bool SideChannel::is_here(int world_rank) const {
  return places_[static_cast<size_t>(world_rank)].host == places_[static_cast<size_t>(rank_)].host;
}

bool SideChannel::is_stopped(int world_rank) const {
  const RankPlace& place = places_[static_cast<size_t>(world_rank)];
  return is_here(world_rank) && process_state(place.pid, place.started) == ProcessState::stopped;
}

std::string SideChannel::describe(int world_rank) {
  expect_no_lock("a rank asks what another one does");
  const RankPlace& place = places_[static_cast<size_t>(world_rank)];
  const bool here = is_here(world_rank);
  std::string state = "runs";
  if (here) {
    switch (process_state(place.pid, place.started)) {
      case ProcessState::running: break;
      case ProcessState::stopped: state = "is stopped (SIGSTOP or a debugger)"; break;
      case ProcessState::gone: state = "has ended"; break;
    }
  }
  if (remote_) {
    const auto table = remote_->table(Clock::now() + std::chrono::milliseconds(300));
    for (size_t r = 0; r < std::min(table.size(), places_.size()); ++r) {
      if (static_cast<int>(r) != rank_) learn(static_cast<int>(r), table[r]);
    }
    if (table.empty() && world_rank != 0)
      state += ", and rank 0, which keeps the records, is silent";
    const int64_t silent = table.empty() ? 0 : table[static_cast<size_t>(world_rank)].silent_ms;
    if (!here && silent > kSilentMs)
      state = concat("is silent for ", silent, " ms (stopped, dead or cut off)");
  }
  return concat("rank ", world_rank, " (process ", place.pid, " on ", place.hostname, ") ", state,
                "; ", whereabouts(world_rank));
}

void SideChannel::failed(std::string_view why) {
  if (!remote_) return;
  // As much as the others' boards hold.
  const std::string text =
      concat("rank ", rank_, " failed: ", why.substr(0, board_->failure.text.size()));
  remote_->notify(PackedWriter()
                      .put(world_)
                      .put(Notice::world_failed)
                      .put(uint64_t{0})
                      .put(FailureKind::peer)
                      .put(static_cast<int32_t>(rank_))
                      .text(text)
                      .bytes());
}

void SideChannel::left() {
  if (!remote_) return;
  remote_->notify(PackedWriter()
                      .put(world_)
                      .put(Notice::left)
                      .put(uint64_t{0})
                      .put(FailureKind::none)
                      .put(int32_t{0})
                      .text({})
                      .bytes());
  if (!messages_) return;
  for (size_t r = 0; r < places_.size(); ++r) {
    if (static_cast<int>(r) == rank_) continue;
    sent_[r] = std::make_shared<Farewell>(Farewell{.world = world_});
    try {
      sent_[r]->handle = messages_->send(static_cast<int>(r), Messages::kFarewellTag,
                                         &sent_[r]->world, sizeof(uint64_t));
    } catch (const PeerFailed&) {  // nobody waits there
    }
  }
}

bool SideChannel::farewells_done() {
  for (size_t r = 0; r < places_.size(); ++r) {
    if (received_[r] && !has_left(static_cast<int>(r))) return false;
    try {
      if (sent_[r] && !messages_->done(sent_[r]->handle)) return false;
    } catch (const PeerFailed&) {  // it went with its connection
    }
  }
  return true;
}

bool SideChannel::has_left(int world_rank) {
  if (board_->rank(world_rank).left.load(std::memory_order_seq_cst) == 0) return false;
  if (!messages_) return true;
  std::shared_ptr<Farewell>& farewell = received_[static_cast<size_t>(world_rank)];
  if (!farewell) farewell = std::make_shared<Farewell>();
  try {
    while (!farewell->here) {
      if (!farewell->handle) {
        farewell->handle = messages_->receive(world_rank, Messages::kFarewellTag, &farewell->world,
                                              sizeof(uint64_t));
      }
      if (!messages_->done(farewell->handle)) return false;
      farewell->here = farewell->world == world_;  // or of an earlier world
    }
  } catch (const PeerFailed&) {  // the connection broke: nothing more comes
    farewell->here = true;
  }
  return true;
}

std::shared_ptr<Failure> SideChannel::group_failure(uint64_t id) {
  // Kept for good: the report may come before this rank has made the group.
  std::shared_ptr<Failure>& known = groups_[id];
  if (!known) known = std::make_shared<Failure>();
  return known;
}

void SideChannel::report(uint64_t id, const Failure& failure) {
  remote_->notify(PackedWriter()
                      .put(world_)
                      .put(Notice::group_failed)
                      .put(id)
                      .put(failure.kind)
                      .put(failure.rank)
                      .text(failure.text.data())
                      .bytes());
}

}  // namespace tessera
