// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/optimizer.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

TEST(Schedule, WarmsUpHoldsAndDecays) {
  const ScheduleConfig c{
      .warmup_steps = 2, .decay_ratio = 0.5, .decay_type = "linear", .min_lr_factor = 0};
  // 10 steps: 2 of warm-up, 5 of decay that would reach 0 in the step after the last.
  const std::vector<double> expected{0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2};
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_DOUBLE_EQ(lr_factor(c, static_cast<int64_t>(i), 10), expected[i]) << i;
}

TEST(Schedule, WithoutARatioItDecaysAfterWarmUp) {
  const ScheduleConfig c{
      .warmup_steps = 1, .decay_ratio = {}, .decay_type = "linear", .min_lr_factor = 0.1};
  const std::vector<double> expected{1, 1, 0.7, 0.4};
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_DOUBLE_EQ(lr_factor(c, static_cast<int64_t>(i), 4), expected[i]) << i;
}

TEST(Schedule, OtherShapesAndLongWarmUps) {
  ScheduleConfig c{
      .warmup_steps = 0, .decay_ratio = 1.0, .decay_type = "cosine", .min_lr_factor = 0};
  EXPECT_DOUBLE_EQ(lr_factor(c, 0, 4), 1);
  EXPECT_DOUBLE_EQ(lr_factor(c, 2, 4), 0.5);
  c.decay_type = "sqrt";
  EXPECT_DOUBLE_EQ(lr_factor(c, 1, 4), 0.5);
  c.warmup_steps = 100;
  EXPECT_DOUBLE_EQ(lr_factor(c, 0, 4), 0.25);
  EXPECT_DOUBLE_EQ(lr_factor(c, 3, 4), 1);
}

TEST(AdamWTest, FindsAMinimum) {
  const Session session;
  Tensor x = tensor({5, -3});
  x.set_requires_grad();
  AdamW optimizer({x}, {.lr = 0.1, .weight_decay = 0});
  EXPECT_THROW(optimizer.step(), AutogradError);
  for (int i = 0; i < 300; ++i) {
    const Tensor gap = x - tensor({1, 2});
    backward(sum(gap * gap));
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_NEAR(x.values()[0], 1, 1e-2);
  EXPECT_NEAR(x.values()[1], 2, 1e-2);
}

}  // namespace
}  // namespace tessera::train
