// SPDX-License-Identifier: Apache-2.0
// Runs a function on ranks: threads of this process, one rank of a world that is not there, or the
// processes that a launcher started. Groups of processes of one host share memory; groups that span
// hosts exchange messages. For tests on one host, TESSERA_TRANSPORT=messages uses messages alone
// and =pairs takes every two ranks for a host.
#pragma once

#include "tessera/dist/launch/launch.h"
#include "tessera/dist/world.h"

#include <functional>

namespace tessera {

/// Runs fn on `n` ranks, each a thread with its own World, and returns when all have. The error of
/// the rank that failed first is rethrown; the others end with PeerFailed.
TESSERA_API void run_ranks(int n, const std::function<void(World&)>& fn,
                           const WorldOptions& options = {});

/// Runs fn as rank `rank` of a world of `world_size` ranks of which no other exists: collectives
/// return at once with the right shapes (what this rank gave, repeated where others' values
/// belong), so plans and sizes of any world can be looked at on one machine. `split` takes all
/// ranks to have this one's colour.
TESSERA_API void run_fake(int world_size, int rank, const std::function<void(World&)>& fn,
                          const WorldOptions& options = {});

/// Runs fn on the ranks of `launch`: as this process's rank, or, for `--ranks N` and for no
/// launcher at all, as threads like run_ranks. Rank 0 prints one line about the world to stderr.
/// Returns when this rank is done and all others are known to be, so that ending the process harms
/// nobody; an error of fn reaches the other ranks as PeerFailed and is rethrown here. LaunchError:
/// a rendezvous that fails, a transport that is not there.
TESSERA_API void run_launched(const Launch& launch, const std::function<void(World&)>& fn,
                              const WorldOptions& options = {});

}  // namespace tessera
