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

/// Products of 32 rows of a, or 16, in the order in which they are read, so that they stream: for
/// each 32 of k, the rows' 32 numbers; b in panels of 32 columns, each in pairs of rows as above.
/// sums (32, 32) = a b, for one panel.
void tile_sums(int64_t rows, int64_t k, const bf16* a, const uint32_t* b, float* sums);
/// The same for `panels` panels, rounded to rows of c, c_row elements apart; sums: (2, 32, 32).
void tile_panels(int64_t rows, int64_t k, const bf16* a, const uint32_t* b, int64_t panels,
                 float* sums, bf16* c, int64_t c_row);

}  // namespace tessera::micro
