// SPDX-License-Identifier: Apache-2.0
// Gradient clipping between backward and an optimizer's step.
#pragma once

#include "tessera/core/tensor.h"

#include <vector>

namespace tessera::optim {

/// The gradients of those parameters that have one.
[[nodiscard]] TESSERA_API std::vector<Tensor> grads_of(const std::vector<Tensor>& parameters);
/// Scales the gradients of `parameters` in place so that their 2-norm, taken over all of them
/// together, is at most `max_norm`; gives the norm before. Each element of a distributed gradient
/// counts once. Parameters without a gradient are passed over; NaN and infinity pass through.
/// ValueError unless max_norm > 0; LayoutError for partial gradients, and for plain ones among
/// distributed ones.
TESSERA_API double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace tessera::optim
