// SPDX-License-Identifier: Apache-2.0
// The learning rate schedule: linear warm-up, a stable phase and a decay, as torchtitan computes
// them. A function of the step, so there is no state to save or restore.
#pragma once

#include "tessera/models/config/fields.h"

#include <optional>
#include <string>

namespace tessera::train {

struct TESSERA_API ScheduleConfig {
  int64_t warmup_steps = 200;
  std::optional<int64_t> total_steps = {};  ///< length of the schedule; none: steps of the run
  std::optional<double> decay_ratio = {};
  std::string decay_type = "linear";
  double min_lr_factor = 0;
  void fields(config::Fields& f);
};

/// Factor of the learning rate in step `step` (from 0) of a run of `steps`.
TESSERA_API double lr_factor(const ScheduleConfig& config, int64_t step, int64_t steps);

}  // namespace tessera::train
