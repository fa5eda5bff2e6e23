// SPDX-License-Identifier: Apache-2.0
// One process of a launched job: the bootstrap, which exists as long as the process, and the worlds
// that it joins one after another (one in programs, one per test in test programs). Worlds share
// only the bootstrap, so a failed world does not affect the next one.
#pragma once

#include "tessera/dist/launch/run.h"
#include "tessera/dist/messages/group_impl.h"
#include "tessera/dist/mpi/mpi_messages_impl.h"

namespace tessera {

class TESSERA_API LaunchedProcess {
 public:
  /// Connects to the other processes; LaunchError as run_launched.
  LaunchedProcess(const Launch& launch, std::chrono::milliseconds timeout);
  /// Like finish() with the timeout of the start, except that errors are lost.
  ~LaunchedProcess();
  LaunchedProcess(const LaunchedProcess&) = delete;
  LaunchedProcess& operator=(const LaunchedProcess&) = delete;

  [[nodiscard]] int rank() const { return launch_.rank; }
  [[nodiscard]] int size() const { return launch_.size; }
  /// `4 ranks by mpirun (Open MPI 4.1.4), 1 host, shared memory`
  [[nodiscard]] const std::string& text() const { return text_; }
  /// Runs fn as rank of a world of the first n processes; called by all, returns at once on the
  /// others. `ready` sees the World before fn.
  void run(int n, const std::function<void(World&)>& fn, const WorldOptions& options,
           const std::function<void(World&)>& ready = {});
  /// All-gathers a text of each process; a barrier.
  std::vector<std::string> exchange(std::string_view mine, std::chrono::milliseconds timeout);
  /// Ends the connection, once. CollectiveTimeout if a rank that has ended its world does not come
  /// to the end of MPI.
  void finish(std::chrono::milliseconds timeout);

 private:
  struct Member;  // this process in one world
  [[nodiscard]] std::string connect(Deadline deadline, int wanted);
  void warn_of_open_port() const;
  void join_side_channel(Deadline deadline);
  [[nodiscard]] Member make_shared(int n, Deadline deadline);
  [[nodiscard]] Member make_messages(int n, Deadline deadline);
  void wait_for_all(Member& member, std::chrono::milliseconds timeout);
  /// `rank 1 (stopped), rank 3 (of another host)`
  [[nodiscard]] std::string states_of(std::span<const int> ranks) const;

  Launch launch_;
  std::chrono::milliseconds timeout_;  // of the start
  std::vector<int> all_;
  std::vector<RankPlace> places_;
  std::shared_ptr<MpiMessages> mpi_;  // null if MPI did not start the ranks
  std::shared_ptr<RendezvousClient> remote_;
  std::shared_ptr<Bootstrap> bootstrap_;
  std::shared_ptr<MessageWorld> messages_;  // null if all share memory
  std::string text_;
  uint64_t worlds_ = 0;
  bool clean_ = false, finished_ = false;  // clean: all others are known to end well too
};

}  // namespace tessera
