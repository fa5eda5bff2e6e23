// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/swiglu/swiglu.h"

#include "tessera/autograd/autograd.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(Swiglu, LargeGatesNeitherOverflowNorVanish) {
  const Session session;
  const auto y = swiglu(tensor({-200, 0, 200}), tensor({3, 3, 3})).values();
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 600);
}

// At the limit a gradient still passes, beyond it none does.
TEST(Swiglu, LimitsHoldBothOperands) {
  const Session session;
  Tensor gate = tensor({-9, 2, 7, 8}).set_requires_grad(),
         up = tensor({-8, -7, 7, 9}).set_requires_grad();
  const Tensor y = swiglu(gate, up, kGptOssSwiglu);
  EXPECT_NEAR(y.values()[3], 7 * 8 / (1 + std::exp(-7 * 1.702)), 1e-4);
  EXPECT_NEAR(y.values()[0], -9 * -6 / (1 + std::exp(9 * 1.702)), 1e-6);
  backward(y, {.gradient = tensor({1, 1, 1, 1})});
  EXPECT_NE(gate.grad().values()[0], 0);
  EXPECT_NE(gate.grad().values()[2], 0);
  EXPECT_EQ(gate.grad().values()[3], 0);
  EXPECT_EQ(up.grad().values()[0], 0);
  EXPECT_NE(up.grad().values()[1], 0);
  EXPECT_NE(up.grad().values()[2], 0);
  EXPECT_EQ(up.grad().values()[3], 0);
  EXPECT_THROW((void)swiglu(gate, up, {.limit = -1}), ValueError);
}

TEST(Swiglu, ItsFusedGradientSaysThatItIsTheLast) {
  const Session session;
  Tensor gate = tensor({1, 2}).set_requires_grad(), up = tensor({3, 4});
  const Tensor y = swiglu(gate, up);
  const auto g = grad({y}, {gate}, {.grad_outputs = {tensor({1, 1})}, .create_graph = true});
  EXPECT_THROW(backward(g[0], {.gradient = tensor({1, 1})}), AutogradError);
}

}  // namespace
}  // namespace tessera
