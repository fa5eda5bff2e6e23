// SPDX-License-Identifier: Apache-2.0
// CUDA comparisons and logic of the pointwise family.
#include "tessera/kernels/pointwise/pointwise_logic.h"
#include "tessera/kernels/pointwise/pointwise_loops.cuh"

namespace tessera::op {

template struct InstantiateOnCuda<pointwise_logic_ops>;

}  // namespace tessera::op
