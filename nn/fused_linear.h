// SPDX-License-Identifier: Apache-2.0
// Several linear maps of one input as one product. The weights stay parameters of their own, with
// names, initial values and checkpoints of their own.
#pragma once

#include "tessera/core/tensor.h"

#include <span>
#include <vector>

namespace tessera::nn {

/// x (..., in), weights (out_i, in), biases (out_i), one per weight or none at all -> one
/// (..., out_i) each: views of one product with the weights joined, and of one sum with the biases
/// joined. Where joining would cost more than it saves (weights cut over a mesh, few rows of x)
/// each product is computed alone. ShapeError, DTypeError as for linear; ValueError if there are
/// biases but not as many as weights.
TESSERA_API std::vector<Tensor> fused_linear(const Tensor& x, std::span<const Tensor> weights,
                                             std::span<const Tensor> biases = {});

}  // namespace tessera::nn
