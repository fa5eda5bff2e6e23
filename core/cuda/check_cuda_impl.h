// SPDX-License-Identifier: Apache-2.0
// CUDA's status codes as typed errors.
#pragma once

#include "tessera/core/error.h"

#include <cuda_runtime_api.h>

#include <string_view>

namespace tessera {

/// DeviceError with the call's text unless `status` is success.
inline void check_cuda(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) [[likely]] {
    return;
  }
  (void)cudaGetLastError();  // or the next check would report it again
  fail<DeviceError>("cuda", call, " failed: ", cudaGetErrorName(status), ", ",
                    cudaGetErrorString(status));
}

#define TESSERA_CUDA_CALL(call) ::tessera::check_cuda(call, #call)

}  // namespace tessera
