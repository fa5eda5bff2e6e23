// SPDX-License-Identifier: Apache-2.0
// Where a rank runs (host and process), and memory that processes of one host share. A host is one
// running kernel and one process-id namespace: processes that can see each other in /proc. Memory
// comes from memfd_create and is opened through /proc, so it has no name that could leak, and the
// size of /dev/shm does not matter.
#pragma once

#include "tessera/dist/rendezvous/bootstrap_impl.h"
#include "tessera/dist/shared_memory/engine_impl.h"

#include <string>

namespace tessera {

struct RankPlace {
  std::string host;      ///< equal for processes that can share memory
  std::string hostname;  ///< for people
  int64_t pid = 0;
  uint64_t started = 0;  ///< tells a process from a later one with its id

  static RankPlace own();
  /// Of a process of this host.
  static RankPlace of(int64_t pid);
  [[nodiscard]] std::string pack() const;
  static RankPlace unpack(std::string_view bytes);
};

/// What /proc says of a process of this host.
enum class ProcessState : uint8_t { running, stopped, gone };
[[nodiscard]] ProcessState process_state(int64_t pid, uint64_t started);

/// Zeroed memory that exactly these ranks, all on this host, map. Called by all of them with equal
/// arguments; `bootstrap` is used twice. Errors: as of Bootstrap::all_gather, StorageError.
std::shared_ptr<std::byte> shared_memory(Bootstrap& bootstrap, std::span<const int> members,
                                         std::string_view key, std::string_view name, size_t bytes,
                                         Deadline deadline);

/// Segments of groups of processes.
class MappedSegments final : public SegmentSource {
 public:
  explicit MappedSegments(std::shared_ptr<Bootstrap> bootstrap)
      : bootstrap_(std::move(bootstrap)) {}
  std::shared_ptr<std::byte> segment(std::span<const int> world_ranks, const std::string& name,
                                     int world_rank, size_t bytes,
                                     std::chrono::milliseconds timeout) override;
  void settled(int) override {}

 private:
  std::shared_ptr<Bootstrap> bootstrap_;
};

}  // namespace tessera
