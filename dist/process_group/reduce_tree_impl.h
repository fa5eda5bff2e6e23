// SPDX-License-Identifier: Apache-2.0
// The order in which ranks' values are reduced: a balanced binary tree over the group's ranks.
// A tree over n leaves splits at the largest power of two below n, so the tree over a flattened
// axis is the tree of the slow axis over trees of the fast one whenever the fast one is a power of
// two: a sum over nested axes equals the sum over the flattened one, bit for bit.
#pragma once

#include "tessera/dist/process_group/process_group.h"

namespace tessera {

/// outputs[j][i] = the reduction over s of sources[s][i], for i < count and every j. Outputs may be
/// sources; each is written after all of its element's sources were read. Uses the rank's threads.
/// DTypeError on bool, which is reduced as u8.
void reduce_tree(DType dtype, ReduceOp op, std::span<const void* const> sources,
                 std::span<void* const> outputs, int64_t count);

/// The dtype whose reduction is that of `t`: of bool, max is any and min is all.
inline DType reduced_as(DType t) { return t == DType::bool_ ? DType::u8 : t; }

}  // namespace tessera
