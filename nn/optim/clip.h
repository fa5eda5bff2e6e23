// SPDX-License-Identifier: Apache-2.0
// Gradient clipping between backward and an optimizer's step.
#pragma once

#include "tessera/core/tensor.h"

#include <vector>

namespace tessera::optim {

/// The gradients of the parameters that have one.
[[nodiscard]] TESSERA_API std::vector<Tensor> grads_of(const std::vector<Tensor>& parameters);
/// Scales the gradients of `parameters` in place so that their total 2-norm is at most `max_norm`
/// -> the norm before clipping, () f32 and plain: neither it nor the factor is read on the host.
/// Each element of a distributed gradient counts once. Parameters without a gradient are skipped;
/// with a norm of NaN or infinity the gradients stay as they are. ValueError unless max_norm >
/// 0; LayoutError for partial gradients, and for plain ones beside distributed ones.
TESSERA_API Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace tessera::optim
