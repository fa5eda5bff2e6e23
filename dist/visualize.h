// SPDX-License-Identifier: Apache-2.0
// Layouts as readable text.
#pragma once

#include "tessera/dist/layout.h"

#include <string>

namespace tessera {

/// The ranks of each shard of a tensor of this global shape: a row for 1-D, a grid for 2-D, a list
/// of shards otherwise; then ranks without elements, and axes with a pending reduction. LayoutError
/// if the layout does not fit the shape.
TESSERA_API std::string visualize_sharding(const Shape& shape, Layout layout);
/// The same for a tensor; for a plain one, that this rank holds all of it.
TESSERA_API std::string visualize_sharding(const Tensor& x);

/// Dtype, global shape, mesh, placements, this rank's shard and its bytes, requires_grad.
TESSERA_API std::string describe(const Tensor& x);

}  // namespace tessera
