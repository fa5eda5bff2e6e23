// SPDX-License-Identifier: Apache-2.0
// PipelineSchedule: the order in which each rank of a pipeline computes, without tensors. Made by
// name, or read from a CSV of torch.distributed.pipelining with a line per rank. It has no idle
// steps: a rank waits until the input of its next action has come.
#pragma once

#include "tessera/dist/schedules/action.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The sizes that a schedule is made for.
struct ScheduleShape {
  int ranks = 1;
  int stages_per_rank = 1;
  int micro_batches = 1;
  [[nodiscard]] int stages() const { return ranks * stages_per_rank; }
};

struct PipelineSchedule {
  std::vector<std::vector<Action>> ranks = {};  ///< actions of each rank, in order
  std::vector<int> rank_of_stage = {};
  int micro_batches = 0;
  [[nodiscard]] int stages() const { return static_cast<int>(rank_of_stage.size()); }
};

/// A row of the table of schedules.
struct NamedSchedule {
  std::string_view name;  ///< as torch.distributed.pipelining has it
  std::string_view help;
  bool several_stages;  ///< whether a rank may have more than one
  /// Stage s is on rank s while s < ranks, then the ranks come in reverse; else on s mod ranks.
  bool v_shaped = false;
  /// The actions of a rank.
  std::vector<Action> (*order)(const ScheduleShape& shape, int rank);
  /// Why it does not fit, and what would; empty: it fits. Null: any shape does.
  std::string (*misfit)(const ScheduleShape& shape) = nullptr;
};
[[nodiscard]] TESSERA_API std::span<const NamedSchedule> named_schedules();

/// The schedule of this name. ValueError: there is none of it, or it does not fit the shape.
[[nodiscard]] TESSERA_API PipelineSchedule make_schedule(std::string_view name,
                                                         const ScheduleShape& shape);
/// The schedule in which each rank does these actions: a stage is on the rank of its first action.
/// ValueError, with rank, place and action: one that does not compute. Errors as of check_schedule.
[[nodiscard]] TESSERA_API PipelineSchedule make_schedule(std::vector<std::vector<Action>> ranks);
/// A schedule from the text of a CSV: a line per rank, a cell per action, empty cells for idle
/// steps. ValueError, with line and cell: no action, or one that does not compute. Errors as of
/// check_schedule.
[[nodiscard]] TESSERA_API PipelineSchedule read_schedule(std::string_view csv);
/// The CSV of such actions, without idle steps.
[[nodiscard]] TESSERA_API std::string schedule_csv(const std::vector<std::vector<Action>>& ranks);
/// ValueError, which names rank, place and action: a stage on two ranks or on none; a forward or
/// backward that is missing, occurs twice, or comes too early in the order of its own rank.
/// `simulate` finds ranks that wait for each other for ever.
TESSERA_API void check_schedule(const PipelineSchedule& schedule);

}  // namespace tessera
