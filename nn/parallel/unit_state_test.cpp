// SPDX-License-Identifier: Apache-2.0
// What the table of a unit's states promises in each of its rows.
#include "tessera/nn/parallel/unit_state_impl.h"

#include <gtest/gtest.h>

namespace tessera::nn::detail {
namespace {

constexpr auto kStates = static_cast<int>(kUnitStates), kEvents = static_cast<int>(kUnitEvents);

bool frees(UnitAction a) {
  return a == UnitAction::release || a == UnitAction::release_after_forward;
}

TEST(UnitState, WhatRunsIsNeverFreed) {
  for (const UnitState running : {UnitState::forward, UnitState::recompute}) {
    for (int e = 0; e < kEvents; ++e)
      EXPECT_FALSE(frees(unit_transition(running, static_cast<UnitEvent>(e)).action)) << e;
  }
}

TEST(UnitState, OnlyReshardEndsHeld) {
  for (int e = 0; e < kEvents; ++e) {
    const auto event = static_cast<UnitEvent>(e);
    const UnitTransition to = unit_transition(UnitState::held, event);
    EXPECT_EQ(to.next, event == UnitEvent::reshard ? UnitState::sharded : UnitState::held) << e;
    EXPECT_EQ(frees(to.action), event == UnitEvent::reshard) << e;
  }
}

TEST(UnitState, WhoeverNeedsWholeParametersGathersThem) {
  for (int s = 0; s < kStates; ++s) {
    for (const UnitEvent needs :
         {UnitEvent::prefetch, UnitEvent::forward_begins, UnitEvent::backward_begins,
          UnitEvent::recompute_begins, UnitEvent::hold})
      EXPECT_EQ(unit_transition(static_cast<UnitState>(s), needs).action, UnitAction::gather) << s;
  }
}

TEST(UnitState, AStepReturnsToSharded) {
  using enum UnitEvent;
  UnitState state = UnitState::sharded;
  const auto after = [&](UnitEvent event) { return state = unit_transition(state, event).next; };
  EXPECT_EQ(after(prefetch), UnitState::prefetching);
  EXPECT_EQ(after(forward_begins), UnitState::forward);
  EXPECT_EQ(after(run_ends), UnitState::unsharded);
  EXPECT_EQ(after(reshard_after_forward), UnitState::partly_sharded);
  EXPECT_EQ(after(prefetch), UnitState::prefetching);
  EXPECT_EQ(after(backward_begins), UnitState::backward);
  EXPECT_EQ(after(recompute_begins), UnitState::recompute);
  EXPECT_EQ(after(run_ends), UnitState::backward);
  EXPECT_EQ(after(release), UnitState::sharded);
}

}  // namespace
}  // namespace tessera::nn::detail
