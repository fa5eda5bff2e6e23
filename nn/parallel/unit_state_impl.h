// SPDX-License-Identifier: Apache-2.0
// Where the whole parameters of a unit are, in FSDP2's words, and what moves them: one table of
// transitions. A gather of what is whole already, and a release of what is not, do nothing, so that
// the table says what a state allows and not what is there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera::nn::detail {

enum class UnitState : uint8_t {
  sharded,
  prefetching,     ///< a gather is under way, or done, and nobody has used it
  forward,         ///< from the beginning of the first of its modules to the end of the last
  unsharded,       ///< forward has ended, and the whole parameters stay for now
  partly_sharded,  ///< after forward: what the policy keeps for backward
  backward,        ///< its region of backward has begun
  recompute,       ///< runs again, in backward
  held,            ///< whole until reshard(), whatever runs between: a pipeline stage's
};
inline constexpr size_t kUnitStates = 8;

enum class UnitEvent : uint8_t {
  prefetch,
  forward_begins,
  reshard_after_forward,  ///< backward may follow
  backward_begins,
  recompute_begins,
  run_ends,  ///< of a forward or a recompute
  release,   ///< its backward has ended, or none will follow
  hold,
  reshard,  ///< called by the user
};
inline constexpr size_t kUnitEvents = 9;

enum class UnitAction : uint8_t { none, gather, release, release_after_forward };

struct UnitTransition {
  UnitState next;
  UnitAction action;
};

constexpr UnitTransition unit_transition(UnitState state, UnitEvent event) {
  using enum UnitState;
  constexpr UnitTransition prefetched{prefetching, UnitAction::gather},
      begun{forward, UnitAction::gather}, kept{partly_sharded, UnitAction::release_after_forward},
      pulled{backward, UnitAction::gather}, again{recompute, UnitAction::gather},
      freed{sharded, UnitAction::release}, holds{held, UnitAction::gather};
  constexpr auto stay = [](UnitState s) { return UnitTransition{s, UnitAction::none}; };
  constexpr auto whole = [](UnitState s) { return UnitTransition{s, UnitAction::gather}; };
  // clang-format off
  constexpr std::array<std::array<UnitTransition, kUnitEvents>, kUnitStates> table{{
    //                    prefetch           forward_begins   reshard_after_forward   backward_begins    recompute_begins   run_ends               release           hold    reshard
    /* sharded */        {prefetched,        begun,           stay(sharded),          pulled,            again,             stay(sharded),         freed,            holds,  freed},
    /* prefetching */    {prefetched,        begun,           kept,                   pulled,            again,             stay(prefetching),     freed,            holds,  freed},
    /* forward */        {whole(forward),    begun,           stay(forward),          whole(forward),    whole(forward),    stay(unsharded),       stay(forward),    holds,  stay(forward)},
    /* unsharded */      {whole(unsharded),  begun,           kept,                   pulled,            again,             stay(unsharded),       freed,            holds,  freed},
    /* partly_sharded */ {prefetched,        begun,           stay(partly_sharded),   pulled,            again,             stay(partly_sharded),  freed,            holds,  freed},
    /* backward */       {whole(backward),   begun,           kept,                   pulled,            again,             stay(backward),        freed,            holds,  freed},
    /* recompute */      {whole(recompute),  begun,           stay(recompute),        whole(recompute),  again,             stay(backward),        stay(recompute),  holds,  stay(recompute)},
    /* held */           {whole(held),       whole(held),     stay(held),             whole(held),       whole(held),       stay(held),            stay(held),       holds,  freed},
  }};
  // clang-format on
  return table[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

}  // namespace tessera::nn::detail
