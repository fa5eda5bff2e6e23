// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/softmax/softmax.h"

#include "tessera/autograd/autograd.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(Softmax, LargeAndMinusInfiniteEntries) {
  const Session session;
  const auto y = softmax(tensor({1000, -INFINITY, 1000})).values();
  EXPECT_EQ(y, (std::vector<double>{0.5, 0, 0.5}));
}

TEST(Softmax, ARowOfMinusInfinityIsNotANumber) {
  const Session session;
  EXPECT_TRUE(std::isnan(softmax(tensor({-INFINITY, -INFINITY})).values()[0]));
}

}  // namespace
}  // namespace tessera
