// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/rms_norm/rms_norm.h"

#include "tessera/autograd/autograd.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(RmsNorm, KnownValues) {
  const Session session;
  const auto y = rms_norm(tensor({{3, 4}}), tensor({1, 2}), 0).values();
  EXPECT_NEAR(y[0], 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(y[1], 8 / std::sqrt(12.5), 1e-6);
}

TEST(RmsNorm, AZeroRowStaysZero) {
  const Session session;
  EXPECT_EQ(rms_norm(tensor({{0, 0}}), tensor({1, 1})).values(), (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace tessera
