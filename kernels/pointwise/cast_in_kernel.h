// SPDX-License-Identifier: Apache-2.0
// Casts within the kernel of another op, such as a product of narrow floats that no route takes.
// They are part of that kernel, no ops that hooks see.
#pragma once

#include "tessera/kernels/pointwise/pointwise_arithmetic.h"

#include <array>

namespace tessera::op {

/// `x` in `dtype`, apart from autograd.
inline Tensor cast_in_kernel(const Tensor& x, DType dtype) {
  const Tensor from = x.detach();
  if (from.dtype() == dtype) return from;
  Tensor to = empty(from.shape(), dtype);
  Cast{{}, dtype}.cpu(Tensors(&from, 1), Outputs(&to, 1));
  return to;
}

/// Runs a product in f32 and rounds its result once. `in`: two operands and what else the op takes.
template <size_t inputs, class Op> void run_widened(const Op& op, Tensors in, Outputs y) {
  std::array<Tensor, inputs> operands;
  for (size_t i = 0; i < inputs; ++i)
    operands[i] = i < 2 ? cast_in_kernel(in[i], DType::f32) : in[i].detach();
  Tensor wide = empty(y[0].shape(), DType::f32);
  op.cpu(Tensors(operands.data(), inputs), Outputs(&wide, 1));
  Cast{{}, y[0].dtype()}.cpu(Tensors(&wide, 1), y);
}

}  // namespace tessera::op
