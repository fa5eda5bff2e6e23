// SPDX-License-Identifier: Apache-2.0
// What follows from the list of passes.
#include "tessera/models/models.h"
#include "tessera/train/parallel/parallelism.h"

#include <gtest/gtest.h>

#include <set>

namespace tessera::train {
namespace {

using Names = std::vector<std::string>;

TEST(Passes, EveryFieldIsOfOnePass) {
  ParallelismConfig p;
  config::Fields fields;
  fields.section("", p);
  std::set<std::string> seen;
  for (const config::Field& field : fields.all()) EXPECT_TRUE(seen.insert(field.path).second);
  EXPECT_EQ(seen.size(), 21u);
  for (const ParallelPass& pass : parallel_passes()) {
    for (const PassAxis& axis : pass.axes ? pass.axes(p) : std::vector<PassAxis>())
      EXPECT_TRUE(seen.contains(std::string(axis.field))) << axis.name;
  }
}

TEST(Passes, KindsOfAxesSayWhatAStepSumsOver) {
  ParallelismConfig p;
  p.context_parallel_degree = 4, p.context_parallel_ulysses_degree = 2;
  EXPECT_EQ(p.axes_that(&PassAxis::cuts_rows), (Names{"dp_replicate", "dp_shard"}));
  EXPECT_EQ(p.axes_that(&PassAxis::cuts_sequences), (Names{"cp_ring", "cp_heads"}));
  EXPECT_EQ(p.axes_that(&PassAxis::shards_parameters), (Names{"dp_shard", "cp_ring", "cp_heads"}));
  EXPECT_EQ(p.axes_that(&PassAxis::splits_layers), Names{"tp"});
  EXPECT_EQ(p.ranks_of(24, &PassAxis::shards_parameters), 24);
  p.data_parallel_replicate_degree = 2, p.tensor_parallel_degree = 3;
  EXPECT_EQ(p.ranks_of(24, &PassAxis::shards_parameters), 4);
  EXPECT_EQ(p.ranks_of(48, &PassAxis::cuts_rows), 4);
}

TEST(Passes, FaultsAreToldAsFarAsModelAndRanksAreKnown) {
  ParallelismConfig p;
  p.tensor_parallel_degree = 3, p.expert_parallel_degree = 2;
  EXPECT_EQ(parallelism_faults({p}), Faults{});
  const auto model = models::families()[0].flavor("debugmodel").make();
  Faults with_model = parallelism_faults({p, model.get()});
  EXPECT_GE(with_model.size(), 2u);
  const Faults all = parallelism_faults({p, model.get(), 4});
  EXPECT_EQ(all.size(), with_model.size() + 1);
  EXPECT_TRUE(
      all[0].ends_with("= 3, which does not divide the 4 ranks: give degrees that do, or "
                       "start another number of ranks"))
      << all[0];
  p.data_parallel_shard_degree = 0;  // says nothing of the ranks then
  EXPECT_EQ(parallelism_faults({p, model.get(), 4}).size(), all.size());
}

TEST(Passes, ARemedyIsWrittenAsTheFieldsAre) {
  const Remedy remedy{{{"a.b", "1"}, {"c", "x"}}};
  EXPECT_EQ(remedy.text(), "--a.b 1 --c x");
}

}  // namespace
}  // namespace tessera::train
