// SPDX-License-Identifier: Apache-2.0
// Messages over TCP, for worlds that torchrun or srun started on several hosts. One connection per
// pair of ranks, all made at the start, so that nothing later waits for a connection; both ends
// prove that they know the job's secret. Messages advance in calls of the rank; there is no thread.
#pragma once

#include "tessera/dist/lock/mutex_impl.h"
#include "tessera/dist/messages/messages_impl.h"
#include "tessera/dist/rendezvous/door_impl.h"

#include <deque>

namespace tessera {

class TcpMessages final : public Messages {
 public:
  struct Options {
    std::string address;   ///< where this rank listens; empty: on all interfaces of its host
    std::string hostname;  ///< its host's, for the others if it listens on all interfaces
    std::string secret;    ///< the job's
    std::chrono::milliseconds patience{5000};  ///< with connections that do not prove themselves
  };
  /// Called by all ranks. LaunchError: a peer that cannot be reached or refuses.
  TcpMessages(Bootstrap& bootstrap, const Options& options, Deadline deadline);
  ~TcpMessages() override;

  Handle send(int to, int tag, const void* data, size_t bytes) override;
  Handle receive(int from, int tag, void* data, size_t bytes) override;
  bool done(Handle& handle) override;
  void abandon(Handle& handle, std::shared_ptr<const void> owner) override;
  std::vector<std::shared_ptr<const void>> let_go() override;
  [[nodiscard]] int largest_tag() const override { return 2'147'483'647; }

 private:
  struct Message;
  struct Header {
    uint64_t bytes;
    int64_t tag;
  };
  struct Peer {
    Descriptor socket;
    std::deque<std::shared_ptr<Message>> outgoing, posted, arrived;
    std::shared_ptr<Message> current;  // that comes in now; null between messages
    Header header{};
    size_t header_bytes = 0, body_bytes = 0;
    bool broken = false;
  };
  void connect_all(Door& door, const std::vector<std::string>& places, const std::string& secret,
                   Deadline deadline);
  void write_some(Peer& peer);
  void read_some(Peer& peer);
  void begin(Peer& peer);
  void finish(Peer& peer);
  void take(Peer& peer, const std::shared_ptr<Message>& came);
  void fail_all(Peer& peer, const std::string& why);
  void end(Message& message);

  int rank_;
  std::vector<Peer> peers_;
  std::vector<std::shared_ptr<const void>> gone_;
  std::atomic<bool> some_gone_{false};
  Mutex mutex_;
};

}  // namespace tessera
