// SPDX-License-Identifier: Apache-2.0
// CommState: state shared by the groups of one rank: the deadline, the flight record, the list of
// pending work, how to wait, and the world's board. Work of all groups advances in every wait, test
// and op call of the rank, and on a progress thread only if cores are idle, under one lock. Whoever
// holds it destroys, ends and calls nothing that could wait or come back for the lock: such things
// are collected, and come to pass when the lock has been given back.
#pragma once

#include "tessera/core/context.h"
#include "tessera/core/hooks.h"
#include "tessera/dist/process_group/board_impl.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/dist/process_group/wait_watch_impl.h"

#include <condition_variable>
#include <functional>
#include <thread>

namespace tessera {

/// State of a rank's Context: the group of its world, for current_group().
struct CurrentGroup {
  ProcessGroup* group = nullptr;
};

/// A group with pending work.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Advances without blocking; true when nothing is pending. Errors are stored in the Work.
  virtual bool advance() = 0;
  /// The rank gives up: ends all work with `why`; afterwards no peer uses the rank's tensors.
  virtual void abandon(std::string_view why) = 0;

 private:
  friend class CommState;
  bool listed_ = false;  // in the list of groups with pending work
};

/// Detects failures that shared memory does not show: dead processes, other hosts. See SideChannel.
class Watch {
 public:
  virtual ~Watch() = default;
  /// Claims the board's failure for a dead rank. Called often, so it limits its rate.
  virtual void look() noexcept = 0;
  /// What a rank is doing, for errors that name it.
  [[nodiscard]] virtual std::string describe(int world_rank) = 0;
  /// Whether a rank of this host is stopped: what it told of its waits may be over.
  [[nodiscard]] virtual bool is_stopped(int world_rank) const = 0;
  /// This rank failed or starts no more work: for ranks that do not share its board.
  virtual void failed(std::string_view why) = 0;
  virtual void left() = 0;
};

class CommState final : public Progress {
 public:
  /// `board` outlives this (its owner is kept); null without shared memory.
  CommState(int world_rank, std::shared_ptr<WorldBoard> board);
  ~CommState() override;

