// SPDX-License-Identifier: Apache-2.0
// The learning rate schedule: linear warm-up, a stable phase and a decay, as torchtitan computes
// them. A function of the step, so there is no state to save or restore.
#pragma once

#include "tessera/models/config/fields.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tessera::train {

struct TESSERA_API ScheduleConfig {
  int64_t warmup_steps = 200;
  std::optional<int64_t> total_steps = {};  ///< length of the schedule; none: steps of the run
  std::optional<double> decay_ratio = {};
  std::string decay_type = "linear";
  double min_lr_factor = 0;
  void fields(config::Fields& f);
  /// Lines about a run of `steps` that has no time after its warm-up.
  [[nodiscard]] std::vector<std::string> warnings(int64_t steps) const;
};

/// The phases of a schedule, in steps of the run from 0.
struct TESSERA_API SchedulePhases {
  int64_t warmup = 0;                                         ///< steps
  int64_t decay_start = std::numeric_limits<int64_t>::max();  ///< this far off if there is no decay
  int64_t decay = 0;                                          ///< steps
  std::string decay_type = {};
  double min_lr_factor = 0;
  [[nodiscard]] double factor(int64_t step) const;
  bool operator==(const SchedulePhases&) const = default;
};
/// Of a run of `steps`, which is before step `from`: phases that differ give other factors, and a
/// phase that is over is none.
[[nodiscard]] TESSERA_API SchedulePhases phases_of(const ScheduleConfig& config, int64_t steps,
                                                   int64_t from = 0);

/// Factor of the learning rate in step `step` (from 0) of a run of `steps`.
TESSERA_API double lr_factor(const ScheduleConfig& config, int64_t step, int64_t steps);

}  // namespace tessera::train
