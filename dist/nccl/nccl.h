// SPDX-License-Identifier: Apache-2.0
// The back end `nccl`: collectives on CUDA tensors, by libtessera_nccl.so, which is opened on first
// use. Communicators are non-blocking: start, run and end are polled against the deadline, and a
// failure of any member aborts all of them. A watchdog does so for work that nobody waits for.
#pragma once

#include "tessera/dist/process_group/process_group.h"

namespace tessera {

/// A group of the members of `host`, each with its own GPU, for tensors on `device`. Called by all
/// members; `host` transfers ids, tags and failures, and is kept. Operations run on a stream of the
/// group, after what the Context's stream of the device was given before them, and beside what it
/// is given later: ops wait on the device for the bytes that they need. Sums are NCCL's:
/// reproducible for one communicator, but not bit for bit those of the CPU. With
/// TESSERA_NCCL_CHECK=1 every collective first compares its signature over `host`. LaunchError: no
/// libtessera_nccl.so, two ranks on one GPU, or a start that fails; DeviceError: not a CUDA device.
TESSERA_API Ref<ProcessGroup> make_nccl_group(const Ref<ProcessGroup>& host, Device device);

/// What it took to connect communicators.
struct NcclConnections {
  int communicators = 0;
  double seconds = 0;
  int64_t bytes = 0;  ///< that the device had less free afterwards, whoever has taken them
};
/// Of the groups that were made in the calling rank's Context. Two ranks that send to each other
/// connect by their first message, which is not counted here.
[[nodiscard]] TESSERA_API NcclConnections nccl_connections();

}  // namespace tessera
