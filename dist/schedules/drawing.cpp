// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/schedules/drawing.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {

std::vector<std::string> drawing_of(const PipelineSchedule& schedule,
                                    const Simulation& simulation) {
  double unit = std::numeric_limits<double>::infinity();
  size_t widest = 0;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Span& span = simulation.ranks[rank].spans[i];
      if (span.end > span.begin) unit = std::min(unit, span.end - span.begin);
      widest = std::max(widest, text(schedule.ranks[rank][i]).size());
    }
  }
  constexpr double kMostUnits = 100'000;
  if (simulation.end / unit > kMostUnits) return {};
  const auto place = [&](double time) {
    return unit == std::numeric_limits<double>::infinity()
               ? size_t{0}
               : static_cast<size_t>(std::lround(time / unit)) * (widest + 1);
  };
  std::vector<std::string> lines;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::string& line = lines.emplace_back(place(simulation.end), '.');
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Span& span = simulation.ranks[rank].spans[i];
      const size_t from = place(span.begin), to = place(span.end);
      if (from == to) continue;
      std::string drawn = text(schedule.ranks[rank][i]);
      drawn.resize(to - from - 1, '-');
      line.replace(from, to - from, drawn + ' ');
    }
  }
  return lines;
}

}  // namespace tessera
