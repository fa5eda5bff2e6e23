// SPDX-License-Identifier: Apache-2.0
// The factors by which attention sinks scale the rows of o, on CPU and CUDA.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/kernels/vector_math.h"

#include <cstdint>
#include <limits>

namespace tessera::op {

/// The rows of o, one after the other in memory, with the factor of each. Plain data, so that it
/// travels in a kernel's arguments.
template <class C> struct Gates {
  const C *lse, *sink;
  int64_t heads, times;
  bool heads_inner;

  Gates(const Tensor& o, const Tensor& l, const Tensor& s, bool inner)
      : lse(data_of(l)),
        sink(data_of(s)),
        heads(o.shape()[inner ? 2 : 1]),
        times(o.shape()[inner ? 1 : 2]),
        heads_inner(inner) {}
  static const C* data_of(const Tensor& x) {
    return x.device().is_cpu() ? x.data<C>() : x.device_data<C>();
  }
  /// Where the statistics of a row of o stand.
  [[nodiscard]] TESSERA_MATH int64_t place(int64_t row) const {
    if (!heads_inner) return row;
    const int64_t b = row / heads / times, t = row / heads % times;
    return (b * heads + row % heads) * times + t;
  }
  [[nodiscard]] TESSERA_MATH static C of(C l, C s) {
    // It saw nothing, whatever the sink is.
    return l == -std::numeric_limits<C>::infinity() ? C(0) : vmath::sigmoid(l - s);
  }
  [[nodiscard]] TESSERA_MATH C of(int64_t place) const {
    return of(lse[place], sink[place / times % heads]);
  }
};

}  // namespace tessera::op
