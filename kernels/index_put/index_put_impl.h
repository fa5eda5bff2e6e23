// SPDX-License-Identifier: Apache-2.0
// How index_put_ accumulates, on CPU and CUDA.
#pragma once

#include "tessera/core/op.h"

#include <type_traits>

namespace tessera::op {

/// a + b, rounded to T; whole numbers wrap around.
template <class T> TESSERA_HD T sum_of(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return b;  // meta refuses sums of truths
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return static_cast<T>(static_cast<compute_t<T>>(a) + static_cast<compute_t<T>>(b));
  }
}

}  // namespace tessera::op
