// SPDX-License-Identifier: Apache-2.0
// Several linear layers of one input as one matmul. The weights remain separate parameters, with
// their own names, initial values and checkpoint entries.
#pragma once

#include "tessera/core/tensor.h"

#include <span>
#include <vector>

namespace tessera::nn {

/// x (..., in), weights (out_i, in), biases (out_i), one per weight or none at all -> one
/// (..., out_i) each: views of one matmul with the concatenated weights plus the concatenated
/// biases. If concatenation would cost more than it saves (sharded weights, few rows of x), each
/// matmul runs separately. ShapeError, DTypeError as for linear; ValueError if there are biases but
/// not as many as weights.
TESSERA_API std::vector<Tensor> fused_linear(const Tensor& x, std::span<const Tensor> weights,
                                             std::span<const Tensor> biases = {});

}  // namespace tessera::nn
