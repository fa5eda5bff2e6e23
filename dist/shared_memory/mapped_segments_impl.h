// SPDX-License-Identifier: Apache-2.0
// Memory that processes of one host share. It comes from memfd_create and is opened through /proc,
// so it has no name that could leak, and the size of /dev/shm does not matter.
#pragma once

#include "tessera/dist/rendezvous/bootstrap_impl.h"
#include "tessera/dist/shared_memory/group_impl.h"

namespace tessera {

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
