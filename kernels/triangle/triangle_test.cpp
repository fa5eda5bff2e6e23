// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/triangle/triangle.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <limits>

namespace tessera {
namespace {

using Values = std::vector<double>;

TEST(Triangle, KnownValues) {
  const Session session;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(triu(x).values(), (Values{1, 2, 3, 0, 5, 6}));
  EXPECT_EQ(tril(x).values(), (Values{1, 0, 0, 4, 5, 0}));
  EXPECT_EQ(triu(x, 1).values(), (Values{0, 2, 3, 0, 0, 6}));
  EXPECT_EQ(tril(x, -1).values(), (Values{0, 0, 0, 4, 0, 0}));
  EXPECT_EQ(triu(transpose(x, 0, 1)).values(), (Values{1, 4, 0, 5, 0, 0}));
}

TEST(Triangle, FarDiagonalsAndNothing) {
  const Session session;
  const Tensor x = tensor({{1, 2}, {3, 4}});
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(triu(x, kFar).values(), (Values{0, 0, 0, 0}));
  EXPECT_EQ(tril(x, kFar).values(), (Values{1, 2, 3, 4}));
  EXPECT_EQ(triu(x, -kFar).values(), (Values{1, 2, 3, 4}));
  EXPECT_EQ(tril(x, -kFar).values(), (Values{0, 0, 0, 0}));
  EXPECT_EQ(triu(empty({3, 0})).shape(), (Shape{3, 0}));
}

TEST(Triangle, InfinityOutsideIsDropped) {
  const Session session;
  Tensor x = tensor({{1, INFINITY}, {NAN, 4}}).set_requires_grad();
  const Tensor y = tril(x);
  EXPECT_EQ(y.values()[1], 0);
  backward(triu(tril(x)), {.gradient = tensor({{1, 2}, {3, 4}})});
  EXPECT_EQ(x.grad().values(), (Values{1, 0, 0, 4}));
}

TEST(Triangle, WantsRowsAndColumns) {
  const Session session;
  EXPECT_THROW((void)triu(tensor({1, 2})), ShapeError);
}

}  // namespace
}  // namespace tessera
