// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/flip/flip.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Flip, ReversesTheDims) {
  Context context;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(flip(x, {0}).values(), (std::vector<double>{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(flip(x, {-1}).values(), (std::vector<double>{3, 2, 1, 6, 5, 4}));
  EXPECT_EQ(flip(x, {1, 0}).values(), (std::vector<double>{6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(flip(transpose(x, 0, 1), {0}).values(), (std::vector<double>{3, 6, 2, 5, 1, 4}));
}

TEST(Flip, OfNothingIsNothing) {
  Context context;
  EXPECT_EQ(flip(zeros({0, 3}), {0, 1}).shape(), (Shape{0, 3}));
  EXPECT_EQ(flip(zeros({3, 0}, DType::bool_), {0}).shape(), (Shape{3, 0}));
  EXPECT_EQ(flip(tensor(2), {}).item(), 2);
}

TEST(Flip, ReadsLongRowsBackwards) {
  Context context;
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::u8}) {
    std::vector<double> up, down;
    for (int i = 0; i < 131; ++i) {
      up.push_back(i);
      down.push_back(130 - i);
    }
    EXPECT_EQ(flip(from_values(up, {131}, t), {0}).values(), down) << t;
  }
}

}  // namespace
}  // namespace tessera
