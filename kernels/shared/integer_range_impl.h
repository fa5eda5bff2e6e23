// SPDX-License-Identifier: Apache-2.0
// Whether the constants that ops are given are numbers that an integer dtype has: casting another
// to it is undefined, and rounding one would change it unseen.
#pragma once

#include "tessera/core/scalar.h"
#include "tessera/core/tensor.h"

namespace tessera::op {

/// Whether v lies in the range of integer dtype t, i32 or i64; floats take any.
inline bool in_range(double v, DType t) {
  if (is_floating(t)) return true;
  const double end = t == DType::i64 ? 0x1p63 : 0x1p31;
  return v >= -end && v < end;
}

/// ValueError for a constant beyond the range of x's dtype, DTypeError for a fraction that it
/// cannot hold.
inline void check_scalar(std::string_view name, const Scalar& v, const TensorMeta& x) {
  if (v.fits(x.dtype)) return;
  if (v.is_whole() || !(std::abs(v.real()) < 0x1p63))
    fail<ValueError>(name, v, " is beyond the range of ", x.dtype, ": given ", x,
                     "; cast it to a wider dtype first");
  fail<DTypeError>(name, x.dtype, " takes whole numbers: given ", x, " and ", v,
                   "; cast it to a floating dtype first");
}

}  // namespace tessera::op
