// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/multi_tensor/multi_tensor.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(MultiTensor, NormIsTakenInF64) {
  Context context;
  EXPECT_EQ(norm({tensor({3}), tensor({4})}).item(), 5);
  EXPECT_EQ(norm({}).item(), 0);
  EXPECT_EQ(sum_of_squares({tensor({3}), full({2}, 0.1, DType::f64)}).item(), 9 + 0.1 * 0.1 * 2);
  EXPECT_EQ(sum_of_squares({}).dtype(), DType::f64);
  EXPECT_EQ(norm({full({1 << 20}, 1e-3)}).item(), static_cast<double>(static_cast<float>(std::sqrt(
                                                      double(1e-3f) * double(1e-3f) * (1 << 20)))));
  EXPECT_EQ(norm({full({2}, 1e30)}).item(),
            static_cast<double>(
                static_cast<float>(std::sqrt(2.0) * double(1e30f))));  // squares overflow f32
}

// Far beyond the range of f32, above and below, and at every length of a last block.
TEST(MultiTensor, SquaresOfNarrowFloatsAreExact) {
  Context context;
  for (const DType t : {DType::bf16, DType::f16, DType::f32}) {
    for (const int64_t n : {1, 31, 255, 256, 257, 300, 2000}) {
      std::vector<double> x(static_cast<size_t>(n));
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = std::ldexp(i % 3 ? 1.625 : -1.125, t == DType::f16 ? i % 9 : (i * 7) % 250 - 125);
      double expected = 0;
      for (const double v : x) expected += v * v;
      const double got = call(op::SumSquares{}, {cast(from_values(x, {n}), t)}).item();
      EXPECT_NEAR(got / expected, 1, 1e-14) << t << " " << n;
    }
  }
  EXPECT_EQ(call(op::SumSquares{}, {full({700}, std::ldexp(1, -133), DType::bf16)}).item(),
            700 * std::ldexp(1, -266));
  EXPECT_EQ(call(op::SumSquares{}, {zeros({700}, DType::bf16)}).item(), 0);
  EXPECT_TRUE(std::isnan(call(op::SumSquares{}, {full({700}, NAN, DType::bf16)}).item()));
}

TEST(MultiTensor, ScaleWorksInPlaceAndOnViews) {
  Context context;
  const Tensor x = tensor({{1, 2}, {3, 4}});
  scale_({slice(x, 1, {0, 1}), tensor({1})}, 10);
  EXPECT_EQ(x.values(), (std::vector<double>{10, 2, 30, 4}));
}

// No pass over the tensors, so that a step that clips nothing costs none: NaN payloads stay too.
TEST(MultiTensor, AFactorMayBeATensorAndOneWritesNothing) {
  Context context;
  const Tensor x = tensor({1, 2});
  scale_({x}, tensor(3, DType::f64));
  EXPECT_EQ(x.values(), (std::vector<double>{3, 6}));
  const Tensor signalling = zeros({1});
  *static_cast<uint32_t*>(signalling.raw_data()) = 0x7f800001u;
  scale_({signalling}, tensor(1, DType::f64));
  EXPECT_EQ(*static_cast<uint32_t*>(signalling.raw_data()), 0x7f800001u);
  EXPECT_THROW(scale_({x}, tensor(3, DType::f32)), DTypeError);
}

TEST(MultiTensor, Errors) {
  Context context;
  EXPECT_THROW((void)norm({tensor({1}), Tensor()}), UsageError);
  EXPECT_THROW(scale_({zeros({2}, DType::i64)}, 2), DTypeError);
}

}  // namespace
}  // namespace tessera
