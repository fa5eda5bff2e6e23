// SPDX-License-Identifier: Apache-2.0
// The rendezvous of worlds that MPI did not start: a server in rank 0's process and a client in
// every rank, including rank 0. It serves the bootstrap's exchanges, and later the side channel:
// connected ranks, notices from one rank to all others, the last sequence number of each. One
// thread serves all connections with poll; it ends with the last rank. Only who knows the job's
// secret gets in (door_impl.h). Processes that know it but belong to another world end both worlds
// with an error, as their ranks cannot be told apart; a world that is complete is not affected.
#pragma once

#include "tessera/dist/lock/mutex_impl.h"
#include "tessera/dist/rendezvous/door_impl.h"

#include <map>
#include <memory>

namespace tessera {

/// State of a rank, from its connection.
struct RemoteStatus {
  enum class State : uint8_t { never_joined, connected, left, lost };
  State state = State::never_joined;
  int64_t silent_ms = 0;  ///< since its last message
  uint64_t sequence = 0;  ///< of its last published operation
  std::string operation;
};

class RendezvousServer {
 public:
  /// Serves on its own thread until all ranks have left. `rank_zero` is connected to rank 0.
  RendezvousServer(Door door, int size, Descriptor rank_zero);
  /// Serves the rest: at most `linger` for ranks that have not left.
  ~RendezvousServer();
  void set_linger(std::chrono::milliseconds linger) { linger_ms_ = linger.count(); }

 private:
  struct Peer {
    FrameStream stream;
    RemoteStatus status;
    std::chrono::steady_clock::time_point heard;
  };
  struct Exchange {
    std::vector<int> members;
    std::map<int, std::string> parts;
  };
  void serve();
  bool serve_once();
  void join(Door::Guest guest);
  [[nodiscard]] std::string conflict_with(const Door::Guest& guest) const;
  void handle(int rank, const Frame& frame);
  void gather(int rank, PackedReader& in);
  void gone(int rank, RemoteStatus::State how);
  void fail_exchanges_of(int rank);
  void fail_exchange(const std::string& key, bool mismatch, const std::string& why);
  [[nodiscard]] bool crosses_another(const std::string& key);
  void to_all_but(int rank, uint8_t type, std::string_view payload);
  [[nodiscard]] std::string loss_of(int rank) const;
  [[nodiscard]] std::string table() const;

  Door door_;
  Descriptor wake_read_, wake_write_;
  std::vector<Peer> peers_;
  std::string conflict_;  // why there can be no world; empty: there can
  size_t concerned_ = 0;  // ranks of both worlds that must learn of it
  std::map<std::string, Exchange> exchanges_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> linger_ms_{1000};
  std::thread thread_;
};

class RendezvousClient final : public Bootstrap {
 public:
  struct Options {
    int rank = 0, size = 1;
    std::string host;       ///< MASTER_ADDR
    std::string secret;     ///< the job's, equal on all ranks; it is not sent
    int port = 0;           ///< of rank 0; there 0 means any
    std::string remedy;     ///< how to choose another address, for errors
    std::string bind = {};  ///< where rank 0 listens, if not at `host`
    /// Whether all ranks are known to run on rank 0's host: then it never listens elsewhere.
    bool one_host = false;
    std::chrono::milliseconds patience{5000};  ///< with connections that do not prove themselves
  };
  /// Rank 0 makes the server first. LaunchError: nobody there, another program or job there, a
  /// world of another size.
  RendezvousClient(const Options& options, Deadline deadline);
  ~RendezvousClient() override;

  [[nodiscard]] int rank() const override { return options_.rank; }
  [[nodiscard]] int size() const override { return options_.size; }
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] int port() const { return options_.port; }
  /// Numeric address of this rank's host on the way to rank 0; of rank 0, where it listens (empty:
  /// on all interfaces).
  [[nodiscard]] const std::string& address() const { return address_; }
  std::vector<std::string> all_gather(std::span<const int> members, std::string_view key,
                                      std::string_view mine, Deadline deadline) override;
  bool finish(bool clean, Deadline deadline) noexcept override;

  // The side channel's part; from any thread.
  /// To all other ranks, in order.
  void notify(std::string_view text);
  struct Notice {
    int from;
    std::string text;
  };
  /// Notices that arrived since the last call.
  std::vector<Notice> take_notices();
  /// A rank whose connection broke without a farewell, or -1, and what was known of it; rank 0 if
  /// the server's broke.
  struct Lost {
    int rank = -1;
    RemoteStatus status;
  };
  [[nodiscard]] Lost lost();
  void publish(uint64_t sequence, std::string_view operation);
  /// Of all ranks; empty if the server does not answer in time.
  std::vector<RemoteStatus> table(Deadline deadline);

 private:
  void serve(Deadline deadline);
  [[nodiscard]] FrameStream enter(Deadline deadline) const;
  // With the lock held.
  void pump();
  void handle(Frame frame);
  [[nodiscard]] bool wait_for(std::unique_lock<Mutex>& lock, Deadline deadline);

  Options options_;
  std::unique_ptr<RendezvousServer> server_;
  Mutex mutex_;
  FrameStream stream_;
  std::map<std::string, std::vector<std::string>> gathered_;
  std::map<std::string, std::pair<bool, std::string>> failed_;  // mismatch or not, why
  std::map<std::string, std::string> missing_;
  std::vector<Notice> notices_;
  std::vector<RemoteStatus> table_;
  bool table_came_ = false, broken_ = false;
  Lost lost_;
  std::string refused_, address_;
};

}  // namespace tessera
