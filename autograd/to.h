// SPDX-License-Identifier: Apache-2.0
// to(x, device) and to(x, dtype): the same values on another device or in another dtype, recorded.
#pragma once

#include "tessera/core/tensor.h"

namespace tessera {

/// x on `device`, x itself if it is there; the gradient is copied back to x's device. LayoutError
/// for a distributed tensor, DeviceError from the meta device, which has no values to move.
[[nodiscard]] TESSERA_API Tensor to(const Tensor& x, Device device);
/// x in `dtype`, x itself if it has that dtype; the gradient has x's dtype.
[[nodiscard]] TESSERA_API Tensor to(const Tensor& x, DType dtype);

}  // namespace tessera
