// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/sampling/sampling.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace tessera {
namespace {

using Values = std::vector<double>;

TEST(RandInt, EveryNumberIsEquallyLikely) {
  Context context;
  Values times(7);
  for (const double v : randint(-3, 4, {70000}, {1, 2}).values())
    ++times.at(static_cast<size_t>(v + 3));
  for (const double t : times) EXPECT_NEAR(t, 10000, 400);  // 4 standard deviations
}

TEST(RandInt, LoopsKeepToTheDefinition) {
  Context context;
  const op::RandInt op{{3, 67},  -5,     (int64_t{1} << 40) + 3, DType::i64, kCpu, {7, 9},
                       {4, 131}, {1, 33}};
  const auto v = call(op, {}).values();
  for (uint64_t i = 0; i < v.size(); ++i)
    ASSERT_EQ(v[i], static_cast<double>(op.element((i / 67 + 1) * 131 + 33 + i % 67)));
}

TEST(RandInt, TakesTheWidestRange) {
  Context context;
  const int64_t low = std::numeric_limits<int64_t>::min(),
                high = std::numeric_limits<int64_t>::max();
  const Tensor x = randint(low, high, {1000}, {1, 2});
  EXPECT_NEAR(mean(cast(x, DType::f64)).item() * 0x1p-63, 0, 0.08);
  EXPECT_THROW((void)randint(0, high, {2}, {1, 2}, DType::i32), ValueError);
}

TEST(Bernoulli, KeepsToTheProbability) {
  Context context;
  EXPECT_NEAR(mean(bernoulli(full({100000}, 0.3), {1, 2})).item(), 0.3, 0.006);
  EXPECT_EQ(bernoulli(tensor({0, 1, -1, 2}, DType::bf16), {3, 4}).values(), (Values{0, 1, 0, 1}));
  EXPECT_EQ(bernoulli(zeros({0, 2}), {3, 4}).shape(), (Shape{0, 2}));
  EXPECT_THROW((void)bernoulli(zeros({2}, DType::i64), {3, 4}), DTypeError);
}

TEST(Bernoulli, IsAFunctionOfTheKey) {
  Context context;
  const Tensor p = full({64}, 0.5);
  EXPECT_EQ(bernoulli(p, {1, 2}).values(), bernoulli(p, {1, 2}).values());
  EXPECT_NE(bernoulli(p, {1, 2}).values(), bernoulli(p, {1, 3}).values());
}

TEST(Multinomial, DrawsInProportionToTheWeights) {
  Context context;
  const Tensor p = tensor({{1, 0, 3, 4}, {0, 2, 0, 0}});
  Values times(4);
  const Tensor drawn = multinomial(p, 40000, {1, 2}, true);  // (2, 40000)
  for (const double v : drawn[0].values()) ++times.at(static_cast<size_t>(v));
  EXPECT_NEAR(times[0], 5000, 300);
  EXPECT_EQ(times[1], 0);
  EXPECT_NEAR(times[2], 15000, 400);
  EXPECT_NEAR(times[3], 20000, 400);
  EXPECT_EQ(drawn[1].values(), Values(40000, 1));
}

TEST(Multinomial, DrawsNoPlaceTwiceWithoutReplacement) {
  Context context;
  Values first(3);
  const Tensor drawn = multinomial(expand(tensor({1, 0, 2}), {30000, 3}), 2, {5, 6});  // (30000, 2)
  const Values v = drawn.values();
  for (size_t i = 0; i < v.size(); i += 2) {
    EXPECT_NE(v[i], v[i + 1]);
    EXPECT_NE(v[i], 1);
    EXPECT_NE(v[i + 1], 1);
    ++first.at(static_cast<size_t>(v[i]));
  }
  EXPECT_NEAR(first[2], 20000, 400);
}

TEST(Multinomial, AllPlacesAreAPermutation) {
  Context context;
  const Values v = multinomial(ones({9}, DType::bf16), 9, {5, 6}).values();
  EXPECT_EQ(std::set<double>(v.begin(), v.end()).size(), 9u);
  EXPECT_EQ(multinomial(zeros({0, 3}), 2, {5, 6}, true).shape(), (Shape{0, 2}));
}

TEST(Multinomial, SaysWhichWeightsCannotBeDrawnFrom) {
  Context context;
  EXPECT_THROW((void)multinomial(tensor({1, 2}), 3, {1, 2}), ValueError);
  EXPECT_THROW((void)multinomial(tensor({1, 0}), 2, {1, 2}), ValueError);
  EXPECT_THROW((void)multinomial(tensor({1, -1}), 1, {1, 2}), ValueError);
  EXPECT_THROW((void)multinomial(tensor({1, std::numeric_limits<double>::quiet_NaN()}), 1, {1, 2}),
               ValueError);
  EXPECT_THROW((void)multinomial(tensor({{1, 1}, {0, 0}}), 1, {1, 2}, true), ValueError);
  EXPECT_THROW((void)multinomial(tensor({1, 2}, DType::i64), 1, {1, 2}), DTypeError);
  EXPECT_THROW((void)multinomial(zeros({2, 0}), 1, {1, 2}), ShapeError);
  EXPECT_THROW((void)multinomial(tensor(1), 1, {1, 2}), ShapeError);
}

TEST(Sampling, DrawsWithoutAKeyDiffer) {
  Context context;
  EXPECT_NE(randint(0, 1000, {20}).values(), randint(0, 1000, {20}).values());
  const Tensor p = full({200}, 0.5);
  EXPECT_NE(bernoulli(p).values(), bernoulli(p).values());
  EXPECT_NE(multinomial(p, 20).values(), multinomial(p, 20).values());
  EXPECT_EQ(multinomial(p, 300, true).shape(), (Shape{300}));
}

}  // namespace
}  // namespace tessera
