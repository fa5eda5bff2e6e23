// SPDX-License-Identifier: Apache-2.0
// Mixed precision as a pass: a policy of data parallelism, on one rank too.
#pragma once

#include "tessera/nn/parallel/policy.h"
#include "tessera/train/parallel/pass.h"

namespace tessera::train {

struct MixedPrecision {
  struct Fields {};  // they are in `training`
  static ParallelPass row();
};

/// The dtypes that differ from the parameters' own.
[[nodiscard]] TESSERA_API nn::MixedPrecision precision_of(const PassSettings& settings);

}  // namespace tessera::train
