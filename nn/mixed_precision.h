// SPDX-License-Identifier: Apache-2.0
// Mixed precision: parameters are kept and stepped in f32 and computed with in a narrower dtype. A
// unit (a module and what lies below it, but for units of their own) casts its parameters when they
// have changed, so once a step however many forwards, recomputes and micro-batches there are. No op
// is cast by itself: norms, softmax and the loss have f32 statistics in their rooms.
#pragma once

#include "tessera/nn/module.h"

#include <span>

namespace tessera::nn {

/// Makes `root` a unit, and each of `units` below it. In a unit's forward its floating parameters
/// are copies in `dtype`, and floating inputs are cast to it; outside they are what they were. Each
/// backward adds the gradients, cast back, to grad() of the parameters themselves, whose hooks run.
/// Members may be given other tensors between forwards, but must not be removed. A parameter of two
/// units has a copy in each, and its hooks run for each. grad() takes what a forward computed, not
/// these parameters: their gradients arrive by backward alone. DTypeError unless dtype is floating.
TESSERA_API void mixed_precision(Module& root, std::span<Module* const> units, DType dtype);

}  // namespace tessera::nn
