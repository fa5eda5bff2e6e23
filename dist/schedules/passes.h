// SPDX-License-Identifier: Apache-2.0
// Passes from the order in which a rank computes to everything that it does: gathers of parameters,
// messages, reductions. Each takes a list of actions and returns one, and decides as
// torch.distributed.pipelining does, so that schedules can be compared. An I stays apart from the W
// right behind it: the rank before would wait for both, and ZB-V idle as long as 1F1B.
#pragma once

#include "tessera/dist/schedules/schedule.h"

#include <vector>

namespace tessera {

/// Gathers the parameters of the next `most_whole` stages of the rank before it needs them, and
/// frees the other stages' parameters.
[[nodiscard]] TESSERA_API std::vector<Action> add_unshards(const std::vector<Action>& actions,
                                                           int most_whole = 3);
/// Reduces a stage's gradients behind its last backward.
[[nodiscard]] TESSERA_API std::vector<Action> add_reductions(const std::vector<Action>& actions,
                                                             int micro_batches);
/// Adds the sends and receives between ranks, for all of them: a receive comes where its sender
/// sends, so that no two ranks expect their messages in different orders. ValueError: ranks that
/// wait for each other for ever.
[[nodiscard]] TESSERA_API std::vector<std::vector<Action>> add_messages(
    const std::vector<std::vector<Action>>& ranks, const std::vector<int>& rank_of_stage);

/// Everything that each rank does: gathers, reductions and messages, in this order of passes.
[[nodiscard]] TESSERA_API std::vector<std::vector<Action>> all_actions(
    const PipelineSchedule& schedule);

}  // namespace tessera
