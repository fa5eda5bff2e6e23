// SPDX-License-Identifier: Apache-2.0
// Base of the engines over shared memory and over messages: operations advance in any wait, end
// with a result or an error that is thrown once, and time out.
#pragma once

#include "tessera/dist/process_group/comm_state_impl.h"

#include <algorithm>
#include <chrono>
#include <deque>
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

 protected:
  using ProcessGroup::ProcessGroup;
  /// The futex of a waiting rank; null: it only pauses.
  [[nodiscard]] virtual SegmentHeader* wakes_on() const { return nullptr; }
  /// Publishes the rank that this rank waits for; called with the lock held.
  virtual void publish_wait(const QueuedWork& w) = 0;
  /// The deadline has passed: claims the failure, unless the work ended meanwhile. Without the
  /// lock, since asking who is late takes time.
  virtual void time_out(QueuedWork& w) = 0;
  // With the lock held:
  /// The work has its result. Its use ends when the lock has been given back; with an `owner`, of
  /// bytes that are still read, the use ends with that instead.
  void end(Ref<QueuedWork> w, std::exception_ptr error,
           std::shared_ptr<const void> owner = nullptr);
  /// Whether `own`, the group's failure, or the world's has happened, which `own` then takes over.
  /// Its text can be read then.
  [[nodiscard]] bool has_failed(Failure& own);
  /// The first of what an operation must not overtake that is under way, or null.
  [[nodiscard]] static const PendingUse* in_the_way(const Collective& c);
  [[nodiscard]] int world(int member) const { return ranks()[static_cast<size_t>(member)]; }
  /// Among posted recvs the one that the next message of this tag is for, if nothing is under way
  /// on its bytes.
  template <class W> static auto recv_of(std::deque<Ref<W>>& posted, int64_t tag) {
    const auto first =
        std::ranges::find_if(posted, [&](const Ref<W>& w) { return w->c.tag == tag; });
    return first != posted.end() && (*first)->c.may_start() ? first : posted.end();
  }
  /// The first that lacks nothing but its message; null: there is none.
  template <class W> static const W* first_to_come(std::deque<Ref<W>>& posted) {
    for (auto w = posted.begin(); w != posted.end(); ++w)
      if (recv_of(posted, (*w)->c.tag) == w) return w->get();
    return nullptr;
  }

 private:
  void check_deadline(QueuedWork& w);
  [[noreturn]] void tell(const QueuedWork& w);
  [[nodiscard]] bool told(const Failure& failure);

  std::chrono::steady_clock::time_point untold_since_{};  // a failure without a text, or epoch
};

/// Elements before `part`.
int64_t offset_of(const Counts& counts, int part);
/// A send or recv as errors show it.
std::string message_text(CollectiveKind kind, int peer, DType dtype, int64_t count, int64_t tag);

}  // namespace tessera
