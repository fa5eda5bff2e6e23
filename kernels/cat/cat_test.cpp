// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cat/cat.h"

#include "tessera/core/context.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Cat, JoinsAlongADim) {
  Context context;
  const Tensor a = tensor({{1, 2}, {3, 4}}), b = from_values({5, 6}, {2, 1});
  EXPECT_EQ(cat({a, b, a}, 1).values(), (std::vector<double>{1, 2, 5, 1, 2, 3, 4, 6, 3, 4}));
  EXPECT_EQ(cat({a, transpose(a, 0, 1)}).values(), (std::vector<double>{1, 2, 3, 4, 1, 3, 2, 4}));
  EXPECT_EQ(cat({zeros({0, 2}), a}).shape(), (Shape{2, 2}));
  EXPECT_EQ(cat({tensor({1}, DType::f8_e4m3), tensor({2}, DType::f8_e4m3)}).values(),
            (std::vector<double>{1, 2}));
}

TEST(Cat, JoinsManyRows) {
  Context context;
  const Tensor a = reshape(arange(0, 27), {9, 3}), b = reshape(arange(100, 118), {9, 2});
  const std::vector<double> y = cat({a, zeros({9, 0}, DType::i64), b}, -1).values();
  ASSERT_EQ(y.size(), 45);
  for (int row = 0; row < 9; ++row) {
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(y[static_cast<size_t>(row * 5 + i)], i < 3 ? row * 3 + i : 97 + row * 2 + i);
  }
}

TEST(Cat, Stack) {
  Context context;
  const Tensor a = tensor({1, 2}), b = tensor({3, 4});
  EXPECT_EQ(stack({a, b}).values(), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(stack({a, b}, -1).values(), (std::vector<double>{1, 3, 2, 4}));
  EXPECT_EQ(stack({tensor(1), tensor(2), tensor(3)}).shape(), (Shape{3}));
  EXPECT_EQ(stack({zeros({0})}, 1).shape(), (Shape{0, 1}));
  EXPECT_THROW((void)stack({}), UsageError);
  EXPECT_THROW((void)stack({a}, 2), IndexError);
  try {
    (void)stack({a, b, zeros({2, 1})});
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(),
                 "[stack] tensors must have one shape: given f32[2] and tensor 2 f32[2, 1]");
  }
}

TEST(Cat, Errors) {
  Context context;
  EXPECT_THROW((void)cat({}), UsageError);
  try {
    (void)cat({zeros({2, 3}), zeros({2, 4})});
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_STREQ(
        e.what(),
        "[cat] shapes must be equal but for dim 0: given f32[2, 3] and tensor 1 f32[2, 4]");
  }
}

TEST(Roll, MovesElementsAndTheLastOnesToTheFront) {
  Context context;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(roll(x, 1, 1).values(), (std::vector<double>{3, 1, 2, 6, 4, 5}));
  EXPECT_EQ(roll(x, -1, -1).values(), (std::vector<double>{2, 3, 1, 5, 6, 4}));
  EXPECT_EQ(roll(x, 7, 1).values(), roll(x, 1, 1).values());
  EXPECT_EQ(roll(x, 1).values(), (std::vector<double>{6, 1, 2, 3, 4, 5}));
  EXPECT_EQ(roll(x, {1, 1}, {0, 1}).values(), (std::vector<double>{6, 4, 5, 3, 1, 2}));
  EXPECT_EQ(roll(zeros({0, 2}), 3, 0).shape(), (Shape{0, 2}));
  EXPECT_EQ(roll(tensor(4), 3).item(), 4);
  EXPECT_THROW((void)roll(x, 1, 2), IndexError);
  EXPECT_THROW((void)roll(x, {1, 2, 3}, {0, 1}), ShapeError);
  EXPECT_EQ(test::error_of<ShapeError>([] { (void)roll(tensor(4), 3, 0); }),
            "[roll] a 0-dim tensor has no dim 0: given f32[]");
}

}  // namespace
}  // namespace tessera
