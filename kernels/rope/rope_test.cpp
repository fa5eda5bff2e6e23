// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/rope/rope.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Rope, PositionZeroIsTheIdentityAndInverseUndoesIt) {
  const Session session;
  const auto [cos, sin] = rope_tables(5, 6, 10000);
  const Tensor x = normal({2, 5, 3, 6}, {1, 1});
  const Tensor y = rope(x, cos, sin), back = call(op::Rope{true}, {y, cos, sin});
  for (size_t i = 0; i < 18; ++i) EXPECT_EQ(y.values()[i], x.values()[i]);
  for (size_t i = 0; i < 180; ++i) EXPECT_NEAR(back.values()[i], x.values()[i], 1e-6);
}

TEST(Rope, TablesContinueAtAnOffset) {
  const Session session;
  const auto whole = rope_tables(7, 4, 500000)[0].values(),
             tail = rope_tables(3, 4, 500000, 4)[0].values();
  EXPECT_EQ(std::vector<double>(whole.begin() + 8, whole.end()), tail);
}

TEST(Rope, TablesHaveNoGradient) {
  const Session session;
  auto [cos, sin] = rope_tables(2, 4, 100);
  cos.set_requires_grad();
  const Tensor y = rope(normal({2, 1, 4}, {1, 1}), cos, sin);
  EXPECT_THROW(backward(y, {.gradient = ones({2, 1, 4})}), AutogradError);
}

}  // namespace
}  // namespace tessera
