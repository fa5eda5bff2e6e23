// SPDX-License-Identifier: Apache-2.0
// Comparisons and logic of the pointwise family.
#include "tessera/kernels/pointwise/pointwise_logic.h"

#include "tessera/kernels/pointwise/pointwise_family_impl.h"

namespace tessera::op {

template struct InstantiatePointwise<pointwise_logic_ops>;

}  // namespace tessera::op
