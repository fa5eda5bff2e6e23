// SPDX-License-Identifier: Apache-2.0
// MPI for messages and bootstrap. One object per process initialises MPI once and finalises it only
// if all ranks are known to come. MPI itself waits for them without an end in both, so a thread of
// its own makes these calls and ranks wait for it until their deadline.
#pragma once

#include "tessera/dist/lock/mutex_impl.h"
#include "tessera/dist/messages/messages_impl.h"
#include "tessera/dist/mpi/mpi_api_impl.h"
#include "tessera/dist/rendezvous/bootstrap_impl.h"
#include "tessera/dist/rendezvous/host_folder_impl.h"

#include <array>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>

namespace tessera {

/// The thread that starts and ends MPI, which wants both from one. If MPI does not return, it stays
/// there, and nobody waits for it.
class MpiThread {
 public:
  struct Start {
    int code = 0, rank = 0, size = 1, largest_tag = 0;
  };
  explicit MpiThread(const TesseraMpiApi& api);
  /// Once MPI has started; none by the deadline.
  [[nodiscard]] std::optional<Start> start(Deadline deadline);
  /// Ends MPI; false if it has not ended by the deadline.
  bool finish(Deadline deadline);

 private:
  std::shared_future<Start> started_;
  std::promise<void> ask_;
  std::future<void> ended_;
};

class MpiMessages final : public Messages, public Bootstrap {
 public:
  /// Starts MPI, or finds it started. LaunchError without libtessera_mpi.so, or if a rank had not
  /// come by the deadline, with who came.
  static std::shared_ptr<MpiMessages> get(const HostFolder& here, Deadline deadline);
  ~MpiMessages() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] std::string name() const override { return name_; }
  std::vector<std::string> all_gather(std::span<const int> members, std::string_view key,
                                      std::string_view mine, Deadline deadline) override;
  /// Whether a rank is known to have died, as far as this process can see; MPI does not say.
  std::function<bool(int rank)> gone;
  /// MPI_Finalize waits for all ranks, so it is called only if all are known to come.
  bool finish(bool clean, Deadline deadline) noexcept override;

  Handle send(int to, int tag, const void* data, size_t bytes) override;
  Handle receive(int from, int tag, void* data, size_t bytes) override;
  bool done(Handle& handle) override;
  void abandon(Handle& handle, std::shared_ptr<const void> owner) override;
  std::vector<std::shared_ptr<const void>> let_go() override;
  [[nodiscard]] int largest_tag() const override { return largest_tag_; }

  static constexpr int kBootstrapTag = 1;

 private:
  struct Message {
    std::vector<void*> pieces;  // MPI counts in int, so long messages go in pieces
    bool receives = false;
    int peer = -1;
  };
  MpiMessages(MpiThread& thread, const MpiThread::Start& start);
  void check(int code, const char* what, int peer) const;
  bool test(Message& message);

  const TesseraMpiApi& api_;
  MpiThread& thread_;
  int rank_ = 0, size_ = 1, largest_tag_ = 0;
  std::string name_;
  Mutex mutex_;  // MPI is started for one caller at a time
  struct Abandoned {
    std::unique_ptr<Message> message;
    std::shared_ptr<const void> owner;
  };
  std::vector<Abandoned> abandoned_;
  std::atomic<bool> some_abandoned_{false};
  bool broken_ = false, finished_ = false;
};

}  // namespace tessera
