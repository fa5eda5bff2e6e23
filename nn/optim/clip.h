// SPDX-License-Identifier: Apache-2.0
// Gradient clipping between backward and an optimizer's step.
#pragma once

#include "tessera/core/tensor.h"

#include <vector>

namespace tessera::optim {

/// The gradients of the parameters that have one.
[[nodiscard]] TESSERA_API std::vector<Tensor> grads_of(const std::vector<Tensor>& parameters);
/// Scales the gradients of `parameters` in place so that their total 2-norm is at most `max_norm`;
/// returns the norm before clipping. Each element of a distributed gradient counts once. Parameters
/// without a gradient are skipped; NaN and infinity are not checked. ValueError unless max_norm >
/// 0; LayoutError for partial gradients, and for plain ones beside distributed ones.
TESSERA_API double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace tessera::optim
