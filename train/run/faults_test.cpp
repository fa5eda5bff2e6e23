// SPDX-License-Identifier: Apache-2.0
// Faults of a configuration are found at once, before any rank starts.
#include "tessera/train/run/faults.h"

#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

Config tiny() {
  Config c;
  c.model = models::families()[0].flavor("debugmodel");
  return c;
}

TEST(Faults, OfFieldsModelAndRanksAreToldTogether) {
  Config c = tiny();
  EXPECT_EQ(faults(c), std::vector<std::string>{});
  c.training.seq_len = c.model.max_seq_len() + 1;
  c.training.global_batch_size = 9;
  c.parallelism.tensor_parallel_degree = 3;
  c.debug.moe_force_load_balance = true;
  std::string all;
  for (const std::string& fault : faults(c, 6)) all += fault + '\n';
  TESSERA_EXPECT_HOLDS(all, "[--training.seq_len]");
  TESSERA_EXPECT_HOLDS(all, "[--training.global_batch_size] 9 is not a multiple of ");
  TESSERA_EXPECT_HOLDS(all, "[--parallelism.tensor_parallel_degree] 3 does not divide --model.");
  TESSERA_EXPECT_HOLDS(all, "has no experts: leave it out");
}

TEST(Faults, ValuesOutOfRangeComeAlone) {
  Config c = tiny();
  c.training.steps = 0;
  c.parallelism.tensor_parallel_degree = 3;
  EXPECT_EQ(faults(c, 6).size(), 1u);
}

TEST(Faults, RanksOfTheConfigurationCountIfNoneAreStarted) {
  Config c = tiny();
  c.parallelism.data_parallel_shard_degree = 3;
  EXPECT_TRUE(faults(c).empty());
  c.ranks = 4;
  EXPECT_EQ(faults(c).size(), 1u);
  EXPECT_TRUE(faults(c, 3).empty());
}

TEST(Faults, AFolderThatIsAwayIsToldUnlessTheRunHasACheckpoint) {
  Config c = tiny();
  c.initial_hf = testing::TempDir() + "no_such_folder";
  c.dump_folder = testing::TempDir() + "no_such_run";
  EXPECT_THROW((void)faults(c), ConfigError);
}

}  // namespace
}  // namespace tessera::train
