// SPDX-License-Identifier: Apache-2.0
// World: a rank, with everything that it needs to compute: Context, tape, planner, the group of all
// ranks. Ranks are threads of this process (`run_ranks`) or
// processes started by mpirun, srun or torchrun (launch/run.h).
#pragma once

#include "tessera/autograd/autograd.h"
#include "tessera/dist/process_group/process_group.h"

#include <chrono>
#include <memory>
#include <string>

namespace tessera {

class Planner;

/// Whether a progress thread advances pending collectives besides the rank itself: never, always,
/// or only if there are more cores than ranks x threads.
enum class ProgressThread : uint8_t { never, always, idle_cores };

struct WorldOptions {
  int threads = 0;  ///< kernel threads per rank; 0: cores / local ranks, at least 1
  bool deterministic = false, anomaly = false;  ///< as Context::Options
  /// Deadlines of collectives, before and after first_step_done().
  std::chrono::milliseconds init_timeout{300'000}, train_timeout{100'000};
  ProgressThread progress = ProgressThread::idle_cores;
  std::string flight_folder = {};  ///< folder of flight record dumps; empty: the temporary folder
  /// Whether the process exits with 1 if a wait outlives its deadline by 5 s, which is a fault of
  /// Tessera; its stacks go to stderr in any case, and the wait throws CollectiveTimeout if it can.
  bool exit_if_stuck = false;
};

class TESSERA_API World {
 public:
  /// Called on the rank's own thread, possibly inside another World of the rank, over a subgroup of
  /// it. `local_ranks` ranks share this host; this one is `local_rank`.
  World(Ref<ProcessGroup> group, const WorldOptions& options, int local_ranks, int local_rank);
  /// Ends like finish(); while an exception unwinds, the other ranks get PeerFailed.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// The calling rank's world; UsageError on a thread without one.
  static World& current();

  [[nodiscard]] int rank() const { return group_->rank(); }
  [[nodiscard]] int size() const { return group_->size(); }
  [[nodiscard]] int local_rank() const { return local_rank_; }
  [[nodiscard]] int local_ranks() const { return local_ranks_; }
  /// All ranks, in order.
  [[nodiscard]] ProcessGroup& group() { return *group_; }
  [[nodiscard]] Session& session() { return session_; }
  /// Runs ops on distributed tensors for this rank.
  [[nodiscard]] Planner& planner() { return *planner_; }
  /// Sets the deadline of collectives to options.train_timeout (the first step takes longer: it
  /// compiles, allocates and tunes).
  void first_step_done();
  /// Completes pending operations and tells the other ranks that this rank starts no more: a rank
  /// that waits for it later gets PeerFailed. Called once; otherwise ~World does it.
  void finish();

 private:
  Ref<ProcessGroup> group_;
  WorldOptions options_;
  int local_ranks_, local_rank_, exceptions_;
  bool finished_ = false;
  std::unique_ptr<Planner> planner_;
  Context* outer_ = nullptr;      // Context of the enclosing World
  int64_t outer_timeout_ms_ = 0;  // deadline to restore there
  Session session_;
};

}  // namespace tessera
