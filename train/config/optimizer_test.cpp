// SPDX-License-Identifier: Apache-2.0
// Texts of a configuration to an optimizer.
#include "tessera/train/config/optimizer.h"

#include "tessera/kernels/fill/fill.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

class OptimizerConfigTest : public testing::Test {
 protected:
  OptimizerConfigTest() {
    for (const char* name :
         {"layers.0.norm.weight", "layers.0.wq.weight", "output.weight", "frozen"})
      named_.push_back({name, zeros({2}).set_requires_grad(std::string_view(name) != "frozen")});
  }
  Session session_;
  std::vector<nn::NamedParameter> named_;
};

TEST_F(OptimizerConfigTest, TheFirstPatternThatFindsANameTakesIt) {
  const OptimizerConfig config{
      .lr = 0.5, .weight_decay = 0.25, .param_groups = {"norm weight_decay=0", "weight$ lr=0.125"}};
  const auto groups = parameter_groups(config, named_, 7);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].parameters.size(), 1u);
  EXPECT_EQ(groups[0].options.weight_decay, 0);
  EXPECT_EQ(groups[0].options.lr, 0.5);
  EXPECT_EQ(groups[0].options.seed, 7u);
  EXPECT_EQ(groups[1].parameters.size(), 2u);
  EXPECT_EQ(groups[1].options.lr, 0.125);
  EXPECT_EQ(groups[1].options.weight_decay, 0.25);
  EXPECT_TRUE(groups[2].pattern.empty() && groups[2].parameters.empty());
  const auto optimizer = make_optimizer(config, named_);
  EXPECT_EQ(optimizer->group_count(), 2u);
  EXPECT_EQ(optimizer->lr(1), 0.125);
  EXPECT_EQ(optimizer->names(), (std::vector<std::string>{"layers.0.norm.weight",
                                                          "layers.0.wq.weight", "output.weight"}));
}

TEST_F(OptimizerConfigTest, Faults) {
  EXPECT_THROW((void)make_optimizer({.lr = -1}, named_), ConfigError);
  EXPECT_THROW((void)make_optimizer({.param_groups = {"norm"}}, named_), ConfigError);
  EXPECT_THROW((void)make_optimizer({.param_groups = {"frozen lr=1"}}, named_), ConfigError);
  EXPECT_THROW((void)make_optimizer({.param_groups = {"norm)( lr=1"}}, named_), ConfigError);
  // A count that no integer holds, a back-reference, look-ahead, and more states than fit.
  for (const char* pattern :
       {"a{18446744073709551617}", "(a)\\1", "(?=norm)", "((a{999}){999}){999}"})
    EXPECT_THROW((void)make_optimizer({.param_groups = {concat(pattern, " lr=1")}}, named_),
                 ConfigError)
        << pattern;
  EXPECT_THROW(
      (void)make_optimizer({.param_groups = {std::string(1 << 20, '(') + " lr=1"}}, named_),
      ConfigError);
}

// A matcher that backtracks would take longer than anyone waits.
TEST_F(OptimizerConfigTest, NestedRepetitionIsLinear) {
  named_.push_back({std::string(10'000, 'a'), zeros({2}).set_requires_grad()});
  const auto groups = parameter_groups({.param_groups = {"(.+)+Z|(a*)*b|norm lr=1"}}, named_, 7);
  EXPECT_EQ(groups[0].parameters.size(), 1u);
}

}  // namespace
}  // namespace tessera::train
