// SPDX-License-Identifier: Apache-2.0
// The limits of swiglu as plain data, for CPU and CUDA.
#pragma once

#include "tessera/kernels/vector_math.h"

#include <limits>

namespace tessera::op {

// What the attributes do to one element, without branches; the plain unit has a loop of its own.
template <class C> struct Gated {
  C limit, alpha, shift;  // limit: infinity for none

  template <class Op>
  explicit Gated(const Op& op)
      : limit(op.limit > 0 ? static_cast<C>(op.limit) : std::numeric_limits<C>::infinity()),
        alpha(static_cast<C>(op.alpha)),
        shift(static_cast<C>(op.up_shift)) {}
  TESSERA_MATH C gate(C g) const { return g > limit ? limit : g; }
  TESSERA_MATH C up(C u) const {
    const C v = u > limit ? limit : u;
    return (v < -limit ? -limit : v) + shift;
  }
};

}  // namespace tessera::op
