// SPDX-License-Identifier: Apache-2.0
// Many counters of rng::philox at once on the CPU, all lanes of a block of counters in one vector,
// and where the rows of a piece lie in the whole whose elements are counted.
#pragma once

#include "tessera/core/rng.h"
#include "tessera/core/shape.h"
#include "tessera/kernels/vector_math.h"

namespace tessera {

inline constexpr int64_t kPhiloxBlocks = 16;  // counters per batch
inline constexpr int64_t kPhiloxBatch = 4 * kPhiloxBlocks;

/// Bits of the counters block, block + 1, ...: bits[e][j] is word e of counter block + j.
TESSERA_INLINE void philox_batch(RngKey key, uint64_t block, uint32_t (&bits)[4][kPhiloxBlocks]) {
  auto& [c0, c1, c2, c3] = bits;
  for (int64_t j = 0; j < kPhiloxBlocks; ++j) {
    const uint64_t counter = block + static_cast<uint64_t>(j);
    c0[j] = static_cast<uint32_t>(counter);
    c1[j] = static_cast<uint32_t>(counter >> 32);
    c2[j] = static_cast<uint32_t>(key.stream);
    c3[j] = static_cast<uint32_t>(key.stream >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 1  // unrolled before it is vectorised, the loop would stay scalar
    for (int64_t j = 0; j < kPhiloxBlocks; ++j) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[j], p1 = uint64_t{0xCD9E8D57u} * c2[j];
      const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1[j] ^ k0,
                     n2 = static_cast<uint32_t>(p0 >> 32) ^ c3[j] ^ k1;
      c1[j] = static_cast<uint32_t>(p1);
      c3[j] = static_cast<uint32_t>(p0);
      c0[j] = n0;
      c2[j] = n2;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

}  // namespace tessera
