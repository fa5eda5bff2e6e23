// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/optim/sgd.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::optim {
namespace {

class SGDTest : public testing::Test {
 protected:
  Session session_;
};

// PyTorch's update, element by element.
void reference_step(double& p, double g, double& b, int t, const SGDOptions& o) {
  if (o.maximize) g = -g;
  g += o.weight_decay * p;
  if (o.momentum > 0) {
    b = t == 1 ? g : o.momentum * b + (1 - o.dampening) * g;
    g = o.nesterov ? g + o.momentum * b : b;
  }
  p -= o.lr * g;
}

TEST_F(SGDTest, TwentyStepsByTheFormula) {
  for (const SGDOptions& o : {SGDOptions{.lr = 0.1, .weight_decay = 0.2},
                              {.lr = 0.05, .momentum = 0.9, .dampening = 0.3},
                              {.lr = 0.05, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true},
                              {.lr = 0.05, .momentum = 0.5, .maximize = true}}) {
    Tensor p = tensor({1, -2, 0.5}, DType::f64).set_requires_grad();
    SGD optimizer({p}, o);
    std::vector<double> expected{1, -2, 0.5}, b(3);
    for (int t = 1; t <= 20; ++t) {
      const Tensor g =
          normal({3}, {.seed = 9, .stream = static_cast<uint64_t>(t)}, 0, 2, DType::f64);
      p.set_grad(g);
      optimizer.step();
      for (size_t i = 0; i < 3; ++i) {
        reference_step(expected[i], g.values()[i], b[i], t, o);
        EXPECT_NEAR(p.values()[i], expected[i], 1e-12) << "step " << t;
      }
    }
    EXPECT_EQ(optimizer.state().tensors.size(), o.momentum > 0 ? 1u : 0u);
  }
}

TEST_F(SGDTest, TheFirstGradientFillsTheBufferWheneverItComes) {
  Tensor early = tensor({1}).set_requires_grad(), late = tensor({1}).set_requires_grad();
  SGD optimizer({early, late}, {.lr = 1, .momentum = 0.5, .dampening = 0.5});
  early.set_grad(tensor({1}));
  optimizer.step();
  late.set_grad(tensor({1}));
  optimizer.step();
  EXPECT_EQ(late.item(), 0);    // the gradient, undampened
  EXPECT_EQ(early.item(), -1);  // 1 - 1 - (0.5 + 0.5)
}

TEST_F(SGDTest, OptionsOutOfRange) {
  const Tensor p = tensor({1}).set_requires_grad();
  for (const SGDOptions& o : {SGDOptions{.lr = -1},
                              {.momentum = -1},
                              {.dampening = std::nan("")},
                              {.weight_decay = -1},
                              {.nesterov = true},
                              {.momentum = 0.5, .dampening = 0.1, .nesterov = true}})
    EXPECT_THROW(SGD({p}, o), ValueError);
  SGD optimizer({p});
  try {
    optimizer.set_options({.momentum = 0.5}, 0);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "[SGD] group 0 keeps nothing between steps, these options need momentum_buffer "
                 "in f32: make a new optimizer for them");
  }
}

}  // namespace
}  // namespace tessera::optim
