// SPDX-License-Identifier: Apache-2.0
// How the backend finds kernels: the table is filled by kernels/cuda_table.cpp, which is linked
// into the same library.
#pragma once

#include "tessera/core/cuda_backend.h"

#include <string_view>

namespace tessera {

/// The kernel of the op with this name, or null.
[[nodiscard]] CudaBackend::Kernel find_cuda_kernel(std::string_view op);

}  // namespace tessera
