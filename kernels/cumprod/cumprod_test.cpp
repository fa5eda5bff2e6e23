// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cumprod/cumprod.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Values = std::vector<double>;

TEST(Cumprod, AlongBothDims) {
  const Session session;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(cumprod(x, 1).values(), (Values{1, 2, 6, 4, 20, 120}));
  EXPECT_EQ(cumprod(x, -2).values(), (Values{1, 2, 3, 4, 10, 18}));
  EXPECT_EQ(cumprod(transpose(x, 0, 1), 1).values(), (Values{1, 4, 2, 10, 3, 18}));
}

TEST(Cumprod, ZerosHaveGradients) {
  const Session session;
  Tensor x = tensor({2, 0, 3, 0, 5}).set_requires_grad();
  backward(cumprod(x, 0), {.gradient = ones({5})});
  EXPECT_EQ(x.grad().values(), (Values{1, 8, 0, 0, 0}));  // of 2 + 2b + 6b + ..., by b at 0
}

TEST(Cumprod, Edges) {
  const Session session;
  EXPECT_EQ(cumprod(zeros({0, 3}), 1).shape(), (Shape{0, 3}));
  EXPECT_EQ(cumprod(zeros({3, 0}), 1).numel(), 0);
  EXPECT_EQ(cumprod(tensor(4), 0).item(), 4);
  EXPECT_EQ(cumprod(tensor({65536, 65536, 3}, DType::i32), 0).values(), (Values{65536, 0, 0}));
  EXPECT_THROW((void)cumprod(zeros({3}), 1), IndexError);
}

}  // namespace
}  // namespace tessera
