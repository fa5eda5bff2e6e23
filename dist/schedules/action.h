// SPDX-License-Identifier: Apache-2.0
// Action: one entry of a rank's pipeline schedule. Texts are as torch.distributed.pipelining writes
// them: `2F0` is the forward of micro-batch 0 through stage 2, and `(0F1;1B0)OVERLAP_F_B` is two
// actions at once.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class ActionKind : uint8_t {
  forward,          ///< F
  backward_input,   ///< I: gradients of the stage's input
  backward_weight,  ///< W: gradients of its parameters, after I
  backward,         ///< B: both
  send_forward,
  recv_forward,
  send_backward,
  recv_backward,
  unshard,      ///< gathers the stage's parameters, which stay whole until reshard
  reshard,      ///< frees the gathered parameters
  reduce_grad,  ///< reduces the gradients of the stage's parameters over its data ranks
  overlap       ///< a forward and a backward at once
};

struct Action {
  int stage = -1;
  ActionKind kind = ActionKind::forward;
  int micro_batch = -1;            ///< -1: of no micro-batch
  std::vector<Action> parts = {};  ///< of an overlap
  bool operator==(const Action&) const = default;
};

/// F, I, W or B.
[[nodiscard]] TESSERA_API bool computes(ActionKind kind);
/// B or I, which compute the gradient of the stage's input.
[[nodiscard]] constexpr bool gives_input_gradient(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_input;
}
/// B or W, which complete the backward of a micro-batch through a stage.
[[nodiscard]] constexpr bool ends_backward(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_weight;
}
[[nodiscard]] TESSERA_API std::string text(const Action& action);
/// Parses such a text. ValueError: it is no action, and why.
[[nodiscard]] TESSERA_API Action parse_action(std::string_view text);
/// The action, or the parts of an overlap.
[[nodiscard]] TESSERA_API std::vector<Action> parts_of(const Action& action);
/// The action of another stage whose result this one reads, in a pipeline of so many stages: an F
/// reads the F of the stage before it, a B or an I the B (or I) of the stage after it. Others read
/// nothing.
[[nodiscard]] TESSERA_API std::optional<Action> input_of(const Action& action, int stages);

}  // namespace tessera
