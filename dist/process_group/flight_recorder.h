// SPDX-License-Identifier: Apache-2.0
// FlightRecorder: the last operations of one rank, in a ring whose size is set at the start. It is
// dumped as JSON when a wait times out, a group is aborted or the process gets SIGUSR2, to show
// after a hang what each rank was doing. An entry costs two clock reads and no allocation.
#pragma once

#include "tessera/dist/process_group/process_group.h"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>

namespace tessera {

class TESSERA_API FlightRecorder {
 public:
  enum class State : uint8_t { queued, started, done, failed };
  /// One operation for profilers; times in nanoseconds of the steady clock, 0: not yet.
  struct Operation {
    CollectiveKind kind{};
    std::string group;
    DType dtype{};
    int64_t bytes = 0;  ///< larger of input and output on this rank
    int64_t queued = 0, started = 0, ended = 0;
  };
  static constexpr size_t kEntries = 256;  ///< initial size of the ring

  FlightRecorder(int world_rank, std::string folder);

  /// Sets the size of the ring, which is then empty; 0 records nothing. For the rank's own thread,
  /// while no operation is pending.
  void set_entries(size_t entries);
  /// Records an operation and returns its number, for started() and ended().
  uint64_t enter(const ProcessGroup& group, const Collective& c);
  void started(uint64_t record);
  void ended(uint64_t record, bool failed);

  /// Folder of dump(): `<folder>/tessera_flight_<process>_rank<r>.json`.
  [[nodiscard]] const std::string& path() const { return path_; }
  void set_folder(const std::string& folder);
  /// Writes the record with `reason`, the latest operation last. Never throws: a full disk must not
  /// hide the error that is being reported; false if nothing could be written.
  bool dump(std::string_view reason) const noexcept;
  [[nodiscard]] std::string json(std::string_view reason) const;
  /// What dump() does with its json().
  bool write(std::string_view json) const noexcept;
  /// Number of operations so far.
  [[nodiscard]] uint64_t count() const { return next_.load(std::memory_order_relaxed); }

  /// What collectives have cost this rank so far: moving their bytes, whoever asked for it, and
  /// waiting for other ranks (over messages: waiting for both).
  struct Spent {
    std::chrono::nanoseconds moving{0}, waiting{0};
  };
  [[nodiscard]] Spent spent() const;
  /// Bytes have been moved since `start`.
  void moved(std::chrono::steady_clock::time_point start);
  /// The rank has waited since `start`, but for what it has moved since `before`.
  void waited(std::chrono::steady_clock::time_point start, const Spent& before);

  /// The ended operations from number `first`, up to the first that has not ended; sets `first` for
  /// the next call. Operations that the ring has overwritten are missing.
  [[nodiscard]] std::vector<Operation> ended_since(uint64_t& first) const;

  /// Installs a SIGUSR2 handler: every rank of this process then dumps at its next wait or op call.
  /// For programs (main calls it once).
  static void install_signal_handler();
  /// Whether a signal has asked for a dump since the last call; costs one load.
  [[nodiscard]] bool asked();

 private:
  struct Entry {
    uint64_t number = 0, sequence = 0;
    int64_t count = 0, send = 0, receive = 0;
    std::atomic<int64_t> queued{0}, started{0}, ended{0};  // nanoseconds of the steady clock
    std::atomic<State> state{State::queued};
    CollectiveKind kind{};
    ReduceOp op{};
    DType dtype{};
    int root = -1, tag = 0, size = 0;
    std::array<char, 40> group{};
  };
  /// Null if the ring does not hold it.
  Entry* find(uint64_t record);
  [[nodiscard]] uint64_t oldest() const;

  int world_rank_;
  std::string path_;
  std::unique_ptr<Entry[]> entries_ = std::make_unique<Entry[]>(kEntries);
  size_t size_ = kEntries;
  uint64_t first_ = 0;  // of this ring
  std::atomic<uint64_t> next_{0};
  std::atomic<int64_t> moving_{0}, waiting_{0};  // nanoseconds; a progress thread adds too
  uint32_t seen_requests_ = 0;
};

}  // namespace tessera
