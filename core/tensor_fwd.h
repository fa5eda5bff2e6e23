// SPDX-License-Identifier: Apache-2.0
// Lists of tensors by name, for interfaces that pass them on: whoever looks inside includes
// tensor.h.
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
