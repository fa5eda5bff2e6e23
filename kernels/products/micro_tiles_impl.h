// SPDX-License-Identifier: Apache-2.0
// Products of bf16 blocks summed in f32 by the machine's matrix tiles (Intel AMX), where it has
// them.
#pragma once

#include "tessera/core/dtype.h"

#include <cstdint>

namespace tessera::micro {

/// Whether this machine has tiles and lets the process use them. Instruction sets chosen below
/// AVX-512 leave them out.
bool has_tiles();
/// The same of vector instructions that add products of pairs of bf16 (AVX512-BF16), which machines
/// with tiles have, and some without.
bool has_pair_products();

/// While one lives, its thread's tiles are set up for tile_block.
class TileScope {
 public:
  TileScope();
  ~TileScope();
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

/// c (m, n) = or += a (m, k) b (k, n), where b lies in pairs of rows: word (i, j) holds b[2i][j]
/// below and b[2i + 1][j] above. m and n are multiples of 16, k of 32; rows step by lda elements,
/// ldb words and ldc elements.
void tile_block(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const uint32_t* b,
                int64_t ldb, float* c, int64_t ldc, bool accumulate);

}  // namespace tessera::micro
