// SPDX-License-Identifier: Apache-2.0
// Gradients of a list of parameters, on their way to a bucket: in the layouts that it expects, with
// one collective for all that the bucket's own axes do not sum.
#pragma once

#include "tessera/dist/layout.h"

#include <span>
#include <vector>

namespace tessera {

/// The local tensors of `gradients` (undefined ones stay so) in `layouts`. Those that are Partial
/// on an axis of which the layout says Replicate (norms under sequence parallelism) are summed
/// together, by one all_reduce for each set of such axes, which is under way when this returns. All
/// other differences are redistributed one by one. Whatever is summed here is summed in `sum`.
[[nodiscard]] TESSERA_API std::vector<Tensor> bring_gradients(std::span<const Tensor> gradients,
                                                              std::span<const Layout> layouts,
                                                              DType sum);

}  // namespace tessera
