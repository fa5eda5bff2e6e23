// SPDX-License-Identifier: Apache-2.0
// Layouts for a model without bytes, which then runs on shapes alone (to plan, or to count memory)
// or gets bytes that a checkpoint fills.
#pragma once

#include "tessera/nn/parameters.h"

namespace tessera::nn {

/// As initialize, but on the meta device: each parameter and buffer stays without bytes and gets
/// its layout, with this rank's shard as its local tensor. DeviceError if one has bytes already.
TESSERA_API void lay_out(Module& root, const LayoutOf& layout_of);
/// Gives a model without bytes memory of `device`, in the layouts that it has. Parameters and
/// persistent buffers, which a checkpoint contains, are not written; other buffers are filled as by
/// initialize.
TESSERA_API void allocate(Module& root, Device device = kCpu);

}  // namespace tessera::nn
