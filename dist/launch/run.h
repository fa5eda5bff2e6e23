// SPDX-License-Identifier: Apache-2.0
// Worlds that a launcher started: every process is a rank. Groups of one host share memory; groups
// that span hosts exchange messages. For tests on one host, TESSERA_TRANSPORT=messages uses
// messages alone and =pairs takes every two ranks for a host.
#pragma once

#include "tessera/dist/launch/launch.h"
#include "tessera/dist/world.h"

namespace tessera {

/// Runs fn on the ranks of `launch`: as this process's rank, or, for `--ranks N` and for no
/// launcher at all, as threads like run_ranks. Rank 0 prints one line about the world to stderr.
/// Returns when this rank is done and all others are known to be, so that ending the process harms
/// nobody; an error of fn reaches the other ranks as PeerFailed and is rethrown here. LaunchError:
/// a rendezvous that fails, a transport that is not there.
TESSERA_API void run_launched(const Launch& launch, const std::function<void(World&)>& fn,
                              const WorldOptions& options = {});

}  // namespace tessera
