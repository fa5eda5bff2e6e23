// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/step/step_queue.h"

#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

void push(StepQueue& queue, int64_t step, double loss, bool skip) {
  StepValues values;
  const Tensor skipped = tensor(skip ? 1 : 0, DType::bool_);
  values.append("loss", tensor(loss));
  values.append("loss/balance", tensor(0.25));
  values.append("grad_norm", tensor(3));
  values.append("flops", tensor(1e15, DType::f64));
  values.append("targets", tensor(12, DType::f64));
  values.append("skip", skipped);
  values.append("moe/load", tensor(7));
  queue.push({.step = step, .lr = 0.5, .first_row = 8 * step}, values, skipped);
}

TEST(StepQueue, GivesTheValuesOfAllUnreadStepsByName) {
  run_ranks(1, [](World&) {
    StepQueue queue(100);
    EXPECT_TRUE(queue.finish_reading().empty());
    push(queue, 1, 2, false);
    push(queue, 2, 1, false);
    EXPECT_EQ(queue.unread(), 2u);
    queue.begin_reading();
    EXPECT_EQ(queue.unread(), 0u);
    push(queue, 3, 0.5, false);  // the next step is given to the device meanwhile
    const auto steps = queue.finish_reading();
    ASSERT_EQ(steps.size(), 2u);
    const StepRecord& r = steps[1].record;
    EXPECT_EQ(r.step, 2);
    EXPECT_EQ(r.loss, 1);
    EXPECT_EQ(r.grad_norm, 3);
    EXPECT_EQ(r.flops, 1e15);
    EXPECT_EQ(r.lr, 0.5);
    EXPECT_GT(r.tokens_per_second, 0);
    const std::vector<std::pair<std::string, double>> rest{{"loss/balance", 0.25}, {"moe/load", 7}};
    EXPECT_EQ(r.statistics, rest);
    EXPECT_EQ(steps[1].step.first_row, 16);
    EXPECT_EQ(queue.unread(), 1u);
    EXPECT_TRUE(queue.spoiled().defined());  // of step 3, which nobody has read
  });
}

TEST(StepQueue, RemembersAStepThatWasNotFiniteUntilItIsRead) {
  run_ranks(1, [](World&) {
    StepQueue queue(100);
    EXPECT_FALSE(queue.spoiled().defined());
    push(queue, 1, 2, true);
    EXPECT_TRUE(queue.spoiled().item() != 0);
    queue.begin_reading();
    EXPECT_TRUE(queue.finish_reading()[0].skipped);
    EXPECT_FALSE(queue.spoiled().defined());
    push(queue, 1, 2, true);
    queue.clear();
    EXPECT_EQ(queue.unread(), 0u);
    EXPECT_FALSE(queue.spoiled().defined());
  });
}

}  // namespace
}  // namespace tessera::train
