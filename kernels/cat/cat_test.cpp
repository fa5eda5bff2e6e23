// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cat/cat.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/views/views.h"

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

}  // namespace
}  // namespace tessera
