// SPDX-License-Identifier: Apache-2.0
// CUDA of the pointwise family's smaller kinds: activations, more arithmetic, losses.
#include "tessera/kernels/pointwise/pointwise_activations.h"
#include "tessera/kernels/pointwise/pointwise_loops.cuh"
#include "tessera/kernels/pointwise/pointwise_losses.h"
#include "tessera/kernels/pointwise/pointwise_rounding.h"

namespace tessera::op {

template struct InstantiateOnCuda<pointwise_activations_ops>;
template struct InstantiateOnCuda<pointwise_rounding_ops>;
template struct InstantiateOnCuda<pointwise_losses_ops>;

}  // namespace tessera::op
