// SPDX-License-Identifier: Apache-2.0
// Work advances under one lock, by the rank's own calls or by its progress thread. Sleeping ranks
// wait on a futex, so that processes can wake each other.
#include "tessera/dist/process_group/comm_state_impl.h"

#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera {

CommState::CommState(int rank, std::shared_ptr<WorldBoard> board)
    : world_rank(rank), recorder(rank, {}), board_(std::move(board)) {}

CommState::~CommState() { detach(); }

void CommState::attach(Context& context, bool thread) {
  context_ = &context;
  if (!thread) {
    if (!items_.empty()) context.progress = this;
    return;
  }
  threaded_ = true;
  stop_ = false;
  thread_ = std::thread([this] { run_thread(); });
}

void CommState::detach() {
  if (threaded_) {
    {
      const std::lock_guard guard(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
    threaded_ = false;
  }
  if (context_) context_->progress = nullptr;
  context_ = nullptr;
}

void CommState::move_to(Context& context) {
  const auto guard = lock();
  if (context_) context_->progress = nullptr;
  context_ = &context;
  if (!items_.empty() && !threaded_) context.progress = this;
}

ProcessGroup& CommState::device_group(const Ref<ProcessGroup>& host,
                                      const std::shared_ptr<CommState>& self, Device device) {
  for (const DeviceGroup& g : device_groups_)
    if (g.host == host && g.device == device) return *g.group;
  device_groups_.push_back({host, device, make_device_group(host, self, device)});
  return *device_groups_.back().group;
}

void CommState::add(Ref<ProcessGroup> group, Pending* pending) {
  if (pending->listed_) return;
  pending->listed_ = true;
  items_.push_back({std::move(group), pending});
  if (threaded_) wake_.notify_one();
  else if (context_) context_->progress = this;
}

void CommState::poll() noexcept {
  std::vector<Item> ended;
  const auto guard = lock();
  recorder.dump_if_asked();
  if (watch) watch->look();
  ended = poll_locked();
}

std::vector<CommState::Item> CommState::poll_locked() noexcept {
  std::vector<Item> ended;
  if (polling_) return ended;  // a reduction's own calls
  polling_ = true;
  for (size_t i = 0; i < items_.size();) {
    if (items_[i].pending->advance()) {
      items_[i].pending->listed_ = false;
      ended.push_back(std::move(items_[i]));
      items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  if (items_.empty() && context_ && !threaded_) context_->progress = nullptr;
  polling_ = false;
  return ended;
}

void CommState::run_thread() {
  Context context(Context::Options{.threads = 1});
  std::unique_lock guard(mutex_);
  while (!stop_) {
    if (items_.empty()) {
      wake_.wait(guard);
      continue;
    }
    std::vector<Item> ended = poll_locked();
    guard.unlock();
    ended.clear();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    guard.lock();
  }
}

void CommState::drain() {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(timeout_ms.load(std::memory_order_relaxed));
  Waiter waiter(*this, nullptr);
  while (true) {
    {
      std::vector<Item> ended;
      const auto guard = lock();
      if (watch) watch->look();
      ended = poll_locked();
      if (items_.empty()) {
        if (lost_) std::rethrow_exception(std::exchange(lost_, nullptr));
        return;
      }
    }
    if (std::chrono::steady_clock::now() > end) break;
    waiter.pause([] { return false; });
  }
  constexpr std::string_view why = "it ended with work that its peers never joined";
  {
    std::vector<Item> left;
    const auto guard = lock();
    left.swap(items_);
    for (Item& item : left) {
      item.pending->listed_ = false;
      item.pending->abandon(why);
    }
  }
  fail<CollectiveTimeout>("world", "rank ", world_rank, ": ", why, " within ",
                          timeout_ms.load(std::memory_order_relaxed), " ms");
}

void CommState::fail_world(std::string_view why) {
  if (board_) {
    board_->failure.claim(FailureKind::peer, world_rank,
                          concat("rank ", world_rank, " failed: ", why));
  }
  std::vector<Item> items;
  {
    const auto guard = lock();
    if (watch) watch->failed(why);
    for (Item& item : items_) {
      item.pending->listed_ = false;
      item.pending->abandon(why);
    }
    items = std::exchange(items_, {});
    if (context_ && !threaded_) context_->progress = nullptr;
  }
}

void CommState::leave() {
  if (board_) board_->rank(world_rank).left.store(1, std::memory_order_seq_cst);
  if (watch) watch->left();
}

void CommState::started(const Collective& c) {
  if (!board_) return;
  board_->rank(world_rank)
      .operation.store(c.sequence << 8 | static_cast<uint64_t>(c.kind), std::memory_order_relaxed);
}

void CommState::waits_for(int rank) {
  if (board_) board_->rank(world_rank).waits_for.store(rank + 1, std::memory_order_relaxed);
}

int CommState::culprit(int waited_for) const {
  if (!board_) return waited_for;
  // In a cycle, any of its ranks may be named.
  for (int steps = 0; steps < 64; ++steps) {
    const int next = board_->rank(waited_for).waits_for.load(std::memory_order_relaxed) - 1;
    if (next < 0 || next == world_rank || next == waited_for) break;
    waited_for = next;
  }
  return waited_for;
}

void Waiter::sleep(uint32_t seen) {
  const timespec limit{0, 1'000'000};
  // Shared, not private: members may be processes.
  syscall(SYS_futex, &header_->event, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake(SegmentHeader& header) {
  if (header.sleepers.load(std::memory_order_seq_cst) == 0) return;
  header.event.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &header.event, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tessera
