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

TEST(Swiglu, ItsFusedGradientSaysThatItIsTheLast) {
  const Session session;
  Tensor gate = tensor({1, 2}).set_requires_grad(), up = tensor({3, 4});
  const Tensor y = swiglu(gate, up);
  const auto g = grad({y}, {gate}, {.grad_outputs = {tensor({1, 1})}, .create_graph = true});
  EXPECT_THROW(backward(g[0], {.gradient = tensor({1, 1})}), AutogradError);
}

}  // namespace
}  // namespace tessera
