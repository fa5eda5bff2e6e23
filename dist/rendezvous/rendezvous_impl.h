// SPDX-License-Identifier: Apache-2.0
// The rendezvous of worlds that MPI did not start: a server in rank 0's process and a client in
// every rank, rank 0 too. It serves the bootstrap's exchanges, and later the side channel: who is
// connected, notices from one rank to all others, the last sequence number of each. One thread
// serves all connections with poll; it ends with the last rank.
#pragma once

#include "tessera/dist/rendezvous/socket_impl.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace tessera {

/// What the side channel knows of a rank from its connection.
struct RemoteStatus {
  enum class State : uint8_t { never_joined, connected, left, lost };
  State state = State::never_joined;
  int64_t silent_ms = 0;  ///< since its last message
  uint64_t sequence = 0;  ///< of its last published operation
  std::string operation;
};

class RendezvousServer {
 public:
  /// Serves on a thread of its own until all have left. LaunchError where the port is taken.
  RendezvousServer(int port, int size, std::string job);
  /// Serves the rest: at most `linger` for ranks that have not left.
  ~RendezvousServer();
  [[nodiscard]] int port() const { return port_; }
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
  void join(FrameStream stream, const Frame& hello);
  void handle(int rank, const Frame& frame);
  void gather(int rank, PackedReader& in);
  void gone(int rank, RemoteStatus::State how);
  void fail_exchanges_of(int rank);
  void fail_exchange(const std::string& key, bool mismatch, const std::string& why);
  [[nodiscard]] bool crosses_another(const std::string& key);
  void to_all_but(int rank, uint8_t type, std::string_view payload);
  [[nodiscard]] std::string table() const;

  Descriptor listening_, wake_read_, wake_write_;
  int port_;
  std::string job_, stray_;
  std::vector<Peer> peers_;
  std::vector<FrameStream> strangers_;  // connected, not yet introduced
  std::map<std::string, Exchange> exchanges_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> linger_ms_{1000};
  std::thread thread_;
};

class RendezvousClient final : public Bootstrap {
 public:
  struct Options {
    int rank = 0, size = 1;
    std::string host, job;
    int port = 0;
    std::string remedy;  ///< how to choose another address, for errors
  };
  /// Rank 0 makes the server first. LaunchError: nobody there, another program or job there, a
  /// world of another size.
  RendezvousClient(const Options& options, Deadline deadline);
  ~RendezvousClient() override;

  [[nodiscard]] int rank() const override { return options_.rank; }
  [[nodiscard]] int size() const override { return options_.size; }
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] int port() const { return options_.port; }
  std::vector<std::string> all_gather(std::span<const int> members, std::string_view key,
                                      std::string_view mine, Deadline deadline) override;
  void finish(bool clean) noexcept override;

  // The side channel's part; from any thread.
  /// To all other ranks, in order.
  void notify(std::string_view text);
  struct Notice {
    int from;
    std::string text;
  };
  /// What has arrived since the last call.
  std::vector<Notice> take_notices();
  /// A rank whose connection broke without a farewell, or -1; the server's own break is rank 0.
  [[nodiscard]] int lost_rank();
  void publish(uint64_t sequence, std::string_view operation);
  /// Of all ranks; empty if the server does not answer in time.
  std::vector<RemoteStatus> table(Deadline deadline);

 private:
  // With the lock held.
  void pump();
  void handle(Frame frame);
  [[nodiscard]] bool wait_for(std::unique_lock<std::mutex>& lock, Deadline deadline);

  Options options_;
  std::unique_ptr<RendezvousServer> server_;
  std::mutex mutex_;
  FrameStream stream_;
  std::map<std::string, std::vector<std::string>> gathered_;
  std::map<std::string, std::pair<bool, std::string>> failed_;  // mismatch or not, why
  std::map<std::string, std::string> missing_;
  std::vector<Notice> notices_;
  std::vector<RemoteStatus> table_;
  bool welcome_ = false, table_came_ = false, broken_ = false;
  int lost_ = -1;
  std::string refused_;
};

}  // namespace tessera
