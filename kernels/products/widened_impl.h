// SPDX-License-Identifier: Apache-2.0
// Products of narrow floats that no route takes.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <array>

namespace tessera::op {

/// Runs a product in f32 and rounds its result once. `in`: two operands and what else the op takes.
/// Casts and product are part of the caller's kernel, no ops that hooks see.
template <size_t inputs, class Op> void run_widened(const Op& op, Tensors in, Outputs y) {
  std::array<Tensor, inputs> operands;
  for (size_t i = 0; i < inputs; ++i) {
    operands[i] = in[i].detach();
    if (i >= 2) continue;
    Tensor wide = empty(in[i].shape(), DType::f32);
    Cast{{}, DType::f32}.cpu(Tensors(&operands[i], 1), Outputs(&wide, 1));
    operands[i] = wide;
  }
  Tensor wide = empty(y[0].shape(), DType::f32);
  op.cpu(Tensors(operands.data(), inputs), Outputs(&wide, 1));
  Cast{{}, y[0].dtype()}.cpu(Tensors(&wide, 1), y);
}

}  // namespace tessera::op
