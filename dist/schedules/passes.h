// SPDX-License-Identifier: Apache-2.0
// Passes from the order in which a rank computes to everything that it does: backwards in one
// piece, gathers of parameters, messages, reductions. Each takes a list of actions and returns one,
// and decides as torch.distributed.pipelining does, so that schedules can be compared.
#pragma once

#include "tessera/dist/schedules/schedule.h"

#include <optional>
#include <vector>

namespace tessera {

/// An I with its W right behind it is a B, whose gradients are computed together.
[[nodiscard]] TESSERA_API std::vector<Action> merge_backwards(const std::vector<Action>& actions);
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

/// Everything that each rank does: all passes, in their order.
[[nodiscard]] TESSERA_API std::vector<std::vector<Action>> all_actions(
    const PipelineSchedule& schedule);

}  // namespace tessera
