// SPDX-License-Identifier: Apache-2.0
// The orders of GPipe (Huang et al. 2019), 1F1B (PipeDream, Narayanan et al. 2019), breadth-first
// (Lamy-Poirier 2022) and interleaved 1F1B (Megatron-LM, Narayanan et al. 2021), the last as torch
// cuts micro-batches into rounds; and the table of these and those with a split backward.
#include "tessera/core/message.h"
#include "tessera/dist/schedules/schedule.h"
#include "tessera/dist/schedules/split_orders_impl.h"

#include <algorithm>
#include <array>

namespace tessera {
namespace {

using Order = std::vector<Action>;

void add(Order& order, ActionKind kind, int stage, int micro_batch) {
  order.push_back({.stage = stage, .kind = kind, .micro_batch = micro_batch});
}

Order gpipe(const ScheduleShape& shape, int rank) {
  Order order;
  for (const ActionKind kind : {ActionKind::forward, ActionKind::backward})
    for (int m = 0; m < shape.micro_batches; ++m) add(order, kind, rank, m);
  return order;
}

Order one_f_one_b(const ScheduleShape& shape, int rank) {
  const int warm_up = std::min(shape.micro_batches, shape.ranks - 1 - rank);
  Order order;
  for (int m = 0; m < warm_up; ++m) add(order, ActionKind::forward, rank, m);
  for (int m = 0; m < shape.micro_batches; ++m) {
    if (warm_up + m < shape.micro_batches) add(order, ActionKind::forward, rank, warm_up + m);
    add(order, ActionKind::backward, rank, m);
  }
  return order;
}

Order looped_bfs(const ScheduleShape& shape, int rank) {
  Order order;
  for (int s = rank; s < shape.stages(); s += shape.ranks)
    for (int m = 0; m < shape.micro_batches; ++m) add(order, ActionKind::forward, s, m);
  for (int s = shape.stages() - shape.ranks + rank; s >= 0; s -= shape.ranks)
    for (int m = shape.micro_batches - 1; m >= 0; --m) add(order, ActionKind::backward, s, m);
  return order;
}

// The micro-batches go in rounds through a rank's stages: each round of them through the first
// stage, then through the second.
int rounds_of(const ScheduleShape& shape) { return std::max(1, shape.micro_batches / shape.ranks); }

// Each rank begins its backwards by `ahead` forwards later than the next one.
Order in_rounds(const ScheduleShape& shape, int rank, int ahead) {
  const int v = shape.stages_per_rank, round = shape.micro_batches / rounds_of(shape),
            all = v * shape.micro_batches;
  const int warm_up = std::min(all, (v - 1) * round + ahead * (shape.ranks - 1 - rank));
  std::vector<int> forwards(static_cast<size_t>(v)), backwards(static_cast<size_t>(v));
  Order order;
  const auto next = [&](ActionKind kind, std::vector<int>& counts, int local) {
    add(order, kind, local * shape.ranks + rank, counts[static_cast<size_t>(local)]++);
  };
  for (int i = 0; i < warm_up + all; ++i) {
    if (i < all) next(ActionKind::forward, forwards, i / round % v);
    if (i >= warm_up) next(ActionKind::backward, backwards, v - 1 - (i - warm_up) / round % v);
  }
  return order;
}

Order interleaved(const ScheduleShape& shape, int rank) { return in_rounds(shape, rank, 2); }

// ZB-H1 (Qi et al. 2023) in rounds: ranks keep no more micro-batches than under 1F1B.
Order interleaved_zero_bubble(const ScheduleShape& shape, int rank) {
  return schedules::split_backwards(in_rounds(shape, rank, 1), rank);
}

std::string uneven_rounds(const ScheduleShape& shape) {
  const int rounds = rounds_of(shape);
  if (shape.micro_batches % rounds == 0) return {};
  const int fewer = shape.micro_batches / shape.ranks * shape.ranks;
  return concat("its micro-batches go through ", counted(shape.ranks, "rank"), " in ",
                counted(rounds, "round"), " of equal size; give ", fewer, " or ",
                fewer + shape.ranks);
}

std::string not_two_stages(const ScheduleShape& shape) {
  if (shape.stages_per_rank == 2) return {};
  return concat("it has exactly 2 stages per rank; give ", 2 * shape.ranks, " stages");
}

std::string too_few_for_v(const ScheduleShape& shape) {
  std::string misfit = not_two_stages(shape);
  if (misfit.empty() && shape.micro_batches < shape.stages())
    misfit = concat("it has at least as many micro-batches as stages; give ", shape.stages());
  return misfit;
}

constexpr std::array<NamedSchedule, 7> kSchedules{
    {{.name = "GPipe",
      .help = "all forwards, then all backwards",
      .several_stages = false,
      .order = gpipe},
     {.name = "1F1B",
      .help =
          "a backward as soon as there is one: at most as many micro-batches in flight as ranks",
      .several_stages = false,
      .order = one_f_one_b},
     {.name = "LoopedBFS",
      .help = "GPipe through several stages of a rank: all micro-batches through each",
      .several_stages = true,
      .order = looped_bfs},
     {.name = "Interleaved1F1B",
      .help = "1F1B through several stages of a rank, in rounds of micro-batches",
      .several_stages = true,
      .order = interleaved,
      .misfit = uneven_rounds},
     {.name = "InterleavedZeroBubble",
      .help = "Interleaved1F1B that computes gradients of weights (W) apart from those of inputs "
              "(I), where it would idle",
      .several_stages = true,
      .order = interleaved_zero_bubble,
      .misfit = uneven_rounds},
     {.name = "ZBVZeroBubble",
      .help = "two stages per rank, of which the first rank has the first and the last; ranks do "
              "not idle between their actions where F, I and W take equally long",
      .several_stages = true,
      .v_shaped = true,
      .order = schedules::zbv_zero_bubble,
      .misfit = not_two_stages},
     {.name = "DualPipeV",
      .help = "stages as of ZBVZeroBubble; the forward of one overlaps the backward of the other",
      .several_stages = true,
      .v_shaped = true,
      .order = schedules::dual_pipe_v,
      .misfit = too_few_for_v}}};

std::string names_of(bool (*wanted)(const NamedSchedule&)) {
  std::string names;
  for (const NamedSchedule& s : kSchedules)
    if (wanted(s)) names += concat(names.empty() ? "" : ", ", s.name);
  return names;
}

int rank_of(int stage, const ScheduleShape& shape, bool v_shaped) {
  return v_shaped && stage >= shape.ranks ? shape.stages() - 1 - stage : stage % shape.ranks;
}

}  // namespace

std::span<const NamedSchedule> named_schedules() { return kSchedules; }

PipelineSchedule make_schedule(std::string_view name, const ScheduleShape& shape) {
  const auto* const found = std::ranges::find(kSchedules, name, &NamedSchedule::name);
  if (found == kSchedules.end()) {
    fail<ValueError>("pipeline schedule", "unknown schedule '", name, "'; there are ",
                     names_of([](const NamedSchedule&) { return true; }));
  }
  if (shape.ranks < 1 || shape.stages_per_rank < 1 || shape.micro_batches < 1) {
    fail<ValueError>("pipeline schedule", name, " of ", counted(shape.ranks, "rank"), ", ",
                     counted(shape.stages_per_rank, "stage"), " per rank, ",
                     counted(shape.micro_batches, "micro-batch"),
                     ": expected at least one of each");
  }
  std::string misfit;
  if (shape.stages_per_rank > 1 && !found->several_stages)
    misfit = concat("it has one stage per rank; several have ",
                    names_of([](const NamedSchedule& s) { return s.several_stages; }));
  else if (found->misfit) misfit = found->misfit(shape);
  if (!misfit.empty()) {
    fail<ValueError>("pipeline schedule", name, " does not fit ", counted(shape.stages(), "stage"),
                     " on ", counted(shape.ranks, "rank"), " and ",
                     counted(shape.micro_batches, "micro-batch"), ": ", misfit);
  }
  PipelineSchedule schedule{.micro_batches = shape.micro_batches};
  for (int s = 0; s < shape.stages(); ++s)
    schedule.rank_of_stage.push_back(rank_of(s, shape, found->v_shaped));
  for (int r = 0; r < shape.ranks; ++r) schedule.ranks.push_back(found->order(shape, r));
  return schedule;
}

}  // namespace tessera
