// SPDX-License-Identifier: Apache-2.0
// Runs a function on ranks: threads of this process, one rank of a fake world, or the processes
// that a launcher started. Groups of processes of one host share memory; groups that span hosts
// exchange messages. For tests on one host, TESSERA_TRANSPORT=messages uses only messages, and
// =pairs treats every two ranks as one host.
#pragma once

#include "tessera/dist/launch/launch.h"
#include "tessera/dist/world.h"

#include <functional>

namespace tessera {

/// Runs fn on `n` ranks, each a thread with its own World, and returns when all have returned. The
/// error of the rank that failed first is rethrown; the others end with PeerFailed.
TESSERA_API void run_ranks(int n, const std::function<void(World&)>& fn,
                           const WorldOptions& options = {});

/// Runs fn as rank `rank` of a fake world of `world_size` ranks: collectives return at once with
/// the right shapes (this rank's values in place of the others'), so plans and sizes of any world
/// can be inspected on one machine. `split` assumes that all ranks have this rank's colour.
TESSERA_API void run_fake(int world_size, int rank, const std::function<void(World&)>& fn,
                          const WorldOptions& options = {});

/// Runs fn on the ranks of `launch`: as this process's rank, or, with `--ranks N` or without a
/// launcher, as threads like run_ranks. Rank 0 prints one line about the world to stderr. Returns
/// when all ranks are done, so that the process may end; an error of fn reaches the other ranks as
/// PeerFailed and is rethrown here. LaunchError: the rendezvous fails, or the transport is missing.
TESSERA_API void run_launched(const Launch& launch, const std::function<void(World&)>& fn,
                              const WorldOptions& options = {});

}  // namespace tessera
