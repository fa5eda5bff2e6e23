// SPDX-License-Identifier: Apache-2.0
// Layouts for people to read.
#pragma once

#include "tessera/dist/layout.h"

#include <string>

namespace tessera {

/// Which ranks hold which part of a tensor of this global shape: a row for 1-D, a grid for 2-D, a
/// list of parts otherwise; then who holds nothing, and over which axes parts are still to be
/// reduced. LayoutError where the layout does not fit the shape.
TESSERA_API std::string visualize_sharding(const Shape& shape, Layout layout);
/// The same of a tensor; of a plain one, that this rank holds the whole.
TESSERA_API std::string visualize_sharding(const Tensor& x);

/// Dtype, global shape, mesh, placements, this rank's part and its bytes, requires_grad.
TESSERA_API std::string describe(const Tensor& x);

}  // namespace tessera
