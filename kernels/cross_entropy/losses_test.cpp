// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cross_entropy/losses.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

using Values = std::vector<double>;

TEST(Losses, Reductions) {
  const Session session;
  const Tensor x = tensor({1, 2, 4}), target = tensor({1, 0, 1});
  EXPECT_EQ(mse_loss(x, target, Reduction::none).values(), (Values{0, 4, 9}));
  EXPECT_EQ(mse_loss(x, target, Reduction::sum).item(), 13);
  EXPECT_NEAR(mse_loss(x, target).item(), 13.0 / 3, 1e-6);
  EXPECT_EQ(l1_loss(x, target, Reduction::none).values(), (Values{0, 2, 3}));
  EXPECT_EQ(huber_loss(x, target, 2, Reduction::none).values(), (Values{0, 2, 4}));
  EXPECT_EQ(smooth_l1_loss(x, target, 2, Reduction::none).values(), (Values{0, 1, 2}));
  EXPECT_EQ(smooth_l1_loss(x, target, 0, Reduction::none).values(), (Values{0, 2, 3}));
  EXPECT_THROW((void)huber_loss(x, target, 0), ValueError);
  EXPECT_THROW((void)smooth_l1_loss(x, target, -1), ValueError);
  EXPECT_EQ(mse_loss(zeros({0}), zeros({0}), Reduction::sum).item(), 0);
  EXPECT_EQ(mse_loss(ones({2, 3}), zeros({3}), Reduction::sum).item(), 6);
}

TEST(Losses, GradientsAtTiesAndFarOut) {
  const Session session;
  Tensor x = tensor({1, 3, -2}).set_requires_grad();
  backward(l1_loss(x, tensor({1, 0, 0}), Reduction::sum));
  EXPECT_EQ(x.grad().values(), (Values{0, 1, -1}));
  for (const DType t : {DType::f16, DType::bf16, DType::f32}) {
    Tensor logits = tensor({-1000, 1000, 1000, -1000}, t).set_requires_grad();
    const Tensor loss = binary_cross_entropy_with_logits(logits, tensor({0, 1, 0, 1}, t),
                                                         {.reduction = Reduction::none});
    EXPECT_EQ(loss.values(), (Values{0, 0, 1000, 1000})) << t;
    backward(loss, {.gradient = full({4}, 1, t)});
    EXPECT_EQ(logits.grad().values(), (Values{0, 0, 1, -1})) << t;
  }
}

TEST(Losses, KlDivOfNothingIsZero) {
  const Session session;
  const Tensor input = log(tensor({0.5, 0.25, 0.25}));
  const auto terms = kl_div(input, tensor({0.5, 0.5, 0}), {.reduction = Reduction::none}).values();
  EXPECT_NEAR(terms[0], 0, 1e-7);
  EXPECT_NEAR(terms[1], 0.5 * std::log(2.0), 1e-7);
  EXPECT_EQ(terms[2], 0);
}

TEST(NllLoss, TakesRowsOfAnyShapeAndIgnoresSome) {
  const Session session;
  const Tensor x = tensor({{-1, -2, -3}, {-4, -5, -6}});
  const Tensor targets = tensor({2, -100}, DType::i64), weight = tensor({1, 1, 4});
  EXPECT_EQ(nll_loss(x, targets, {.reduction = Reduction::none}).values(), (Values{3, 0}));
  EXPECT_EQ(nll_loss(x, targets).item(), 3);
  EXPECT_EQ(nll_loss(x, targets, {.weight = weight, .reduction = Reduction::sum}).item(), 12);
  EXPECT_EQ(nll_loss(x, targets, {.weight = weight}).item(), 3);
  EXPECT_EQ(nll_loss(tensor({-1, -2}), tensor(1, DType::i64)).item(), 2);
  const Tensor ignored = full({2}, -100, DType::i64);
  EXPECT_TRUE(std::isnan(nll_loss(x, ignored).item()));
  EXPECT_THROW((void)nll_loss(x, tensor({0, 1, 2}, DType::i64)), ShapeError);
  EXPECT_THROW((void)nll_loss(x, tensor({0, 3}, DType::i64)), IndexError);
}

TEST(CrossEntropy, OfEachTokenAndByWeights) {
  const Session session;
  const Tensor targets = tensor({1, -100, 3}, DType::i64);
  Tensor logits = zeros({3, 4}).set_requires_grad();
  const Tensor each = cross_entropy(logits, targets, Reduction::none);
  EXPECT_EQ(each.shape(), (Shape{3}));
  EXPECT_NEAR(each.values()[0], std::log(4.0), 1e-6);
  EXPECT_EQ(each.values()[1], 0);
  backward(each, {.gradient = tensor({2, 5, 0})});
  const auto g = logits.grad().values();
  EXPECT_NEAR(g[1], -1.5, 1e-6);
  for (size_t i = 4; i < 12; ++i) EXPECT_EQ(g[i], 0);
  const Tensor weight = tensor({1, 2, 1, 4});
  const double sum = cross_entropy(logits, targets, Reduction::sum, {.weight = weight}).item();
  EXPECT_NEAR(sum, 6 * std::log(4.0), 1e-5);
  const double mean = cross_entropy(logits, targets, Reduction::mean, {.weight = weight}).item();
  EXPECT_NEAR(mean, std::log(4.0), 1e-6);
}

TEST(CrossEntropy, WeightsAreConstants) {
  const Session session;
  const Tensor targets = tensor({1, 0}, DType::i64);
  Tensor weight = ones({4}).set_requires_grad();
  const Tensor loss = cross_entropy(zeros({2, 4}), targets, {.weight = weight}).sum;
  EXPECT_THROW(backward(loss), AutogradError);
  EXPECT_THROW((void)cross_entropy(zeros({2, 4}), targets, {.weight = ones({3})}), ShapeError);
  EXPECT_THROW((void)cross_entropy(zeros({2, 4}), targets, {.weight = ones({4}, DType::bf16)}),
               DTypeError);
}

}  // namespace
}  // namespace tessera
