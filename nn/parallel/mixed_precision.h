// SPDX-License-Identifier: Apache-2.0
// Mixed precision without data parallelism: parameters and optimizer steps are f32, computation
// uses a narrower dtype. fully_shard and replicate do the same by their policies; all are units
// (unit_impl.h). There is no autocast per op: norms, softmax and the loss compute f32 statistics in
// their rooms.
#pragma once

#include "tessera/nn/parallel/policy.h"

#include <span>

namespace tessera::nn {

/// Makes `root` a unit, and each of `units` below it. In a unit's forward its floating parameters
/// are copies in `policy.param`, and floating inputs are cast to it; outside they are unchanged.
/// The copies are made when the parameters have changed, so once per step for any number of
/// forwards, recomputes and micro-batches. Gradients are cast back, also by grad(), and summed in
/// the parameters' dtype; `policy.reduce` is not used. Members may be assigned other tensors
/// between forwards, but must not be removed. A parameter of two units has a copy in each.
/// DTypeError unless dtypes are floating; UsageError: a module that is wrapped already.
TESSERA_API void mixed_precision(Module& root, std::span<Module* const> units,
                                 const MixedPrecision& policy);
inline void mixed_precision(Module& root, std::span<Module* const> units, DType dtype) {
  mixed_precision(root, units, MixedPrecision{.param = dtype});
}

}  // namespace tessera::nn
