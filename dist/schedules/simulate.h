// SPDX-License-Identifier: Apache-2.0
// When each action of a schedule runs, if every action takes a given time: whether the ranks come
// to an end at all, how long they idle, and how many micro-batches a rank keeps at once.
#pragma once

#include "tessera/dist/schedules/schedule.h"

#include <map>
#include <string>
#include <vector>

namespace tessera {

/// How long actions take, in any unit.
struct ActionTimes {
  double forward = 1, backward_input = 1, backward_weight = 1;
  double message = 0;  ///< from the end of an action to where another rank may use what it gave
  std::map<std::string, double> measured = {};  ///< of single actions, by their texts, instead
  [[nodiscard]] double of(const Action& action) const;
};

struct Span {
  double begin = 0, end = 0;
};

struct RankTimes {
  std::vector<Span> spans;  ///< of its actions
  double busy = 0;          ///< time in actions
  int most_in_flight = 0;   ///< forwards whose backward has not ended, of all its stages, at most
};

struct Simulation {
  std::vector<RankTimes> ranks;
  double end = 0;  ///< of the step
  /// Time in which a rank does nothing.
  [[nodiscard]] double idle(size_t rank) const { return end - ranks[rank].busy; }
  /// Time in which a rank does nothing between its first action and its last one.
  [[nodiscard]] double idle_in_span(size_t rank) const;
};

/// Each rank does its actions in order, each as soon as its input has come (input_of). ValueError:
/// ranks that wait for each other for ever, with the next action of each and the input that it
/// lacks.
[[nodiscard]] TESSERA_API Simulation simulate(const PipelineSchedule& schedule,
                                              const ActionTimes& times = {});

}  // namespace tessera
