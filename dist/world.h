// SPDX-License-Identifier: Apache-2.0
// World: one rank's place among all ranks, and everything that it needs to compute there: Context,
// tape, planner, the group of all ranks. Ranks are threads of this process (`run_ranks`) or
// processes started by mpirun, srun or torchrun (`World::from_launcher`).
#pragma once

#include "tessera/autograd/autograd.h"
#include "tessera/dist/process_group/process_group.h"

#include <chrono>
#include <functional>

namespace tessera {

struct WorldOptions {
  int threads = 0;                             ///< kernel threads per rank; 0: cores / local ranks
  bool deterministic = false, anomaly = false; ///< as Context::Options
  std::chrono::milliseconds init_timeout{300'000};   ///< deadline of collectives until set_timeout
  std::chrono::milliseconds train_timeout{100'000};  ///< afterwards, see World::first_step_done
};

class TESSERA_API World {
 public:
  World(Ref<ProcessGroup> group, const WorldOptions& options, int local_ranks);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// The calling rank's world; UsageError on a thread without one.
  static World& current();

  [[nodiscard]] int rank() const { return group_->rank(); }
  [[nodiscard]] int size() const { return group_->size(); }
  /// All ranks, in order.
  [[nodiscard]] ProcessGroup& group() { return *group_; }
  [[nodiscard]] Session& session() { return session_; }

 private:
  Ref<ProcessGroup> group_;
  Session session_;
};

/// Runs fn on `n` ranks, each a thread with its own World, and returns when all have. The error of
/// the rank that failed first is rethrown; the others end with PeerFailed.
TESSERA_API void run_ranks(int n, const std::function<void(World&)>& fn,
                           const WorldOptions& options = {});

}  // namespace tessera
