// SPDX-License-Identifier: Apache-2.0
// Masks on the host, for those who cut a sequence: how much work its queries are (seen_keys.cpp),
// and the block map of a part of it (block_map.cpp).
#pragma once

#include "tessera/kernels/attention/attention.h"

namespace tessera {

/// How many blocks of 64 keys each block of 64 queries reads, which is its work: (B or 1, T / 64)
/// i64, T / 64 rounded up; one row where all batches see the same. No entry above 0: nothing is
/// seen. Operands lie on the CPU; they and errors are those of scaled_dot_product_attention.
TESSERA_API Tensor count_seen_blocks(int64_t batches, int64_t queries, int64_t keys,
                                     const AttentionOptions& options);

/// The block map of the queries and keys at these places of a whole map's: (T) or (B, T), and (S)
/// or (B, S), i64, on the CPU. Blocks that move as wholes keep their value and bits; others get
/// bits. ShapeError, DTypeError; IndexError: a place beyond the map; ValueError: a block would mix
/// what the mask says with what the map says.
TESSERA_API BlockMap select_block_map(const BlockMap& map, const Tensor& queries,
                                      const Tensor& keys);

}  // namespace tessera
