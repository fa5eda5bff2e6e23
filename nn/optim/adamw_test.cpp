// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/optim/adamw.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::optim {
namespace {

class AdamWTest : public testing::Test {
 protected:
  Session session_;
};

// The published update, element by element.
void reference_step(double& p, double g, double& m, double& v, int t, const AdamWOptions& o) {
  p -= o.lr * o.weight_decay * p;
  m = o.beta1 * m + (1 - o.beta1) * g;
  v = o.beta2 * v + (1 - o.beta2) * g * g;
  const double mean = m / (1 - std::pow(o.beta1, t)), square = v / (1 - std::pow(o.beta2, t));
  p -= o.lr * mean / (std::sqrt(square) + o.eps);
}

TEST_F(AdamWTest, TwentyStepsByTheFormula) {
  const AdamWOptions o{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.97, .eps = 1e-6, .weight_decay = 0.3};
  Tensor p = tensor({1, -2, 0.5}, DType::f64).set_requires_grad();
  AdamW optimizer({p}, o);
  std::vector<double> expected{1, -2, 0.5}, m(3), v(3);
  for (int t = 1; t <= 20; ++t) {
    const Tensor g = normal({3}, {.seed = 9, .stream = static_cast<uint64_t>(t)}, 0, 2, DType::f64);
    p.set_grad(g);
    optimizer.step();
    for (size_t i = 0; i < 3; ++i) {
      reference_step(expected[i], g.values()[i], m[i], v[i], t, o);
      EXPECT_NEAR(p.values()[i], expected[i], 1e-13) << "step " << t;
    }
  }
  EXPECT_EQ(optimizer.state().tensors[0].tensor.dtype(), DType::f64);
}

// What the device counts is what the host would have given.
TEST_F(AdamWTest, CapturableStepsHaveTheSameBits) {
  const auto trained = [](bool capturable) {
    const std::vector<Tensor> p{full({5}, 1).set_requires_grad(), full({3}, 2).set_requires_grad()};
    AdamW optimizer(p, {.lr = 0.05, .capturable = capturable});
    for (int t = 0; t < 12; ++t) {
      optimizer.set_lr_factor(t < 5 ? 1 : 1.0 / t);
      for (size_t i = 0; i < 2; ++i) {  // the second one's steps are fewer at first
        const uint64_t stream = static_cast<uint64_t>(t) * 2 + i;
        p[i].impl().leaf->grad =
            t >= 3 || i == 0 ? normal({i == 0 ? 5 : 3}, {7, stream}) : Tensor();
      }
      optimizer.step(t == 8 ? tensor(1, DType::bool_) : Tensor());
    }
    std::vector<double> values = p[0].values();
    for (const double x : p[1].values()) values.push_back(x);
    return values;
  };
  EXPECT_EQ(trained(true), trained(false));
}

TEST_F(AdamWTest, NarrowStatesAreRoundedByNameSeedAndStep) {
  const auto second_moment = [](const std::string& name, uint64_t seed) {
    Tensor p = full({64}, 1).set_requires_grad();
    AdamW optimizer(std::vector<nn::NamedParameter>{{name, p}},
                    {.state_dtype = DType::bf16, .seed = seed});
    p.set_grad(normal({64}, {.seed = 4}));
    optimizer.step();
    const Tensor v = optimizer.state().tensors[1].tensor;
    EXPECT_EQ(v.dtype(), DType::bf16);
    return v.values();
  };
  EXPECT_EQ(second_moment("w", 1), second_moment("w", 1));
  EXPECT_NE(second_moment("w", 1), second_moment("w", 2));
  EXPECT_NE(second_moment("w", 1), second_moment("v", 1));
}

TEST_F(AdamWTest, OptionsOutOfRange) {
  const Tensor p = tensor({1}).set_requires_grad();
  const double nan = std::nan("");
  for (const AdamWOptions& o : {AdamWOptions{.lr = -1},
                                {.lr = nan},
                                {.beta1 = 1},
                                {.beta2 = -0.1},
                                {.eps = -1},
                                {.weight_decay = -1}})
    EXPECT_THROW(AdamW({p}, o), ValueError);
  EXPECT_THROW(AdamW({p}, {.state_dtype = DType::f64}), DTypeError);
  try {
    AdamW({p}, {.beta1 = 1});
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "[AdamW] beta1 must be at least 0 and below 1: given 1");
  }
  AdamW optimizer({p});
  EXPECT_THROW(optimizer.set_options({.state_dtype = DType::bf16}, 0), UsageError);
  EXPECT_THROW(optimizer.set_options({.beta2 = 2}, 0), ValueError);
  EXPECT_EQ(optimizer.options().beta2, 0.999);
}

}  // namespace
}  // namespace tessera::optim
