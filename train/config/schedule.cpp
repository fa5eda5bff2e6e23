// SPDX-License-Identifier: Apache-2.0
// Warm-up and decay count from one, so neither the first nor the last step has a rate of 0. Halves
// are rounded as in Python, so the phases begin at the same steps as torchtitan's.
#include "tessera/train/config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::train {

void ScheduleConfig::fields(config::Fields& f) {
  f.add("warmup_steps", warmup_steps, "steps of linear learning rate warm-up",
        {.min = 0, .max = 1e12, .unit = "steps"});
  f.add("total_steps", total_steps, "length of the learning rate schedule; none: training.steps",
        {.min = 1, .max = 1e12, .unit = "steps"});
  f.add("decay_ratio", decay_ratio,
        "fraction of the steps, at the end, in which lr decays; none: all steps after warm-up",
        {.min = 0, .max = 1});
  f.add("decay_type", decay_type, "shape of the learning rate decay",
        {.choices = {"linear", "sqrt", "cosine"}});
  f.add("min_lr_factor", min_lr_factor, "final learning rate as a fraction of optimizer.lr",
        {.min = 0, .max = 1});
}

std::vector<std::string> ScheduleConfig::warnings(int64_t steps) const {
  const int64_t total = total_steps.value_or(steps);
  if (warmup_steps <= 1 || warmup_steps < steps || (warmup_steps == steps && total > steps))
    return {};
  const std::string fields =
      concat("lr_scheduler.warmup_steps ", warmup_steps, " and ",
             total_steps ? concat("lr_scheduler.total_steps ", total, ", ") : "", "training.steps ",
             steps, ": ");
  if (warmup_steps >= total)
    return {concat(fields,
                   "warm-up is all of the schedule, and only its last step has the whole "
                   "optimizer.lr")};
  return {concat(fields, "the run ends within warm-up")};
}

SchedulePhases phases_of(const ScheduleConfig& c, int64_t steps, int64_t from) {
  const int64_t total = c.total_steps.value_or(steps);
  const int64_t warmup = std::min(c.warmup_steps, total);
  int64_t decay = total - warmup;
  if (c.decay_ratio) {
    // Halves are rounded to even, as in Python's round.
    decay = std::min(
        decay, static_cast<int64_t>(std::nearbyint(static_cast<double>(total) * *c.decay_ratio)));
  }
  // Its last step has the whole rate.
  SchedulePhases phases{.warmup = warmup > from + 1 ? warmup : 0};
  if (decay == 0) return phases;
  phases.decay_start = total + 1 - decay;  // one beyond the end, so that the last step still learns
  phases.decay = decay;
  phases.decay_type = c.decay_type;
  phases.min_lr_factor = c.min_lr_factor;
  return phases;
}

double SchedulePhases::factor(int64_t step) const {
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (step < decay_start) return 1;
  const double progress =
      std::min(1.0, static_cast<double>(step + 1 - decay_start) / static_cast<double>(decay));
  double factor = 1 - progress;
  if (decay_type == "sqrt") factor = 1 - std::sqrt(progress);
  if (decay_type == "cosine") factor = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return min_lr_factor + (1 - min_lr_factor) * factor;
}

double lr_factor(const ScheduleConfig& c, int64_t step, int64_t steps) {
  return phases_of(c, steps).factor(step);
}

}  // namespace tessera::train
