// SPDX-License-Identifier: Apache-2.0
// Work advances under one lock, by the rank's own calls or by its progress thread. Sleeping ranks
// wait on a futex, so that processes can wake each other.
#include "tessera/core/error.h"
#include "tessera/dist/process_group/comm_state_impl.h"

#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <optional>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera {

CommState::CommState(int rank, std::shared_ptr<WorldBoard> board)
    : world_rank(rank), recorder(rank, {}), waits(rank), board_(std::move(board)) {}

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
  waits.stop();
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

CommState::Guard CommState::lock() {
  expect_no_lock("a thread takes the lock of its rank");
  if (!mutex_.try_lock()) wait_for_lock();
  return Guard(*this);
}

void CommState::wait_for_lock() {
  const auto timeout = std::chrono::milliseconds(timeout_ms.load(std::memory_order_relaxed));
  const WaitWatch::Wait wait(waits, "a call that needs the rank's lock", 0,
                             std::chrono::steady_clock::now() + timeout);
  for (int turns = 0; !mutex_.try_lock(); ++turns) {
    wait.check();
    if (turns < 100) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

CommState::Guard::~Guard() {
  Later later = std::exchange(comm_.later_, {});
  comm_.mutex_.unlock();
  later.run();
}

// A use ends before its work is dropped: until then it may ask for the work.
void CommState::Later::run() noexcept {
  if (calls.empty() && works.empty()) return;
  expect_no_lock("what has ended is dropped");
  for (const auto& call : calls) call();
  calls.clear();
  for (Ending& ending : works) {
    if (ending.use && !ending.use->ended()) ending.use->end(std::move(ending.error));
  }
  works.clear();
}

void CommState::dump(std::string_view reason) {
  later([this, text = recorder.json(reason)] { (void)recorder.write(text); });
}

void CommState::tell(const std::exception_ptr& error) {
  Lost known;
  {
    const auto guard = lock();
    told_ = true;
    known = std::exchange(lost_, {});
  }
  std::rethrow_exception(error);
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

// Whoever holds the lock advances the work.
void CommState::poll() noexcept {
  if (!mutex_.try_lock()) return;
  const Guard guard(*this);
  if (recorder.asked()) dump("SIGUSR2");
  if (watch) watch->look();
  poll_locked();
}

void CommState::poll_locked() noexcept {
  std::vector<Item> ended;  // these may be the last owners of their groups
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
  if (!ended.empty()) later([groups = std::move(ended)] {});
}

void CommState::run_thread() {
  Context context(Context::Options{.threads = 1});
  while (true) {
    {
      std::unique_lock waiting(mutex_);
      wake_.wait(waiting, [&] { return stop_ || !items_.empty(); });
      if (stop_) return;
    }
    try {
      const auto guard = lock();
      poll_locked();
    } catch (const CollectiveTimeout&) {  // the rank's own thread keeps the lock: its fault to tell
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void CommState::drain() {
  using Clock = std::chrono::steady_clock;
  const auto end =
      Clock::now() + std::chrono::milliseconds(timeout_ms.load(std::memory_order_relaxed));
  const WaitWatch::Wait wait(waits, "the end of a world", 0, end);
  Waiter waiter(*this, nullptr);
  while (true) {
    std::optional<Lost> lost;
    {
      const auto guard = lock();
      if (watch) watch->look();
      poll_locked();
      if (items_.empty()) lost = std::exchange(lost_, {});
    }
    if (lost) {
      const bool thrown = lost->use && lost->use->ended() && !lost->use->failed();
      if (lost->error && !thrown) std::rethrow_exception(lost->error);
      return;
    }
    if (Clock::now() > end) break;
    wait.check();
    waiter.pause([] { return false; });
  }
  constexpr std::string_view why = "it ended with work that its peers never joined";
  {
    const auto guard = lock();
    give_up(why);
  }
  fail<CollectiveTimeout>("world", "rank ", world_rank, ": ", why, " within ",
                          timeout_ms.load(std::memory_order_relaxed), " ms");
}

void CommState::give_up(std::string_view why) {
  for (Item& item : items_) {
    item.pending->listed_ = false;
    item.pending->abandon(why);
  }
  later([groups = std::exchange(items_, {})] {});
  if (context_ && !threaded_) context_->progress = nullptr;
}

void CommState::fail_world(std::string_view why) {
  if (board_) {
    board_->failure.claim(FailureKind::peer, world_rank,
                          concat("rank ", world_rank, " failed: ", why));
  }
  try {
    const auto guard = lock();
    if (watch) watch->failed(why);
    give_up(why);
  } catch (const CollectiveTimeout&) {  // a thread that never gives the lock back: only the board
  }                                     // tells the others
}

void CommState::leave() {
  if (board_) board_->rank(world_rank).left.store(1, std::memory_order_seq_cst);
  if (!watch) return;
  const auto guard = lock();
  watch->left();
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
    if (watch && watch->is_stopped(waited_for)) break;
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
