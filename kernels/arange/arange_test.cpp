// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/arange/arange.h"

#include "tessera/core/context.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(Arange, CountsAsPython) {
  Context context;
  EXPECT_EQ(arange(4).values(), (std::vector<double>{0, 1, 2, 3}));
  EXPECT_EQ(arange(4).dtype(), DType::i64);
  EXPECT_EQ(arange(5, -1, -2).values(), (std::vector<double>{5, 3, 1}));
  EXPECT_EQ(arange(1, 2, 0.25, DType::f32).values(), (std::vector<double>{1, 1.25, 1.5, 1.75}));
  EXPECT_EQ(arange(0).numel(), 0);
  EXPECT_EQ(arange(3, 3).numel(), 0);
}

// Adding up would be off by thousands.
TEST(Arange, ElementsAreRoundedOnce) {
  Context context;
  const Tensor x = arange(0, 1e5, 0.1, DType::f32);
  EXPECT_EQ(x.data<float>()[999999], static_cast<float>(999999 * 0.1));
  EXPECT_EQ(arange(9007199254740990, 9007199254740994).data<int64_t>()[2], 9007199254740992);
}

TEST(Arange, Errors) {
  Context context;
  EXPECT_THROW((void)arange(0, 4, 0), ValueError);
  EXPECT_THROW((void)arange(0, 4, -1), ValueError);
  EXPECT_THROW((void)arange(-4), ValueError);
  EXPECT_THROW((void)arange(0, 4, 0.5), ValueError);
  EXPECT_THROW((void)arange(0, std::nan("")), ValueError);
  EXPECT_EQ(
      test::error_of<ValueError>([] { (void)call(op::Arange{.start = INFINITY, .count = 2}, {}); }),
      "[arange] start and step must be finite: given inf and 1");
  EXPECT_THROW((void)arange(0, 1, 1e-300, DType::f32), ValueError);
  EXPECT_THROW((void)arange(1e30, 2e30, 1e30), ValueError);
  EXPECT_THROW((void)arange(3e9, 3e9 + 1, 1, DType::i32), ValueError);
  EXPECT_THROW((void)arange(2147483640, 2147483649, 1, DType::i32), ValueError);
  EXPECT_EQ(arange(2147483640, 2147483648, 1, DType::i32).values().back(), 2147483647);
}

TEST(Linspace, ReachesBothEnds) {
  Context context;
  EXPECT_EQ(linspace(0, 1, 5).values(), (std::vector<double>{0, 0.25, 0.5, 0.75, 1}));
  EXPECT_EQ(linspace(3, -3, 3).values(), (std::vector<double>{3, 0, -3}));
  EXPECT_EQ(linspace(2, 9, 1).values(), (std::vector<double>{2}));
  EXPECT_EQ(linspace(2, 9, 0).numel(), 0);
  EXPECT_EQ(linspace(0, 0.3, 12, DType::f64).values().back(), 0.3);
  EXPECT_THROW((void)linspace(0, 1, -1), ShapeError);
}

}  // namespace
}  // namespace tessera
