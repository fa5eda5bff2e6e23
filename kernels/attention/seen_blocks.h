// SPDX-License-Identifier: Apache-2.0
// How much work the queries of a sequence are, for those who cut it.
#pragma once

#include "tessera/kernels/attention/attention.h"

namespace tessera {

/// How many blocks of 64 keys each block of 64 queries reads, which is its work: (B or 1, T / 64)
/// i64, T / 64 rounded up; one row where all batches see the same. No entry above 0: nothing is
/// seen. Operands lie on the CPU; they and errors are those of scaled_dot_product_attention.
TESSERA_API Tensor count_seen_blocks(int64_t batches, int64_t queries, int64_t keys,
                                     const AttentionOptions& options);

}  // namespace tessera
