// SPDX-License-Identifier: Apache-2.0
// Waits and tests of queued works: they advance the work of the whole group, check deadlines, and
// throw an error once; the error of a dropped work is thrown when the world ends.
#include "tessera/dist/process_group/queued_group_impl.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace tessera {

QueuedWork::QueuedWork(Collective collective, Ref<QueuedGroup> owner)
    : c(std::move(collective)), group_(std::move(owner)) {}
QueuedWork::~QueuedWork() {
  if (c.use && !c.use->ended()) c.use->end(error);
}
bool QueuedWork::test() { return group_->test(*this); }
void QueuedWork::wait() { group_->wait(*this); }

void QueuedGroup::end(Ref<QueuedWork> w, std::exception_ptr error,
                      std::shared_ptr<const void> owner) {
  recorder().ended(w->c.record, error != nullptr);
  if (error) comm().lost(error, w->c.use);
  w->error = error;
  w->done = true;
  w->c.in = {};
  w->c.out = {};
  Ref<PendingUse> use = owner ? nullptr : w->c.use;
  if (owner) comm().later([owner = std::move(owner)] {});
  comm().end(std::move(w), std::move(use), std::move(error));
}

const PendingUse* QueuedGroup::in_the_way(const Collective& c) {
  const auto found =
      std::ranges::find_if(c.after, [](const Ref<PendingUse>& before) { return !before->ended(); });
  return found == c.after.end() ? nullptr : found->get();
}

// A process may have died between the claim and the text.
bool QueuedGroup::told(const Failure& failure) {
  constexpr auto kPatience = std::chrono::milliseconds(200);
  if (!failure.happened()) return false;
  if (failure.readable()) return true;
  const auto now = std::chrono::steady_clock::now();
  if (untold_since_ == std::chrono::steady_clock::time_point()) untold_since_ = now;
  return now - untold_since_ > kPatience;
}

bool QueuedGroup::has_failed(Failure& own) {
  const WorldBoard* board = comm().board();
  if (!own.happened() && board && told(board->failure)) {
    const Failure& world = board->failure;
    own.claim(FailureKind::peer, world.readable() ? world.rank : -1,
              world.readable() ? world.text.data() : "a rank died while it reported a failure");
    if (SegmentHeader* header = wakes_on()) wake(*header);
  }
  return told(own);
}

void QueuedGroup::tell(const QueuedWork& w) {
  if (w.c.use) w.c.use->told();
  comm().tell(w.error);
}

void QueuedGroup::check_deadline(QueuedWork& w) {
  const auto now = std::chrono::steady_clock::now();
  if (w.deadline == std::chrono::steady_clock::time_point()) w.deadline = now + w.c.timeout;
  else if (now > w.deadline) time_out(w);
}

// What `w` comes after ends before it, and is waited for first: it has its own deadline.
bool QueuedGroup::test(QueuedWork& w) {
  for (const Ref<PendingUse>& before : w.c.after) {
    if (!before->test()) return false;
  }
  comm().poll();
  bool done;
  {
    const auto guard = comm().lock();
    done = w.done;
  }
  if (!done) {
    check_deadline(w);
    return false;
  }
  if (w.error) tell(w);
  return true;
}

void QueuedGroup::wait(QueuedWork& w) {
  for (const Ref<PendingUse>& before : w.c.after) before->wait();
  Waiter waiter(comm(), wakes_on());
  bool idle = false;
  const auto try_once = [&] {
    const auto guard = comm().lock();
    idle = advance();
    return w.done;
  };
  const auto start = std::chrono::steady_clock::now();
  const FlightRecorder::Spent before = recorder().spent();
  std::optional<WaitWatch::Wait> watched;
  while (!try_once()) {
    if (!waiter.spinning()) {
      if (!watched) {
        check_deadline(w);
        watched.emplace(comm().waits, name_of(w.c.kind), w.c.sequence, w.deadline);
      }
      watched->check();
      comm().poll();
      {
        const auto guard = comm().lock();
        if (!w.done) publish_wait(w);
      }
      check_deadline(w);
    }
    waiter.pause(try_once);
  }
  recorder().waited(start, before);
  // After a timeout it stays: whoever times out next waits for the same rank in the end.
  if (!w.error) comm().waits_for(-1);
  if (idle) comm().poll();  // off the list of those with work
  if (w.error) tell(w);
}

int64_t offset_of(const Counts& counts, int part) {
  return std::accumulate(counts.begin(), counts.begin() + part, int64_t{0});
}

std::string message_text(CollectiveKind kind, int peer, DType dtype, int64_t count, int64_t tag) {
  Collective shown;
  shown.kind = kind;
  shown.root = peer;
  shown.dtype = dtype;
  shown.count = count;
  shown.tag = static_cast<int>(tag);
  return concat(shown);
}

}  // namespace tessera
