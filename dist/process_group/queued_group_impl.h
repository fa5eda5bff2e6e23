// SPDX-License-Identifier: Apache-2.0
// Base of the engines over shared memory and over messages: operations advance in any wait, end
// with a result or an error that is thrown once, and time out.
#pragma once

#include "tessera/dist/process_group/comm_state_impl.h"

#include <chrono>
#include <exception>

namespace tessera {

class QueuedGroup;

/// An operation in a group's queues. Fields are read and written with the rank's lock held.
class QueuedWork : public Work {
 public:
  QueuedWork(Collective collective, Ref<QueuedGroup> owner);
  ~QueuedWork() override;
  bool test() final;
  void wait() final;

  Collective c;
  bool done = false;
  std::exception_ptr error;
  std::chrono::steady_clock::time_point deadline{};  // set by the first wait or test

 private:
  Ref<QueuedGroup> group_;
};

class QueuedGroup : public ProcessGroup, public Pending {
 public:
  bool test(QueuedWork& w);
  void wait(QueuedWork& w);
  /// The error of a work that was dropped.
  void let_go(std::exception_ptr error);

 protected:
  using ProcessGroup::ProcessGroup;
  /// The futex of a waiting rank; null: it only pauses.
  [[nodiscard]] virtual SegmentHeader* wakes_on() const { return nullptr; }
  /// Publishes the rank that this rank waits for; called with the lock held.
  virtual void publish_wait(const QueuedWork& w) = 0;
  /// The deadline has passed: claims the failure, unless the work ended meanwhile.
  virtual void time_out(QueuedWork& w) = 0;
  void end(QueuedWork& w, std::exception_ptr error);
  [[nodiscard]] int world(int member) const { return ranks()[static_cast<size_t>(member)]; }

 private:
  [[nodiscard]] std::vector<Ref<PendingUse>> comes_after(const QueuedWork& w);
  void check_deadline(QueuedWork& w);
  [[noreturn]] void tell(const QueuedWork& w);
};

/// Elements before `part`.
int64_t offset_of(const Counts& counts, int part);
/// A send or recv as errors show it.
std::string message_text(CollectiveKind kind, int peer, DType dtype, int64_t count, int64_t tag);

}  // namespace tessera
