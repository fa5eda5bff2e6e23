// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of this process: groups whose segments are on the heap. `direct` is the back end
// `threads`; `staged` transfers payloads as processes of one host do, so that tests cover that code
// without processes.
#pragma once

#include "tessera/dist/lock/mutex_impl.h"
#include "tessera/dist/shared_memory/group_impl.h"
#include "tessera/dist/world.h"

#include <map>

namespace tessera {

/// Allocates segments on the heap and records which rank creates which group.
class HeapSegments final : public SegmentSource {
 public:
  std::shared_ptr<std::byte> segment(std::span<const int> world_ranks, const std::string& name,
                                     int world_rank, size_t bytes,
                                     std::chrono::milliseconds timeout) override;
  void settled(int world_rank) override;

  /// Zeroed, from fresh pages: untouched parts of a segment take no memory.
  static std::shared_ptr<std::byte> allocate(size_t bytes);

 private:
  using Key = std::vector<int>;  // world ranks, then how many groups of these came before
  struct Forming {
    std::shared_ptr<std::byte> memory;
    std::string name;
    int first = 0;  // the rank that created it
    size_t joined = 0;
  };
  Mutex mutex_;
  std::map<Key, Forming> forming_;
  std::map<std::pair<Key, int>, int> made_;  // by members and rank
  std::map<int, Key> making_;                // the group that each rank is creating
};

/// run_ranks with the payload mode chosen; `pool`: of the messages of a rank, where it is staged.
TESSERA_API void run_threads(int n, const std::function<void(World&)>& fn,
                             const WorldOptions& options, PayloadMode mode,
                             size_t pool = kMessagePool);

}  // namespace tessera
