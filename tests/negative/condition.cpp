// SPDX-License-Identifier: Apache-2.0
// Conditions on a tensor, which do not compile: what would be asked, whether there is a tensor or
// whether its values are true, must be said.
#include "tessera/kernels/pointwise/pointwise.h"

namespace tessera {

inline int use(const Tensor& x) {
#ifdef OF_A_HANDLE
  if (x) return 1;
#elif defined(OF_A_COMPARISON)
  if (x > 0) return 1;
#else
  if (x.defined() && (x > 0).item() != 0) return 1;
#endif
  return 0;
}

}  // namespace tessera
