// SPDX-License-Identifier: Apache-2.0
// The ceiling: how many floating-point operations per second matrix products reach on this rank's
// threads. A share of it says more than one of a data sheet's peak, which a CPU has none of.
#pragma once

#include "tessera/core/dtype.h"

namespace tessera::train {

/// Operations per second of a large product in `dtype`, the best of those that fit into about
/// `seconds`; at least two are timed.
TESSERA_API double measure_ceiling(DType dtype, double seconds = 0.12);

}  // namespace tessera::train
