// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/pad/pad.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Values = std::vector<double>;

TEST(Pad, SurroundsByAValueFromTheLastDimOn) {
  Context context;
  const Tensor x = tensor({{1, 2}, {3, 4}});
  EXPECT_EQ(pad(x, {1, 2}, PadMode::constant, 9).values(), (Values{9, 1, 2, 9, 9, 9, 3, 4, 9, 9}));
  EXPECT_EQ(pad(x, {0, 0, 0, 1}).values(), (Values{1, 2, 3, 4, 0, 0}));
  EXPECT_EQ(pad(zeros({0, 2}), {0, 0, 1, 1}, PadMode::constant, 5).values(), (Values(4, 5)));
}

TEST(Pad, TakesElementsAwayByNegativeSizes) {
  Context context;
  const Tensor x = tensor({1, 2, 3, 4, 5});
  EXPECT_EQ(pad(x, {-1, 2}, PadMode::constant, 9).values(), (Values{2, 3, 4, 5, 9, 9}));
  EXPECT_EQ(pad(x, {-2, -2}).values(), (Values{3}));
  EXPECT_EQ(pad(x, {-2, 1}, PadMode::replicate).values(), (Values{3, 4, 5, 5}));
}

TEST(Pad, ReflectsWithoutTheEdge) {
  Context context;
  EXPECT_EQ(pad(tensor({1, 2, 3, 4}), {3, 2}, PadMode::reflect).values(),
            (Values{4, 3, 2, 1, 2, 3, 4, 3, 2}));
  EXPECT_EQ(pad(tensor({{1, 2}, {3, 4}}), {1, 1, 1, 0}, PadMode::reflect).values(),
            (Values{4, 3, 4, 3, 2, 1, 2, 1, 4, 3, 4, 3}));
}

TEST(Pad, ReplicatesTheEdge) {
  Context context;
  EXPECT_EQ(pad(tensor({1, 2, 3}), {2, 1}, PadMode::replicate).values(),
            (Values{1, 1, 1, 2, 3, 3}));
}

TEST(Pad, GoesRoundInACircle) {
  Context context;
  EXPECT_EQ(pad(tensor({1, 2, 3}), {2, 3}, PadMode::circular).values(),
            (Values{2, 3, 1, 2, 3, 1, 2, 3}));
}

TEST(Pad, AddsUpGradientsOfElementsThatStandTwice) {
  const Session session;
  const auto gradient = [](PadMode mode) {
    Tensor x = tensor({1, 2, 3});
    x.set_requires_grad();
    backward(sum(mul(pad(x, {2, 1}, mode), tensor({1, 10, 100, 1000, 10000, 100000}))));
    return x.grad().values();
  };
  EXPECT_EQ(gradient(PadMode::constant), (Values{100, 1000, 10000}));
  EXPECT_EQ(gradient(PadMode::reflect), (Values{100, 101010, 10001}));
  EXPECT_EQ(gradient(PadMode::replicate), (Values{111, 1000, 110000}));
  EXPECT_EQ(gradient(PadMode::circular), (Values{100100, 1001, 10010}));
}

TEST(Pad, SaysWhatDoesNotFit) {
  Context context;
  const Tensor x = zeros({3, 2});
  EXPECT_THROW((void)pad(x, {1}), ShapeError);
  EXPECT_THROW((void)pad(x, {1, 1, 1, 1, 1, 1}), ShapeError);
  EXPECT_THROW((void)pad(x, {-1, -2}), ShapeError);
  EXPECT_THROW((void)pad(x, {2, 0}, PadMode::reflect), ShapeError);
  EXPECT_THROW((void)pad(x, {3, 0}, PadMode::circular), ShapeError);
  EXPECT_THROW((void)pad(zeros({0}), {1, 0}, PadMode::replicate), ShapeError);
}

}  // namespace
}  // namespace tessera
