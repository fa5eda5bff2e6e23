// SPDX-License-Identifier: Apache-2.0
// CUDA's status codes as typed errors.
#pragma once

#include "tessera/core/error.h"

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

namespace tessera {

/// Throws the DeviceError of a `status` other than success, with the call's text. One that no call
/// on this device survives says that the device is lost; one of a driver or device that this
/// library does not fit says what fits.
[[noreturn]] void raise_cuda(cudaError_t status, std::string_view call);

/// DeviceError with the call's text unless `status` is success.
inline void check_cuda(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) [[likely]] {
    return;
  }
  raise_cuda(status, call);
}

#define TESSERA_CUDA_CALL(call) ::tessera::check_cuda(call, #call)

/// Why cudaGetDeviceCount gave `status`, or no device.
[[nodiscard]] std::string why_no_device(cudaError_t status);

}  // namespace tessera
