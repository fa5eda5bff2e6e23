// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cross_entropy/cross_entropy.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(CrossEntropy, IgnoredRowsCountNeitherInSumNorInGradient) {
  const Session session;
  Tensor logits = zeros({3, 4}).set_requires_grad();
  const auto [sum, count] = cross_entropy(logits, tensor({1, -100, 3}, DType::i64));
  EXPECT_NEAR(sum.item(), 2 * std::log(4.0), 1e-6);
  EXPECT_EQ(count.item(), 2);
  backward(sum);
  const auto g = logits.grad().values();
  for (size_t i = 4; i < 8; ++i) EXPECT_EQ(g[i], 0);
  EXPECT_NEAR(g[1], -0.75, 1e-6);
}

TEST(CrossEntropy, AnIgnoredRowOfInfinitiesHasNoGradient) {
  const Session session;
  for (const double value :
       std::vector<double>{-INFINITY, 1e38}) {  // the second: a share of the softmax overflows
    Tensor logits = full({2, 4}, value).set_requires_grad();
    const auto [sum, count] =
        cross_entropy(logits, tensor({-100, -100}, DType::i64), {.z_loss = 1e3});
    backward(sum);
    EXPECT_EQ(logits.grad().values(), std::vector<double>(8, 0)) << value;
  }
}

TEST(CrossEntropy, LargeLogitsKeepTheDigitsOfSmallLosses) {
  const Session session;
  const Tensor logits = tensor({{0, 1e4 - 5, 1e4, 0}}), target = tensor({2}, DType::i64);
  EXPECT_NEAR(cross_entropy(logits, target).sum.item(), 0.0067153485, 1e-9);  // log(1 + exp(-5))
  EXPECT_NEAR(cross_entropy(logits, target, {.weight = tensor({1, 1, 3, 1})}).sum.item(),
              3 * 0.0067153485, 3e-9);
  // 0.9 of the target, and 0.1 of the mean of 1e4, 5, 0 and 1e4 more than that.
  const double smoothed = cross_entropy(logits, target, {.label_smoothing = 0.1}).sum.item();
  EXPECT_NEAR(smoothed, 0.0067153485 + 0.025 * 20005, 4e-5);
}

TEST(CrossEntropy, NothingButIgnoredRowsIsZeroOfZero) {
  const Session session;
  const auto [sum, count] = cross_entropy(zeros({2, 4}), tensor({-100, -100}, DType::i64));
  EXPECT_EQ(sum.item(), 0);
  EXPECT_EQ(count.item(), 0);
}

TEST(CrossEntropy, ATargetOutOfRangeIsNamed) {
  const Session session;
  try {
    (void)cross_entropy(zeros({2, 4}), tensor({0, 4}, DType::i64));
    FAIL() << "expected IndexError";
  } catch (const IndexError& e) {
    EXPECT_NE(std::string(e.what()).find("target 4 at row 1 is out of range: expected 0 to 3"),
              std::string::npos)
        << e.what();
  }
}

TEST(CrossEntropy, TakesTargetsOf32Bits) {
  Context context;
  const Tensor logits = tensor({{1, 2, 3}, {0, 5, 0}});
  EXPECT_EQ(cross_entropy(logits, tensor({2, -100}, DType::i32)).sum.item(),
            cross_entropy(logits, tensor({2, -100}, DType::i64)).sum.item());
}

}  // namespace
}  // namespace tessera
