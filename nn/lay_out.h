// SPDX-License-Identifier: Apache-2.0
// Layouts for a model without bytes, which then runs on shapes alone: to plan, or to count memory.
#pragma once

#include "tessera/nn/parameters.h"

namespace tessera::nn {

/// As initialize, but on the meta device: each parameter and buffer stays without bytes and gets
/// its layout, with this rank's shard as its local tensor. DeviceError if one has bytes already.
TESSERA_API void lay_out(Module& root, const LayoutOf& layout_of);

}  // namespace tessera::nn
