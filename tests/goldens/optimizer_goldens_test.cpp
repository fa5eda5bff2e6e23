// SPDX-License-Identifier: Apache-2.0
// The optimizers against PyTorch's: losses of 20 steps and what the parameters are after them.
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/sgd.h"

#include "golden.h"
#include <gtest/gtest.h>

namespace tessera {
namespace {

class OptimizerGolden : public Golden {
 protected:
  // The options of the weights, or, with the prefix, of the biases.
  [[nodiscard]] optim::AdamWOptions adamw(const std::string& of) const {
    return {.lr = number(of + "lr"),
            .beta1 = number(of + "beta1"),
            .beta2 = number(of + "beta2"),
            .eps = number(of + "eps"),
            .weight_decay = number(of + "weight_decay")};
  }
  [[nodiscard]] optim::SGDOptions sgd(const std::string& of) const {
    return {.lr = number(of + "lr"),
            .momentum = number(of + "momentum"),
            .dampening = number(of + "dampening"),
            .weight_decay = number(of + "weight_decay"),
            .nesterov = flag(of + "nesterov")};
  }
};

TEST_F(OptimizerGolden, TwentyStepsEqualPyTorch) {
  open("optimizers");
  EXPECT_EQ(cases_.size(), 8u);
  for (const auto& name : cases_) {
    case_ = name;
    const Tensor x = get("x"), target = get("target"), losses = get("loss");
    const auto parameter = [&](const char* key) { return get(key).set_requires_grad(); };
    Tensor w1 = parameter("w1"), b1 = parameter("b1"), w2 = parameter("w2"), b2 = parameter("b2");
    std::unique_ptr<optim::Optimizer> optimizer;
    if (name.starts_with("adamw"))
      optimizer.reset(new optim::AdamW({{{w1, w2}, adamw("")}, {{b1, b2}, adamw("bias_")}}));
    else optimizer.reset(new optim::SGD({{{w1, w2}, sgd("")}, {{b1, b2}, sgd("bias_")}}));
    for (int step = 0; step < 20; ++step) {
      const Tensor y = linear(tanh(linear(x, w1) + b1), w2) + b2;
      const Tensor loss = mean((y - target) * (y - target));
      const double expected = losses.values()[static_cast<size_t>(step)];
      EXPECT_NEAR(loss.item(), expected, 1e-5 * expected) << name << ", step " << step;
      optimizer->zero_grad();
      backward(loss);
      if (name.ends_with("_gaps") && step % 3 == 0) b1.set_grad({});
      if (name.ends_with("_gaps") && step < 5) w2.set_grad({});
      optimizer->step();
    }
    expect_close(w1, get("final_w1"), name + "/w1");
    expect_close(b1, get("final_b1"), name + "/b1");
    expect_close(w2, get("final_w2"), name + "/w2");
    expect_close(b2, get("final_b2"), name + "/b2");
  }
}

}  // namespace
}  // namespace tessera
