// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/optimizer.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

TEST(AdamWTest, FindsAMinimum) {
  const Session session;
  Tensor x = tensor({5, -3});
  x.set_requires_grad();
  AdamW optimizer({x}, {.lr = 0.1, .weight_decay = 0});
  EXPECT_THROW(optimizer.step(), AutogradError);
  for (int i = 0; i < 300; ++i) {
    const Tensor gap = x - tensor({1, 2});
    backward(sum(gap * gap));
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_NEAR(x.values()[0], 1, 1e-2);
  EXPECT_NEAR(x.values()[1], 2, 1e-2);
}

}  // namespace
}  // namespace tessera::train
