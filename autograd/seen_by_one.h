// SPDX-License-Identifier: Apache-2.0
// Who may write a gradient in place.
#pragma once

#include "tessera/core/tensor.h"

namespace tessera {

/// Whether nobody but the holder of this one handle sees the values of `gradient`, so that they may
/// be written in place; false for views with gaps.
[[nodiscard]] TESSERA_API bool seen_by_one(const Tensor& gradient);

}  // namespace tessera
