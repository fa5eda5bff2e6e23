// SPDX-License-Identifier: Apache-2.0
// The peak of this machine's arithmetic: the base of model FLOPs utilization (mfu) on a CPU, which
// has no peak on a data sheet.
#pragma once

#include "tessera/core/dtype.h"

namespace tessera {

/// FLOP/s that this rank's threads together cannot exceed in matmuls of `dtype`: multiply-adds on
/// registers alone, by the widest instructions that matmul has for the dtype. Each thread repeats
/// for about `seconds`, at least 8 times, and its fastest repeat counts, so other programs on the
/// same cores do not lower it. DTypeError unless `dtype` is floating.
TESSERA_API double measure_peak(DType dtype, double seconds = 0.02);

}  // namespace tessera
