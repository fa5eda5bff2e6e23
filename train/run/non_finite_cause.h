// SPDX-License-Identifier: Apache-2.0
// Why a step was not finite: a parameter that already was not, or the first op with a result that
// is not, found by repeating the step and checking each op.
#pragma once

#include "tessera/train/run/run_facts.h"
#include "tessera/train/step/run_parts.h"

#include <cstdint>
#include <string>

namespace tessera::train {

/// The step after `steps` steps, whose rows are the feed's next, with the random numbers that it
/// had. "parameter norm.weight on rank 1 already is not finite", "first made by op mul in module
/// layers.1 on ranks 0, 1". Collective: all ranks repeat all of it, since they meet in its
/// collectives.
[[nodiscard]] std::string non_finite_cause(const RunFacts& run, RunParts& parts, int64_t steps);

}  // namespace tessera::train
