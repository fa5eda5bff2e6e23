// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/softmax/softmax.h"

#include "tessera/autograd/autograd.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(Softmax, LargeAndMinusInfiniteEntries) {
  const Session session;
  const auto y = softmax(tensor({1000, -INFINITY, 1000})).values();
  EXPECT_EQ(y, (std::vector<double>{0.5, 0, 0.5}));
}

TEST(Softmax, ARowOfMinusInfinityIsNotANumber) {
  const Session session;
  EXPECT_TRUE(std::isnan(softmax(tensor({-INFINITY, -INFINITY})).values()[0]));
}

TEST(LogSoftmax, LargeAndMinusInfiniteEntries) {
  const Session session;
  const auto y = log_softmax(tensor({1000, -INFINITY, 1000})).values();
  EXPECT_NEAR(y[0], -std::log(2.0), 1e-6);
  EXPECT_EQ(y[1], -INFINITY);
  EXPECT_NEAR(log_softmax(tensor({0, 200})).values()[0], -200, 1e-4);  // where log(softmax) is -inf
}

TEST(LogSoftmax, AMaskedEntryHasNoGradient) {
  const Session session;
  Tensor x = tensor({1, -INFINITY, 1}).set_requires_grad();
  backward(log_softmax(x), {.gradient = tensor({1, 0, 0})});
  EXPECT_EQ(x.grad().values(), (std::vector<double>{0.5, 0, -0.5}));
}

TEST(Softmax, OfAGradientBothOperandsAreOfOneDtype) {
  const Session session;
  const Tensor y = tensor({1, 0}), dy = tensor({1, 0}, DType::f64);
  EXPECT_EQ(test::error_of<DTypeError>([&] {
              (void)call(op::SoftmaxBackward{}, {y, dy});
            }),
            "[softmax_backward] y and dy must share one dtype of f64, f32, bf16, f16: y is f32[2], "
            "dy is f64[2]");
  EXPECT_THROW((void)call(op::LogSoftmaxBackward{}, {y, dy}), DTypeError);
}

}  // namespace
}  // namespace tessera
