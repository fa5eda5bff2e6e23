// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cummax/cummax.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

using Values = std::vector<double>;

TEST(Cummax, TheLastOfEqualsCounts) {
  const Session session;
  const auto [values, indices] = cummax(tensor({3, 1, 3, 4, 4, 0}), 0);
  EXPECT_EQ(values.values(), (Values{3, 3, 3, 4, 4, 4}));
  EXPECT_EQ(indices.values(), (Values{0, 0, 2, 3, 4, 4}));
  EXPECT_EQ(indices.dtype(), DType::i64);
  EXPECT_EQ(cummin(tensor({3, 1, 3, 1}), 0)[1].values(), (Values{0, 1, 1, 3}));
}

TEST(Cummax, NanStaysFromWhereItAppears) {
  const Session session;
  for (const bool columns : {false, true}) {
    const Tensor x = columns ? tensor({{1, 0}, {NAN, 0}, {5, 0}}) : tensor({1, NAN, 5});
    const auto [values, indices] = cummax(x, 0);
    const size_t step = columns ? 2 : 1;
    EXPECT_EQ(values.values()[0], 1);
    EXPECT_TRUE(std::isnan(values.values()[step]) && std::isnan(values.values()[2 * step]));
    EXPECT_EQ(indices.values()[2 * step], 1);
  }
}

TEST(Cummax, TheElementTakenHasTheGradient) {
  const Session session;
  Tensor x = tensor({3, 1, 4, 2}).set_requires_grad();
  backward(cummax(x, 0)[0], {.gradient = tensor({1, 2, 4, 8})});
  EXPECT_EQ(x.grad().values(), (Values{3, 0, 12, 0}));
}

TEST(Cummax, Edges) {
  const Session session;
  EXPECT_EQ(cummax(zeros({0, 3}), 0)[0].shape(), (Shape{0, 3}));
  EXPECT_EQ(cummin(tensor(4), 0)[0].item(), 4);
  EXPECT_EQ(cummin(tensor({2, -3, 1}, DType::i64), 0)[0].values(), (Values{2, -3, -3}));
  EXPECT_THROW((void)cummin(zeros({3}), 1), IndexError);
}

}  // namespace
}  // namespace tessera