  const int world_rank;
  FlightRecorder recorder;
  std::atomic<int64_t> timeout_ms{300'000};
  bool may_spin = false;  // there are at least as many cores as threads of local ranks

  [[nodiscard]] WorldBoard* board() const { return board_.get(); }

  /// The rank's Context: its op calls poll. With `thread`, a progress thread polls instead.
  void attach(Context& context, bool thread);
  void detach();
  /// Lets another Context of the same rank poll (a World inside a World).
  void move_to(Context& context);
  [[nodiscard]] Context* attached() const { return context_; }

  /// Holds the rank's lock. What has been collected meanwhile comes to pass behind its end.
  class Guard {
   public:
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    friend class CommState;
    explicit Guard(CommState& comm) : comm_(comm) {}
    CommState& comm_;
  };
  /// CollectiveTimeout: another thread of the rank kept the lock far beyond the deadline.
  [[nodiscard]] Guard lock();

  // With the lock held, for when it has been given back:
  /// Calls `f`, or only drops what it holds. Before works end.
  void later(std::function<void()> f) { later_.calls.push_back(std::move(f)); }
  /// The work has its result: its use ends, and the work is dropped.
  void end(Ref<Work> work, Ref<PendingUse> use, std::exception_ptr error) {
    later_.works.push_back({std::move(work), std::move(use), std::move(error)});
  }
  /// Writes the flight record.
  void dump(std::string_view reason);

  /// Adds a group to the list of groups with pending work; called with the lock held.
  void add(Ref<ProcessGroup> group, Pending* pending);
  void poll() noexcept override;
  /// Completes pending work within the deadline. Throws the first error of work whose handle was
  /// dropped before it ended, or CollectiveTimeout for the rest.
  void drain();
  /// Stores the error of a work, which drain() throws unless the rank has received an error of any
  /// work; called with the lock held. `use` knows whether this one was thrown to who needed bytes.
  void lost(std::exception_ptr error, Ref<PendingUse> use) {
    if (!told_ && !lost_.error) lost_ = {std::move(error), std::move(use)};
  }
  /// Throws the error of a work to its caller.
  [[noreturn]] void tell(const std::exception_ptr& error);
  /// Reports to the world that this rank failed (the first failure counts) and drops pending work.
  void fail_world(std::string_view why);
  void leave();

  /// Makes the group of the ranks of `host` that moves tensors on `device`; the World sets it.
  std::function<Ref<ProcessGroup>(const Ref<ProcessGroup>& host, std::shared_ptr<CommState> comm,
                                  Device device)>
      make_device_group;
  /// The group of the ranks of `host` for tensors on `device`, made by the first operation on one:
  /// collective then. `self` is this.
  ProcessGroup& device_group(const Ref<ProcessGroup>& host, const std::shared_ptr<CommState>& self,
                             Device device);
  /// At the end of the World, since they keep their host groups, and these keep this.
  void drop_device_groups() { device_groups_.clear(); }

  std::shared_ptr<Watch> watch;  // set before the first operation; null among threads
  WaitWatch waits;
  /// Sets on the board the last operation of this rank, and the rank that it waits for (-1: none).
  void started(const Collective& c);
  void waits_for(int rank);
  /// The rank that delays `waited_for`: the end of the chain of waiting ranks.
  [[nodiscard]] int culprit(int waited_for) const;
  /// "rank 2 (process 17 on n1) runs; ..." or "".
  [[nodiscard]] std::string describe(int rank) const { return watch ? watch->describe(rank) : ""; }

 private:
  struct Item {
    Ref<ProcessGroup> group;
    Pending* pending;
  };
  struct Lost {
    std::exception_ptr error;
    Ref<PendingUse> use;
  };
  struct Ending {
    Ref<Work> work;
    Ref<PendingUse> use;
    std::exception_ptr error;
  };
  struct Later {
    std::vector<std::function<void()>> calls;
    std::vector<Ending> works;
    void run() noexcept;
  };
  void wait_for_lock();
  void poll_locked() noexcept;
  void give_up(std::string_view why);
  void run_thread();

  std::shared_ptr<WorldBoard> board_;
  Context* context_ = nullptr;
  std::vector<Item> items_;
  struct DeviceGroup {
    Ref<ProcessGroup> host;
    Device device;
    Ref<ProcessGroup> group;
  };
  std::vector<DeviceGroup> device_groups_;
  Lost lost_;
  bool told_ = false;
  bool threaded_ = false, stop_ = false;
  Mutex mutex_;
  Later later_;
  std::condition_variable_any wake_;
  std::thread thread_;
};

/// "all_reduce".
[[nodiscard]] const char* name_of(CollectiveKind kind);

/// Waiting of a rank: spins a few microseconds if there are enough cores, yields, then sleeps on
/// `header` (woken by peers, or after a millisecond to check everything else).
class Waiter {
 public:
  Waiter(const CommState& comm, SegmentHeader* header) : comm_(comm), header_(header) {}
  /// One pause; `ready` is asked again before sleeping.
  template <class Ready> void pause(Ready&& ready) {
    expect_no_lock("a rank waits for others");
    if (steps_ < (comm_.may_spin ? kSpins : 0)) {
      ++steps_;
      relax();
    } else if (++steps_ < (comm_.may_spin ? kSpins : 0) + kYields) {
      std::this_thread::yield();
    } else if (header_) {
      const uint32_t seen = prepare();
      if (!ready()) sleep(seen);
      header_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  [[nodiscard]] bool spinning() const { return comm_.may_spin && steps_ < kSpins; }

 private:
  static constexpr int kSpins = 50, kYields = 100;
  static void relax() {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
  }
  uint32_t prepare() {
    header_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    return header_->event.load(std::memory_order_seq_cst);
  }
  void sleep(uint32_t seen);

  const CommState& comm_;
  SegmentHeader* header_;
  int steps_ = 0;
};

/// Wakes ranks that sleep on the group, after a change that they wait for.
void wake(SegmentHeader& header);

}  // namespace tessera
