// SPDX-License-Identifier: Apache-2.0
// The norm of all gradients and the factor that clips them, both tensors. The factor is 1 if
// nothing is to be clipped or the norm is not finite; scale_ does nothing then, and a step keeps
// its bits.
#include "tessera/nn/optim/clip.h"

#include "tessera/core/scopes.h"
#include "tessera/dist/process_group/process_group.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"

namespace tessera::optim {

std::vector<Tensor> grads_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> grads;
  grads.reserve(parameters.size());
  for (const Tensor& p : parameters) {
    if (Tensor g = p.grad(); g.defined()) grads.push_back(std::move(g));
  }
  return grads;
}

namespace {

// The norm over the gradients of all ranks of the group: as on one rank, rounded once.
Tensor joined_norm(const std::vector<Tensor>& grads, const OtherRanks& others) {
  const Tensor squares = to_device(sum_of_squares(grads), others.device);
  others.group->all_reduce(squares);
  return cast(sqrt(squares), DType::f32);
}

GradNorm norm_of(std::string_view who, const std::vector<Tensor>& grads, double max_norm,
                 const OtherRanks& others = {}) {
  if (!(max_norm > 0)) fail<ValueError>(who, "max_norm must be above 0: given ", max_norm);
  const NoGrad guard;
  const Tensor before = others.group ? joined_norm(grads, others) : norm(grads);
  const Tensor size = affine(cast(before, DType::f64), 1, 1e-6);
  const Tensor factor = div(full({}, max_norm, DType::f64, before.device()), size);
  return {before, where(isfinite(before), clamp(factor, {.max = 1}), 1)};
}

}  // namespace

GradNorm grad_norm(const std::vector<Tensor>& parameters, double max_norm,
                   const OtherRanks& others) {
  return norm_of("grad_norm", grads_of(parameters), max_norm, others);
}

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm) {
  const std::vector<Tensor> grads = grads_of(parameters);
  const auto [before, factor] = norm_of("clip_grad_norm_", grads, max_norm);
  const NoGrad guard;
  scale_(grads, factor);
  return before;
}

}  // namespace tessera::optim
