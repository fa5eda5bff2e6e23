// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/monitor/loss_history.h"

#include "tessera/autograd/autograd.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

std::vector<int64_t> steps_of(const LossHistory& history) {
  std::vector<int64_t> steps;
  for (const StepRecord& r : history.records()) steps.push_back(r.step);
  return steps;
}

void add_steps(LossHistory& history, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step)
    history.add({.step = step, .loss = 1.0 / static_cast<double>(step)});
}

TEST(LossHistory, KeepsABoundedNumberEvenlySpaced) {
  LossHistory history;
  add_steps(history, 1, 8192);
  EXPECT_EQ(history.records().size(), 8192u);
  add_steps(history, 8193, 40000);
  const std::vector<int64_t> steps = steps_of(history);
  EXPECT_LE(steps.size(), 8192u);
  EXPECT_GT(steps.size(), 4096u);
  EXPECT_EQ(steps[0], 1);
  for (size_t i = 1; i < steps.size(); ++i) ASSERT_EQ(steps[i] - steps[i - 1], 8);
}

TEST(LossHistory, GoesOnFromACheckpointAsIfNothingHadHappened) {
  const Session session;
  LossHistory whole, before, after;
  add_steps(whole, 1, 20000);
  add_steps(before, 1, 13001);
  after.restore(before.tensor());
  add_steps(after, 13002, 20000);
  EXPECT_EQ(steps_of(after), steps_of(whole));
  EXPECT_EQ(after.tensor().values(), whole.tensor().values());
}

TEST(LossHistory, OfNoStepsIsAnEmptyTable) {
  const Session session;
  LossHistory history;
  EXPECT_EQ(history.tensor().shape(), Shape({0, 4}));
  history.restore(history.tensor());
  EXPECT_TRUE(history.records().empty());
}

}  // namespace
}  // namespace tessera::train
