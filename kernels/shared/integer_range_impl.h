// SPDX-License-Identifier: Apache-2.0
// Whether an op's f64 attribute is a number that an integer dtype has: casting another to it is
// undefined.
#pragma once

#include "tessera/core/dtype.h"

namespace tessera::op {

/// Whether v lies in the range of integer dtype t, i32 or i64; floats take any.
inline bool in_range(double v, DType t) {
  if (is_floating(t)) return true;
  const double end = t == DType::i64 ? 0x1p63 : 0x1p31;
  return v >= -end && v < end;
}

}  // namespace tessera::op
