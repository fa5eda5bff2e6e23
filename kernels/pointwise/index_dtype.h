// SPDX-License-Identifier: Apache-2.0
// Which dtypes indices may have: i64, and i32, which is cast, so that every op that takes indices
// has one kernel.
#pragma once

#include "tessera/kernels/pointwise/pointwise_arithmetic.h"

namespace tessera {

/// Indices as i64: i32 ones are cast, others are given back as they are (the op checks them).
inline Tensor as_index(const Tensor& x) {
  return x.defined() && x.dtype() == DType::i32 ? cast(x, DType::i64) : x;
}

}  // namespace tessera
