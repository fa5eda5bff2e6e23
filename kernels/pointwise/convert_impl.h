// SPDX-License-Identifier: Apache-2.0
// One number as another dtype: what `cast` and the casts within kernels compute on every back end.
#pragma once

#include "tessera/core/op_types.h"

#include <limits>

#ifdef __CUDACC__
#define TESSERA_CONVERT __host__ __device__ __forceinline__
#else
#define TESSERA_CONVERT TESSERA_INLINE
#endif

namespace tessera::op {

/// x, rounded to To. C++ leaves open what a float beyond an integer's range becomes, and processors
/// differ: here it is the nearer end of the range, and 0 for NaN.
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
