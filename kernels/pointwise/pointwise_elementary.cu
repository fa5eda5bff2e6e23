// SPDX-License-Identifier: Apache-2.0
// CUDA elementary functions and activations of the pointwise family.
#include "tessera/kernels/pointwise/pointwise_elementary.h"
#include "tessera/kernels/pointwise/pointwise_loops.cuh"

namespace tessera::op {

template struct InstantiateOnCuda<pointwise_elementary_ops>;

}  // namespace tessera::op
