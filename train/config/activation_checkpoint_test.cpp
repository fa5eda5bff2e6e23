// SPDX-License-Identifier: Apache-2.0
// What the fields of activation_checkpoint do where forward and recompute differ, which no model of
// this repository does.
#include "tessera/nn/activation_checkpoint.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/train/config/config.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

using Words = std::vector<std::string>;

// exp(x) in the first run, exp(x + x) in all others, which saves an equal tensor for x = 0.
class Fickle final : public nn::Layer<Fickle> {
 public:
  void visit(nn::Visitor&) override {}

 private:
  friend class nn::Layer<Fickle>;
  [[nodiscard]] Tensor forward(const Tensor& x) const {
    return exp(std::exchange(again_, true) ? x + x : x);
  }
  mutable bool again_ = false;
};

// The error of a backward pass through it; empty: none.
std::string error_with(Words fields) {
  fields.insert(fields.end(), {"--activation_checkpoint.mode", "full"});
  const Session session;
  Fickle block;
  nn::Module* const unit = &block;
  nn::apply_activation_checkpoint({&unit, 1}, parse_config(fields).activation_checkpoint);
  const Tensor x = tensor({0, 0}).set_requires_grad();
  try {
    backward(sum(block(x)));
  } catch (const AutogradError& error) {
    return error.what();
  }
  EXPECT_EQ(x.grad().values(), (std::vector<double>{1, 1}));
  return "";
}

TEST(ActivationCheckpointFields, DeterminismCheckFindsARecomputeThatDiffers) {
  const std::string error = error_with({});
  EXPECT_NE(error.find("[checkpoint] saved tensor 0"), error.npos) << error;
  EXPECT_EQ(error.find("add("), error.npos) << error;
  EXPECT_EQ(error_with({"--activation_checkpoint.determinism_check", "none"}), "");
}

TEST(ActivationCheckpointFields, DebugListsTheOpsOfBothPasses) {
  const std::string error = error_with({"--activation_checkpoint.debug"});
  EXPECT_NE(error.find("forward   exp(f32[2]) -> f32[2]\n      recompute add(f32[2], f32[2])"),
            error.npos)
      << error;
}

}  // namespace
}  // namespace tessera::train
