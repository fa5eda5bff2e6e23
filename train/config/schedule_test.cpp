// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/config/schedule.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace tessera::train {
namespace {

TEST(Schedule, WarmsUpHoldsAndDecays) {
  const ScheduleConfig c{.warmup_steps = 2,
                         .total_steps = {},
                         .decay_ratio = 0.5,
                         .decay_type = "linear",
                         .min_lr_factor = 0};
  // 10 steps: 2 of warm-up, 5 of decay that would reach 0 in the step after the last.
  const std::vector<double> expected{0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2};
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_DOUBLE_EQ(lr_factor(c, static_cast<int64_t>(i), 10), expected[i]) << i;
}

TEST(Schedule, ARunWithoutTimeAfterWarmUpGivesAWarning) {
  ScheduleConfig c{.warmup_steps = 5};
  EXPECT_TRUE(c.warnings(6).empty());
  ASSERT_EQ(c.warnings(5).size(), 1u);
  EXPECT_EQ(c.warnings(3),
            std::vector<std::string>{
                "lr_scheduler.warmup_steps 5 and training.steps 3: warm-up is all of the schedule, "
                "and only its last step has the whole optimizer.lr"});
  c.total_steps = 10;
  EXPECT_EQ(
      c.warnings(3),
      std::vector<std::string>{
          "lr_scheduler.warmup_steps 5 and lr_scheduler.total_steps 10, training.steps 3: the "
          "run ends within warm-up"});
  EXPECT_TRUE(c.warnings(5).empty() && c.warnings(6).empty());
}

TEST(Schedule, WithoutARatioItDecaysAfterWarmUp) {
  const ScheduleConfig c{.warmup_steps = 1,
                         .total_steps = {},
                         .decay_ratio = {},
                         .decay_type = "linear",
                         .min_lr_factor = 0.1};
  const std::vector<double> expected{1, 1, 0.7, 0.4};
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_DOUBLE_EQ(lr_factor(c, static_cast<int64_t>(i), 4), expected[i]) << i;
}

TEST(Schedule, OtherShapesAndLongWarmUps) {
  ScheduleConfig c{.warmup_steps = 0,
                   .total_steps = {},
                   .decay_ratio = 1.0,
                   .decay_type = "cosine",
                   .min_lr_factor = 0};
  EXPECT_DOUBLE_EQ(lr_factor(c, 0, 4), 1);
  EXPECT_DOUBLE_EQ(lr_factor(c, 2, 4), 0.5);
  c.decay_type = "sqrt";
  EXPECT_DOUBLE_EQ(lr_factor(c, 1, 4), 0.5);
  c.warmup_steps = 100;
  EXPECT_DOUBLE_EQ(lr_factor(c, 0, 4), 0.25);
  EXPECT_DOUBLE_EQ(lr_factor(c, 3, 4), 1);
}

TEST(Schedule, StaysAtItsFloorAfterItsEnd) {
  const ScheduleConfig c{.warmup_steps = 0,
                         .total_steps = 4,
                         .decay_ratio = 0.5,
                         .decay_type = "linear",
                         .min_lr_factor = 0.25};
  EXPECT_DOUBLE_EQ(lr_factor(c, 4, 10), 0.25);
  EXPECT_DOUBLE_EQ(lr_factor(c, 9, 10), 0.25);
}

TEST(Schedule, RatesAreExactlyPyTorchs) {
  const auto cases = nlohmann::json::parse(std::ifstream("tests/goldens/lr_schedule.json"));
  ASSERT_EQ(cases.size(), 9u);
  for (const auto& golden : cases) {
    ScheduleConfig c;
    c.warmup_steps = golden["warmup_steps"];
    if (golden.contains("total_steps")) c.total_steps = golden["total_steps"].get<int64_t>();
    if (!golden["decay_ratio"].is_null()) c.decay_ratio = golden["decay_ratio"].get<double>();
    c.decay_type = golden["decay_type"];
    c.min_lr_factor = golden["min_lr_factor"];
    const int64_t steps = golden["steps"];
    const double lr = golden["lr"];
    for (int64_t step = 0; step < steps; ++step) {
      const double expected = golden["rates"][static_cast<size_t>(step)];
      EXPECT_EQ(lr * lr_factor(c, step, steps), expected) << golden.dump() << " step " << step;
    }
  }
}

}  // namespace
}  // namespace tessera::train
