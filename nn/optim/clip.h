// SPDX-License-Identifier: Apache-2.0
// Gradient clipping between backward and an optimizer's step, by a pass over the gradients, or by
// the step itself, which takes a factor:
// `optimizer.step({}, optim::grad_norm(parameters, 1.0).factor)`.
#pragma once

#include "tessera/core/tensor.h"

#include <vector>

namespace tessera {
class ProcessGroup;
}

namespace tessera::optim {

/// The gradients of the parameters that have one.
[[nodiscard]] TESSERA_API std::vector<Tensor> grads_of(const std::vector<Tensor>& parameters);
/// A norm of gradients and what brings it down; both are plain and were not read on the host.
struct GradNorm {
  Tensor norm;    ///< () f32: the total 2-norm
  Tensor factor;  ///< () f64: at most 1, and 1 where the norm is NaN or infinity
};
/// Ranks that have other parameters of a model, this one among them, and the device of its own.
struct OtherRanks {
  ProcessGroup* group = nullptr;
  Device device = kCpu;
};
/// The total 2-norm of the gradients of `parameters`, and the factor by which it is at most
/// `max_norm`, for Optimizer::step(). The gradients stay as they are. Each element of a distributed
/// gradient counts once; parameters without a gradient are skipped. `others`: ranks that have other
/// parameters of the same model, as in a pipeline. ValueError
/// unless max_norm > 0; LayoutError for partial gradients, and for plain ones beside distributed
/// ones.
[[nodiscard]] TESSERA_API GradNorm grad_norm(const std::vector<Tensor>& parameters, double max_norm,
                                             const OtherRanks& others = {});
/// Scales the gradients of `parameters` in place so that their total 2-norm is at most `max_norm`
/// -> the norm before clipping, () f32 and plain: neither it nor the factor is read on the host.
/// With a norm of NaN or infinity the gradients stay as they are. Else as grad_norm(), whose factor
/// gives a step of the same bits without reading and writing all gradients once more. Errors as
/// grad_norm().
TESSERA_API Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace tessera::optim
