// SPDX-License-Identifier: Apache-2.0
// Waits and tests of queued works: they advance the work of the whole group, check deadlines, and
// throw an error once; the error of a dropped work is thrown when the world ends.
#include "tessera/dist/process_group/queued_group_impl.h"

#include <numeric>

namespace tessera {

QueuedWork::QueuedWork(Collective collective, Ref<QueuedGroup> owner)
    : c(std::move(collective)), group_(std::move(owner)) {}
// Dropped without checking its result.
QueuedWork::~QueuedWork() {
  if (error) group_->let_go(error);
  if (c.use && !c.use->ended()) c.use->end(error);
}
bool QueuedWork::test() { return group_->test(*this); }
void QueuedWork::wait() { group_->wait(*this); }

void QueuedGroup::let_go(std::exception_ptr error) {
  const auto guard = comm().lock();
  comm().lost(std::move(error));
}

void QueuedGroup::end(QueuedWork& w, std::exception_ptr error) {
  recorder().ended(w.c.record, error != nullptr);
  if (error && w.use_count() == 1) comm().lost(error);  // only the queue holds it
  else w.error = error;
  w.done = true;
  w.c.in = {};
  w.c.out = {};
  if (w.c.use) w.c.use->end(std::move(error));
}

// What `w` comes after ends before it, and is waited for first: it has its own deadline.
std::vector<Ref<PendingUse>> QueuedGroup::comes_after(const QueuedWork& w) {
  const auto guard = comm().lock();
  return w.c.after;
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

bool QueuedGroup::test(QueuedWork& w) {
  for (const Ref<PendingUse>& before : comes_after(w)) {
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
  for (const Ref<PendingUse>& before : comes_after(w)) before->wait();
  Waiter waiter(comm(), wakes_on());
  bool idle = false;
  const auto try_once = [&] {
    const auto guard = comm().lock();
    idle = advance();
    return w.done;
  };
  const auto start = std::chrono::steady_clock::now();
  const FlightRecorder::Spent before = recorder().spent();
  while (!try_once()) {
    if (!waiter.spinning()) {
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
