// SPDX-License-Identifier: Apache-2.0
// Drawings of simulated schedules: as texts, and as an SVG page.
#pragma once

#include "tessera/dist/schedules/simulate.h"

#include <span>
#include <string>
#include <vector>

namespace tessera {

/// A line per rank, in which time goes to the right: each action from its begin to its end, `0B3`
/// and dashes, and idle time as dots. All lines have one length. The unit of time is the shortest
/// action, and takes as many characters as the longest text. Empty for a step of more than 100,000
/// units.
[[nodiscard]] TESSERA_API std::vector<std::string> drawing_of(const PipelineSchedule& schedule,
                                                              const Simulation& simulation);

/// What a page shows of a schedule: `simulation` is what `simulate` says of it with these times.
struct DrawnSchedule {
  std::string title;
  PipelineSchedule schedule;
  ActionTimes times;
  Simulation simulation;
};
/// Schedules below one another, in one scale of time: a line per rank, and a rectangle per F, I, W
/// and B, also for each part of an overlap. Later stages of a rank are paler.
[[nodiscard]] TESSERA_API std::string svg_drawing(std::span<const DrawnSchedule> schedules);

}  // namespace tessera
