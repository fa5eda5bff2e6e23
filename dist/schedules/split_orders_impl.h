// SPDX-License-Identifier: Apache-2.0
// Orders of schedules with a split backward: W fills the time in which 1F1B idles.
#pragma once

#include "tessera/dist/schedules/schedule.h"

#include <vector>

namespace tessera::schedules {

/// Each B becomes an I, whose W comes behind the I that is `later` ones later, or at the end.
[[nodiscard]] std::vector<Action> split_backwards(const std::vector<Action>& whole, int later);

/// ZB-V of Qi et al. 2023, for ranks with two stages of a V. With fewer than 2 ranks - 1
/// micro-batches it is the order of so many, without the others.
[[nodiscard]] std::vector<Action> zbv_zero_bubble(const ScheduleShape& shape, int rank);

/// DeepSeek's DualPipe with half of its ranks, for two stages of a V and at least as many
/// micro-batches as stages: a forward of one stage overlaps a backward of the other one.
[[nodiscard]] std::vector<Action> dual_pipe_v(const ScheduleShape& shape, int rank);

}  // namespace tessera::schedules
