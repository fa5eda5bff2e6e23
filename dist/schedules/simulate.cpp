// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/schedules/simulate.h"

#include "tessera/core/error.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace tessera {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

class Clockwork {
 public:
  Clockwork(const PipelineSchedule& schedule, const ActionTimes& times)
      : schedule_(schedule),
        times_(times),
        next_(schedule.ranks.size()),
        in_flight_(schedule.ranks.size()),
        forwards_(
            static_cast<size_t>(schedule.stages()) * static_cast<size_t>(schedule.micro_batches),
            kNotYet),
        backwards_(forwards_) {
    result_.ranks.resize(schedule.ranks.size());
  }

  Simulation run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t rank = 0; rank < next_.size(); ++rank)
        while (advance(rank)) progress = true;
    }
    require_ends();
    return std::move(result_);
  }

 private:
  [[nodiscard]] size_t at(int stage, int micro_batch) const {
    return static_cast<size_t>(stage * schedule_.micro_batches + micro_batch);
  }
  [[nodiscard]] size_t rank_of(int stage) const {
    return static_cast<size_t>(schedule_.rank_of_stage[static_cast<size_t>(stage)]);
  }
  // The time from which the input of a part of an action is on its rank.
  [[nodiscard]] double ready(const Action& part) const {
    const std::optional<Action> need = input_of(part, schedule_.stages());
    if (!need) return 0;
    const std::vector<double>& of = need->kind == ActionKind::forward ? forwards_ : backwards_;
    const bool near = rank_of(need->stage) == rank_of(part.stage);
    return of[at(need->stage, need->micro_batch)] + (near ? 0 : times_.message);
  }
  // Runs the next action of a rank, if it can.
  bool advance(size_t rank) {
    const std::vector<Action>& own = schedule_.ranks[rank];
    if (next_[rank] == own.size()) return false;
    const Action& action = own[next_[rank]];
    const std::vector<Action> parts = parts_of(action);
    RankTimes& times = result_.ranks[rank];
    double begin = times.spans.empty() ? 0 : times.spans.back().end;
    for (const Action& part : parts) begin = std::max(begin, ready(part));
    if (begin == kNotYet) return false;
    double now = begin;
    for (const Action& part : parts) {
      now += times_.of(part);
      finish(rank, part, now);
    }
    times.spans.push_back({begin, now});
    times.busy += now - begin;
    result_.end = std::max(result_.end, now);
    ++next_[rank];
    return true;
  }
  void finish(size_t rank, const Action& part, double now) {
    if (part.kind == ActionKind::forward) {
      forwards_[at(part.stage, part.micro_batch)] = now;
      int& most = result_.ranks[rank].most_in_flight;
      most = std::max(most, ++in_flight_[rank]);
    }
    if (gives_input_gradient(part.kind)) backwards_[at(part.stage, part.micro_batch)] = now;
    if (ends_backward(part.kind)) --in_flight_[rank];
  }
  void require_ends() const {
    std::string waits;
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] == schedule_.ranks[rank].size()) continue;
      const Action& action = schedule_.ranks[rank][next_[rank]];
      for (const Action& part : parts_of(action)) {
        if (ready(part) != kNotYet) continue;
        const Action need = *input_of(part, schedule_.stages());
        waits += concat(waits.empty() ? "" : "; ", "rank ", rank, " at ", text(action), " (action ",
                        next_[rank], ") needs ", text(need), " of rank ", rank_of(need.stage));
        break;
      }
    }
    if (!waits.empty())
      fail<ValueError>("pipeline schedule", "ranks wait for each other for ever: ", waits);
  }

  const PipelineSchedule& schedule_;
  const ActionTimes& times_;
  Simulation result_;
  std::vector<size_t> next_;
  std::vector<int> in_flight_;
  std::vector<double> forwards_, backwards_;  // when they ended, by stage and micro-batch
};

}  // namespace

double ActionTimes::of(const Action& action) const {
  if (!measured.empty()) {
    if (const auto at = measured.find(text(action)); at != measured.end()) return at->second;
  }
  switch (action.kind) {
    case ActionKind::forward: return forward;
    case ActionKind::backward_input: return backward_input;
    case ActionKind::backward_weight: return backward_weight;
    case ActionKind::backward: return backward_input + backward_weight;
    case ActionKind::overlap: {
      double sum = 0;
      for (const Action& part : action.parts) sum += of(part);
      return sum;
    }
    default: return 0;
  }
}

double Simulation::idle_in_span(size_t rank) const {
  const RankTimes& times = ranks[rank];
  if (times.spans.empty()) return 0;
  return times.spans.back().end - times.spans.front().begin - times.busy;
}

Simulation simulate(const PipelineSchedule& schedule, const ActionTimes& times) {
  return Clockwork(schedule, times).run();
}

}  // namespace tessera
