// SPDX-License-Identifier: Apache-2.0
// One norm and one factor for all gradients; with a non-finite norm they are unchanged.
#include "tessera/nn/optim/clip.h"

#include "tessera/kernels/multi_tensor/multi_tensor.h"

#include <cmath>

namespace tessera::optim {

std::vector<Tensor> grads_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> grads;
  grads.reserve(parameters.size());
  for (const Tensor& p : parameters) {
    if (Tensor g = p.grad(); g.defined()) grads.push_back(std::move(g));
  }
  return grads;
}

double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm) {
  if (!(max_norm > 0))
    fail<ValueError>("clip_grad_norm_", "max_norm must be above 0: given ", max_norm);
  const std::vector<Tensor> grads = grads_of(parameters);
  const double before = norm(grads);
  const double factor = max_norm / (before + 1e-6);
  if (factor < 1 && std::isfinite(before)) scale_(grads, factor);
  return before;
}

}  // namespace tessera::optim
