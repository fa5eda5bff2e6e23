// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cumsum/cumsum.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(Cumsum, BothWaysAlongBothDims) {
  Context context;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(cumsum(x, 1).values(), (std::vector<double>{1, 3, 6, 4, 9, 15}));
  EXPECT_EQ(cumsum(x, 1, true).values(), (std::vector<double>{6, 5, 3, 15, 11, 6}));
  EXPECT_EQ(cumsum(x, 0).values(), (std::vector<double>{1, 2, 3, 5, 7, 9}));
  EXPECT_EQ(cumsum(x, -2, true).values(), (std::vector<double>{5, 7, 9, 4, 5, 6}));
  EXPECT_EQ(cumsum(transpose(x, 0, 1), 0).values(), (std::vector<double>{1, 4, 3, 9, 6, 15}));
}

TEST(Cumsum, Edges) {
  Context context;
  EXPECT_EQ(cumsum(zeros({0, 3}), 1).shape(), (Shape{0, 3}));
  EXPECT_EQ(cumsum(zeros({3, 0}), 1).numel(), 0);
  EXPECT_EQ(cumsum(tensor(4), 0).item(), 4);
  const auto v = cumsum(tensor({1, std::nan(""), 2}), 0).values();
  EXPECT_EQ(v[0], 1);
  EXPECT_TRUE(std::isnan(v[1]) && std::isnan(v[2]));
  EXPECT_THROW((void)cumsum(zeros({3}), 1), IndexError);
}

// In f32 the sum would stand still at 2^24, in bf16 at 256.
TEST(Cumsum, IsRoundedOnce) {
  Context context;
  const int64_t n = (1 << 24) + 100;
  EXPECT_EQ(slice(cumsum(ones({n}), 0), 0, {n - 1}).item(), static_cast<double>(n));
  EXPECT_EQ(slice(cumsum(ones({1024}, DType::bf16), 0), 0, {1023}).item(), 1024);
}

}  // namespace
}  // namespace tessera
