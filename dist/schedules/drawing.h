// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tessera/dist/schedules/simulate.h"

#include <string>
#include <vector>

namespace tessera {

/// A line per rank, in which time goes to the right: each action from its begin to its end, `0B3`
/// and dashes, and idle time as dots. All lines have one length. The unit of time is the shortest
/// action, and takes as many characters as the longest text. Empty for a step of more than 100,000
/// units.
[[nodiscard]] TESSERA_API std::vector<std::string> drawing_of(const PipelineSchedule& schedule,
                                                              const Simulation& simulation);

}  // namespace tessera
