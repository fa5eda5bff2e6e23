// SPDX-License-Identifier: Apache-2.0
// Lists of tensors as incomplete types, for interfaces that only pass them on; code that reads them
// includes tensor.h.
#pragma once

#include "tessera/core/small_vector.h"

#include <span>

namespace tessera {

class Tensor;

using Tensors =
    std::span<const Tensor>;        ///< inputs of a kernel; an optional input may be undefined
using Outputs = std::span<Tensor>;  ///< allocated outputs (or written operands) of a kernel
using TensorList = SmallVector<Tensor, 2>;

}  // namespace tessera
