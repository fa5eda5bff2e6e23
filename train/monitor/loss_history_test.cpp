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

// All steps while they are at most 8192, then every second one, then every fourth.
TEST(LossHistory, ThinsAtItsBoundAndNotBefore) {
  LossHistory history;
  int64_t stride = 1;
  for (int64_t step = 1; step <= 40000; ++step) {
    history.add({.step = step, .loss = 1.0 / static_cast<double>(step)});
    const bool thinned = (step - 1) / stride == 8192;
    if (thinned) stride *= 2;
    const int64_t kept = (step - 1) / stride + 1;
    ASSERT_EQ(std::ssize(history.records()), kept) << "step " << step;
    if (!thinned && step != 8192 && step != 40000) continue;
    for (int64_t i = 0; i < kept; ++i) {
      const StepRecord& r = history.records()[static_cast<size_t>(i)];
      ASSERT_EQ(r.step, 1 + i * stride) << "step " << step;
      ASSERT_EQ(r.loss, 1.0 / static_cast<double>(r.step));
    }
  }
  EXPECT_EQ(stride, 8);
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
