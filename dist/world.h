// SPDX-License-Identifier: Apache-2.0
// World: one rank's place among all ranks, and everything that it needs to compute there: Context,
// tape, planner, the group of all ranks. Ranks are threads of this process (`run_ranks`) or
// processes started by mpirun, srun or torchrun (launch/run.h).
#pragma once

#include "tessera/autograd/autograd.h"
#include "tessera/dist/process_group/process_group.h"

#include <chrono>
#include <memory>
#include <string>

namespace tessera {

class Planner;

/// Who moves pending collectives on besides the rank itself: nobody, a thread of its own, or that
/// thread only where cores exceed ranks x threads.
enum class ProgressThread : uint8_t { never, always, idle_cores };

struct WorldOptions {
  int threads = 0;  ///< kernel threads per rank; 0: cores / local ranks, at least 1
  bool deterministic = false, anomaly = false;  ///< as Context::Options
  /// Deadlines of collectives, before and after first_step_done().
  std::chrono::milliseconds init_timeout{300'000}, train_timeout{100'000};
  ProgressThread progress = ProgressThread::idle_cores;
  std::string flight_folder = {};  ///< of dumped flight records; empty: that of temporary files
};

class TESSERA_API World {
 public:
  /// On the rank's own thread; may be made inside another World of the rank, over a subgroup of it.
  /// `local_ranks` ranks share this host, this one being `local_rank`.
  World(Ref<ProcessGroup> group, const WorldOptions& options, int local_ranks, int local_rank);
  /// Ends as finish() does; while an exception unwinds, the other ranks get PeerFailed.
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
  /// From now on collectives have options.train_timeout (the first step compiles, allocates and
  /// tunes).
  void first_step_done();
  /// Completes what is under way and tells the others that this rank starts nothing more: who waits
  /// for it from now on gets PeerFailed. Called once; ~World does it otherwise.
  void finish();

 private:
  Ref<ProcessGroup> group_;
  WorldOptions options_;
  int local_ranks_, local_rank_, exceptions_;
  bool finished_ = false;
  std::unique_ptr<Planner> planner_;
  Context* outer_ = nullptr;      // of the World around this one
  int64_t outer_timeout_ms_ = 0;  // which it gets back
  Session session_;
};

}  // namespace tessera
