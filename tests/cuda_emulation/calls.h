// SPDX-License-Identifier: Apache-2.0
// What tests ask of the emulated runtime beside CUDA's own interface.
#pragma once

#include "cuda_runtime_api.h"

#include <cstdint>

namespace cuda_emulation {

/// How often the process has called the runtime, launches and library products included.
CUDA_EMULATION_API int64_t calls_made();

}  // namespace cuda_emulation
