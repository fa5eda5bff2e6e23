// SPDX-License-Identifier: Apache-2.0
// The group of a rank alone, on a device: collectives are copies on the rank's stream, so that one
// GPU needs no NCCL, and no tensor goes to the host.
#pragma once

#include "tessera/dist/process_group/process_group.h"

#include <memory>

namespace tessera {

/// For tensors on `device`, among the one rank of `host`. Operations are queued when they return.
/// UsageError for send and recv, which need a peer.
[[nodiscard]] Ref<ProcessGroup> make_one_rank_group(const Ref<ProcessGroup>& host,
                                                    std::shared_ptr<CommState> comm, Device device);

}  // namespace tessera
