// SPDX-License-Identifier: Apache-2.0
// Numbers that an integer dtype does not have. Constants that ops are given are refused: C++ leaves
// open what a cast gives, and rounding one would change it unseen. What `cast` makes of elements is
// the same on every back end.
#pragma once

#include "tessera/core/op_types.h"
#include "tessera/core/scalar.h"
#include "tessera/core/tensor.h"

#include <limits>
#include <type_traits>

#ifdef __CUDACC__
#define TESSERA_CONVERT __host__ __device__ __forceinline__
#else
#define TESSERA_CONVERT TESSERA_INLINE
#endif

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

/// x, rounded to To. A float beyond an integer's range becomes the nearer end of the
/// range, NaN 0.
template <class To, class From> TESSERA_CONVERT To converted(From x) {
  constexpr bool whole = std::is_integral_v<To> && !std::is_same_v<To, bool>;
  if constexpr (whole && std::is_floating_point_v<From>) {
    using Range = std::numeric_limits<To>;
    // Both are exact in every float: 0 or powers of two. The largest integer is not.
    constexpr auto low = static_cast<From>(Range::min());
    constexpr auto end = static_cast<From>(Range::max() / 2 + 1) * 2;
    const bool inside = x > low && x < end;
    const To within = static_cast<To>(inside ? x : From(0));
    return inside ? within : x >= end ? Range::max() : x <= low ? Range::min() : To(0);
  } else if constexpr (is_floating(dtype_of<To>) && sizeof(To) < 4) {
    return To(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace tessera::op
