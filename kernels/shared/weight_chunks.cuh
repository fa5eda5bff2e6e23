// SPDX-License-Identifier: Apache-2.0
// The gradient of a weight that all rows share: sums over chunks of rows, joined in their order.
#pragma once

#include "tessera/kernels/shared/launch.cuh"

#include <cstdint>

namespace tessera {

/// parts (chunks, d) -> sums (d).
template <class C, class T>
__global__ void join_chunks(const C* parts, T* sums, int64_t d, int64_t chunks) {
  for (int64_t i = first_item(); i < d; i += item_step()) {
    C sum = 0;
    for (int64_t c = 0; c < chunks; ++c) sum += parts[c * d + i];
    sums[i] = static_cast<T>(sum);
  }
}

}  // namespace tessera
