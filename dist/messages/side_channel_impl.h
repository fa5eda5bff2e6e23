// SPDX-License-Identifier: Apache-2.0
// SideChannel: state of the other ranks while this rank waits, so that an error names the rank that
// caused it, not just the peer that was waited for. On one host it checks process ids and the
// shared board; across hosts it uses the rendezvous' connections, which break with their process
// and carry a heartbeat. Checks are cheap and limited to 50 per second. A rank that leaves also
// says so by a message to each other one, its last, so that nothing of it is still on its way.
// Called with the rank's lock, but for what says otherwise.
#pragma once

#include "tessera/dist/messages/messages_impl.h"
#include "tessera/dist/process_group/comm_state_impl.h"
#include "tessera/dist/rendezvous/place_impl.h"
#include "tessera/dist/rendezvous/rendezvous_impl.h"

#include <map>

namespace tessera {

class SideChannel final : public Watch {
 public:
  /// `board` is shared by all ranks of the world, or, with `remote`, this rank's own copy, which
  /// this object keeps up to date. `messages` carries farewells; null if all ranks share memory.
  /// `world` tells this world's notices from those of earlier ones.
  SideChannel(int rank, std::vector<RankPlace> places, std::shared_ptr<WorldBoard> board,
              std::shared_ptr<RendezvousClient> remote, std::shared_ptr<Messages> messages,
              uint64_t world);
  ~SideChannel() override;

  /// Claims the board's failure for a rank that died.
  void look() noexcept override;
  /// "rank 2 (process 4711 on node1) is stopped (SIGSTOP)", and its last known operation. Without
  /// the lock: it asks rank 0.
  [[nodiscard]] std::string describe(int world_rank) override;
  [[nodiscard]] bool is_stopped(int world_rank) const override;
  void failed(std::string_view why) override;
  void left() override;
  /// Whether a rank has left and all its messages to this rank are here.
  [[nodiscard]] bool has_left(int world_rank);
  /// Whether the farewells of this rank are on their way, and those that it waits for are here.
  /// Without the lock, at the end of a world.
  [[nodiscard]] bool farewells_done();

  /// The failure of a group without shared memory, by its id; filled when any member reports it.
  std::shared_ptr<Failure> group_failure(uint64_t id);
  /// Notifies all ranks of the failure that this rank has claimed.
  void report(uint64_t id, const Failure& failure);

 private:
  void look_at_processes();
  void look_at_remote();
  /// The number of the world that a rank leaves.
  struct Farewell {
    uint64_t world = 0;
    Messages::Handle handle = nullptr;
    bool here = false;
  };
  [[nodiscard]] bool is_here(int world_rank) const;
  void beat();
  void publish();
  void learn(int world_rank, const RemoteStatus& status);
  [[nodiscard]] std::string whereabouts(int world_rank) const;

  int rank_;
  std::vector<RankPlace> places_;
  std::shared_ptr<WorldBoard> board_;
  std::shared_ptr<RendezvousClient> remote_;
  std::shared_ptr<Messages> messages_;
  uint64_t world_;
  std::vector<std::shared_ptr<Farewell>> sent_, received_;  // by world rank
  std::chrono::steady_clock::time_point next_look_{};
  std::pair<uint64_t, int32_t> published_{};  // operation and waits_for
  std::map<uint64_t, std::shared_ptr<Failure>> groups_;
  Mutex mutex_;  // of the heartbeat
  std::condition_variable_any wake_;
  bool stop_ = false;
  std::thread heart_;
};

}  // namespace tessera
