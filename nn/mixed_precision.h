// SPDX-License-Identifier: Apache-2.0
// Mixed precision: parameters and optimizer steps are f32, computation uses a narrower dtype. A
// unit (a module and its descendants, except those of other units) casts its parameters when they
// have changed, so once per step for any number of forwards, recomputes and micro-batches. There is
// no autocast per op: norms, softmax and the loss compute f32 statistics in their rooms.
#pragma once

#include "tessera/nn/module.h"

#include <span>

namespace tessera::nn {

/// Makes `root` a unit, and each of `units` below it. In a unit's forward its floating parameters
/// are copies in `dtype`, and floating inputs are cast to it; outside they are unchanged. Each
/// backward casts gradients back and adds them to grad() of the parameters, whose hooks run.
/// Members may be assigned other tensors between forwards, but must not be removed. A parameter of
/// two units has a copy in each, and its hooks run for each. The function grad() cannot
/// differentiate with respect to these parameters: use backward(). DTypeError unless dtype is
/// floating.
TESSERA_API void mixed_precision(Module& root, std::span<Module* const> units, DType dtype);

}  // namespace tessera::nn
