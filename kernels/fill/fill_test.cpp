// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/fill/fill.h"

#include "tessera/core/context.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

TEST(Fill, Values) {
  Context context;
  EXPECT_EQ(full({2}, -3, DType::i64).values(), (std::vector<double>{-3, -3}));
  EXPECT_EQ(ones({3}, DType::bool_).values(), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(zeros({0, 4}).numel(), 0);
  EXPECT_EQ(full({2}, 1, DType::f32, kMeta).device(), kMeta);
}

// The loops make the bits that Random::element defines, wherever a run starts and whatever its
// length.
TEST(Random, LoopsKeepToTheDefinition) {
  Context context;
  for (const auto d :
       {op::Distribution::uniform, op::Distribution::normal, op::Distribution::truncated_normal}) {
    op::Random r;
    r.distribution = d;
    r.key = {3, stream_of("layers.0.wq")};
    r.std = 0.7;
    r.low = -0.5;
    r.high = 1.25;
    r.whole = {5, 333};
    for (const auto& [start, shape] :
         {std::pair<Shape, Shape>{{0, 0}, {5, 333}}, {{2, 3}, {2, 201}}, {{4, 331}, {1, 2}}}) {
      r.start = start;
      r.shape = shape;
      const Tensor y = call(r, {});
      const float* p = y.data<float>();
      for (int64_t i = 0; i < y.numel(); ++i) {
        const int64_t at = (start[0] + i / shape[1]) * 333 + start[1] + i % shape[1];
        ASSERT_EQ(p[i], r.element(static_cast<uint64_t>(at))) << d << " element " << at;
      }
    }
  }
}

TEST(Random, Moments) {
  Context context;
  const Tensor x = normal({100000}, {1, 2}, 3, 2);
  double mean = 0, square = 0;
  for (const double v : x.values()) {
    mean += v / 1e5;
    square += (v - 3) * (v - 3) / 1e5;
  }
  EXPECT_NEAR(mean, 3, 0.03);
  EXPECT_NEAR(square, 4, 0.1);
  for (const double v : truncated_normal({5000}, {1, 2}, 0, 1, -0.5, 0.5).values())
    ASSERT_LE(std::abs(v), 0.5);
  for (const double v : uniform({5000}, {1, 2}, -1, 2).values()) ASSERT_TRUE(v >= -1 && v < 2);
}

// A few of 2^24 uniforms round to 1; the end of the range is left out all the same.
TEST(Random, UniformStaysBelowItsEnd) {
  Context context;
  const Tensor x = uniform({1 << 24}, {1, 8}, 0, 2048);
  const float* p = x.data<float>();
  EXPECT_LT(*std::max_element(p, p + x.numel()), 2048);
}

TEST(Random, KeysDiffer) {
  Context context;
  EXPECT_EQ(normal({8}, {1, 2}).values(), normal({8}, {1, 2}).values());
  EXPECT_NE(normal({8}, {1, 2}).values(), normal({8}, {1, 3}).values());
  EXPECT_NE(normal({8}, {1, 2}).values(), normal({8}, {2, 2}).values());
}

TEST(Random, Errors) {
  Context context;
  EXPECT_THROW((void)normal({2}, {}, 0, 1, DType::i64), DTypeError);
  EXPECT_THROW((void)normal({2}, {}, 0, -1), ValueError);
  op::Random piece;
  piece.shape = piece.start = {3};
  piece.whole = {5};
  EXPECT_THROW((void)call(piece, {}), ShapeError);
}

TEST(Random, DrawsWithoutAKeyDifferAndFollowTheSeed) {
  Context context;
  manual_seed(7);
  const Tensor a = randn({4, 3}), b = randn({4, 3}), c = rand({5}, DType::f64);
  EXPECT_NE(a.values(), b.values());
  EXPECT_EQ(c.dtype(), DType::f64);
  for (const double v : c.values()) EXPECT_TRUE(v >= 0 && v < 1);
  manual_seed(7);
  EXPECT_EQ(randn({4, 3}).values(), a.values());
  manual_seed(8);
  EXPECT_NE(randn({4, 3}).values(), a.values());
}

TEST(Random, LikeTakesShapeAndDtype) {
  Context context;
  const Tensor x = zeros({2, 0, 3}, DType::bf16);
  EXPECT_EQ(rand_like(x).shape(), x.shape());
  EXPECT_EQ(randn_like(x).dtype(), DType::bf16);
  EXPECT_THROW((void)randn_like(zeros({2}, DType::i64)), DTypeError);
}

}  // namespace
}  // namespace tessera
