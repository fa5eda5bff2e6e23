// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/schedules/passes.h"

#include "tessera/core/error.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace tessera {
namespace {

// The stages that the actions from `at` on compute in, at most `most`, in their order.
std::vector<int> next_stages(const std::vector<Action>& actions, size_t at, size_t most) {
  std::vector<int> stages;
  for (; at < actions.size() && stages.size() < most; ++at) {
    for (const Action& part : parts_of(actions[at]))
      if (std::ranges::find(stages, part.stage) == stages.end()) stages.push_back(part.stage);
  }
  return stages;
}

class Messages {
 public:
  Messages(const std::vector<std::vector<Action>>& ranks, const std::vector<int>& rank_of_stage)
      : ranks_(ranks),
        rank_of_stage_(rank_of_stage),
        next_(ranks.size()),
        all_(ranks.size()),
        done_(ranks.size()) {}

  std::vector<std::vector<Action>> run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (next_[rank] == ranks_[rank].size()) continue;
        const Action& action = ranks_[rank][next_[rank]];
        if (!ready(rank, action)) continue;
        take(rank, action);
        ++next_[rank];
        progress = true;
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (next_[rank] < ranks_[rank].size())
        fail<ValueError>("pipeline schedule", "ranks wait for each other for ever: rank ", rank,
                         " at ", text(ranks_[rank][next_[rank]]));
    }
    return all_;
  }

 private:
  using Key = std::tuple<int, ActionKind, int>;
  [[nodiscard]] bool has(size_t rank, int stage, ActionKind kind, int micro_batch) const {
    return done_[rank].contains({stage, kind, micro_batch});
  }
  // Whether its inputs have been computed on this rank or received.
  [[nodiscard]] bool ready(size_t rank, const Action& action) const {
    return std::ranges::all_of(parts_of(action), [&](const Action& a) {
      const std::optional<Action> input = input_of(a, stages());
      if (!input) return true;
      const bool forward = a.kind == ActionKind::forward;
      return has(rank, a.stage, forward ? ActionKind::recv_forward : ActionKind::recv_backward,
                 a.micro_batch) ||
             has(rank, input->stage, input->kind, a.micro_batch) ||
             (!forward && has(rank, input->stage, ActionKind::backward_input, a.micro_batch));
    });
  }
  void take(size_t rank, const Action& action) {
    all_[rank].push_back(action);
    for (const Action& a : parts_of(action)) {
      done_[rank].insert({a.stage, a.kind, a.micro_batch});
      const bool forward = a.kind == ActionKind::forward;
      if (!forward && !gives_input_gradient(a.kind)) continue;
      const int to = forward ? a.stage + 1 : a.stage - 1;
      if (to < 0 || to == stages() || rank_of(to) == rank) continue;
      all_[rank].push_back({.stage = a.stage,
                            .kind = forward ? ActionKind::send_forward : ActionKind::send_backward,
                            .micro_batch = a.micro_batch});
      const ActionKind recv = forward ? ActionKind::recv_forward : ActionKind::recv_backward;
      all_[rank_of(to)].push_back({.stage = to, .kind = recv, .micro_batch = a.micro_batch});
      done_[rank_of(to)].insert({to, recv, a.micro_batch});
    }
  }
  [[nodiscard]] int stages() const { return static_cast<int>(rank_of_stage_.size()); }
  [[nodiscard]] size_t rank_of(int stage) const {
    return static_cast<size_t>(rank_of_stage_[static_cast<size_t>(stage)]);
  }

  const std::vector<std::vector<Action>>& ranks_;
  const std::vector<int>& rank_of_stage_;
  std::vector<size_t> next_;
  std::vector<std::vector<Action>> all_;
  std::vector<std::set<Key>> done_;
};

}  // namespace

std::vector<Action> add_unshards(const std::vector<Action>& actions, int most_whole) {
  std::vector<Action> all;
  std::set<int> whole;
  const auto reshard = [&](int stage) {
    all.push_back({.stage = stage, .kind = ActionKind::reshard});
    whole.erase(stage);
  };
  for (size_t i = 0; i < actions.size(); ++i) {
    const std::vector<int> next = next_stages(actions, i, static_cast<size_t>(most_whole));
    const std::vector<int> before(whole.begin(), whole.end());
    for (const int stage : before)
      if (std::ranges::find(next, stage) == next.end()) reshard(stage);
    for (const int stage : next)
      if (whole.insert(stage).second) all.push_back({.stage = stage, .kind = ActionKind::unshard});
    all.push_back(actions[i]);
  }
  const std::vector<int> rest(whole.begin(), whole.end());
  for (const int stage : rest) reshard(stage);
  return all;
}

std::vector<Action> add_reductions(const std::vector<Action>& actions, int micro_batches) {
  std::vector<Action> all;
  std::map<int, int> ended;
  for (const Action& action : actions) {
    all.push_back(action);
    for (const Action& part : parts_of(action)) {
      if (ends_backward(part.kind) && ++ended[part.stage] == micro_batches)
        all.push_back({.stage = part.stage, .kind = ActionKind::reduce_grad});
    }
  }
  return all;
}

std::vector<std::vector<Action>> add_messages(const std::vector<std::vector<Action>>& ranks,
                                              const std::vector<int>& rank_of_stage) {
  return Messages(ranks, rank_of_stage).run();
}

std::vector<std::vector<Action>> all_actions(const PipelineSchedule& schedule) {
  std::vector<std::vector<Action>> ranks;
  for (const std::vector<Action>& own : schedule.ranks)
    ranks.push_back(add_reductions(add_unshards(own), schedule.micro_batches));
  return add_messages(ranks, schedule.rank_of_stage);
}

}  // namespace tessera
