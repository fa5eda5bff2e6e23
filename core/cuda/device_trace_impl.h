// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tessera/core/cuda_backend.h"

namespace tessera {

/// The process's, by CUPTI, which is opened here. DeviceError: it is not installed, or of a version
/// with records that this library cannot read.
[[nodiscard]] DeviceTrace& device_trace();

}  // namespace tessera
