// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/rms_norm/rms_norm.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(RmsNorm, KnownValues) {
  const Session session;
  const auto y = rms_norm(tensor({{3, 4}}), tensor({1, 2}), 0).values();
  EXPECT_NEAR(y[0], 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(y[1], 8 / std::sqrt(12.5), 1e-6);
}

TEST(RmsNorm, AZeroRowStaysZero) {
  const Session session;
  EXPECT_EQ(rms_norm(tensor({{0, 0}}), tensor({1, 1})).values(), (std::vector<double>{0, 0}));
}

TEST(RmsNorm, WithAResidualItIsTheNormOfTheSum) {
  const Session session;
  Tensor x = normal({3, 8}, {1, 1}, 0, 1, DType::bf16).set_requires_grad(),
         r = normal({3, 8}, {1, 2}, 0, 1, DType::bf16).set_requires_grad(),
         w = normal({8}, {1, 3}, 0, 1, DType::bf16).set_requires_grad();
  const auto [y, sum] = add_rms_norm(x, r, w);
  const Tensor apart = x + r;
  EXPECT_EQ(sum.values(), apart.values());
  EXPECT_EQ(y.values(), rms_norm(apart, w).values());
}

// Output and gradients of Gemma's norm against ops, in f64; the gradient of the sum is dx_more.
TEST(RmsNorm, AnOffsetIsAddedToTheWeight) {
  const Session session;
  const auto results = [](auto&& norm) {
    Tensor x = normal({5, 37}, {1, 1}, 0, 1, DType::f64).set_requires_grad(),
           r = normal({5, 37}, {1, 2}, 0, 1, DType::f64).set_requires_grad(),
           w = normal({37}, {1, 3}, 0, 1, DType::f64).set_requires_grad();
    const Tensor g = normal({5, 37}, {1, 4}, 0, 1, DType::f64);
    const AddRmsNormResult result = norm(x, r, w);
    std::vector<double> all = result.y.values();
    for (const Tensor& d :
         grad({result.y, result.sum}, {x, r, w}, {.grad_outputs = {g, g * 2.0}})) {
      const auto v = d.values();
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  };
  const auto of_ops = results([](const Tensor& x, const Tensor& r, const Tensor& w) {
    const Tensor sum = x + r;
    return AddRmsNormResult{sum * rsqrt(mean(sum * sum, {-1}, true) + 1e-3) * (w + 1.0), sum};
  });
  const auto plain = results([](const Tensor& x, const Tensor& r, const Tensor& w) {
    return AddRmsNormResult{rms_norm(x + r, w, 1e-3, 1), x + r};
  });
  const auto with_residual = results([](const Tensor& x, const Tensor& r, const Tensor& w) {
    return add_rms_norm(x, r, w, 1e-3, 1);
  });
  ASSERT_EQ(of_ops.size(), 3 * 5 * 37 + 37);
  for (size_t i = 0; i < of_ops.size(); ++i) {
    EXPECT_NEAR(plain[i], of_ops[i], 1e-12) << i;
    EXPECT_NEAR(with_residual[i], of_ops[i], 1e-12) << i;
  }
}

// In bf16, 1 + 2^-10 is 1. The normalised x is just below the middle of two numbers of bf16, so
// that y is the upper one only with the exact sum.
TEST(RmsNorm, AnOffsetTakesNothingFromANarrowWeight) {
  const Session session;
  const double r = 1 - 0x1p-9 - 0x1p-11, below = 1 - 0x1p-8;
  const Tensor x = ones({1, 8}, DType::bf16), w = full({8}, 0x1p-10, DType::bf16);
  const auto y_of = [&](const Tensor& weight) {
    return rms_norm(x, weight, 1 / (r * r) - 1, 1).values();
  };
  EXPECT_EQ(y_of(w), std::vector<double>(8, 1));
  EXPECT_EQ(y_of(w * 0.0), std::vector<double>(8, below));
  const auto dx_of = [&](const Tensor& weight) {
    return call(op::RmsNormBackward{1}, {x * 0.0, weight, full({1}, r), x})[0].values();
  };
  EXPECT_EQ(dx_of(w), std::vector<double>(8, 1));
  EXPECT_EQ(dx_of(w * 0.0), std::vector<double>(8, below));
}

TEST(RmsNorm, WithoutAnOffsetAWeightKeepsItsSign) {
  const Session session;
  for (const double v : rms_norm(tensor({{3, 4}}), tensor({-0.0, -0.0})).values())
    EXPECT_TRUE(v == 0 && std::signbit(v));
}

TEST(RmsNorm, AnOffsetNeedsAWeight) {
  const Session session;
  EXPECT_EQ(test::error_of<ValueError>([] {
              (void)rms_norm(zeros({2, 3}), Tensor(), 1e-5, 1);
            }),
            "[rms_norm] weight_offset 1 needs a weight to be added to: given none for f32[2, 3]; a "
            "weight of zeros makes the offset the factor");
  EXPECT_EQ(test::error_of<ValueError>([] {
              (void)rms_norm(zeros({2, 3}), zeros({3}), 1e-5, std::nan(""));
            }),
            "[rms_norm] weight_offset must be finite: given nan for f32[2, 3]");
}

TEST(RmsNorm, TheStatisticHasNoGradient) {
  const Session session;
  const Tensor x = ones({3, 4}).set_requires_grad(), w = ones({4}), dy = ones({3});
  const auto error_of = [&](const Tensor& rstd) {
    return test::error_of<AutogradError>([&] { backward(rstd, {.gradient = dy}); });
  };
  EXPECT_EQ(error_of(call(op::RmsNorm{}, {x, w})[1]),
            "[rms_norm] rstd has no gradient, backward alone reads it: given dy of f32[3]");
  EXPECT_EQ(error_of(call(op::AddRmsNorm{}, {x, x, w})[2]),
            "[add_rms_norm] rstd has no gradient, backward alone reads it: given dy of f32[3]");
  EXPECT_EQ(test::error_of<ShapeError>([&] {
              (void)call(op::RmsNormBackward{}, {x, w, ones({4}), x});
            }),
            "[rms_norm_backward] rstd must hold one f32 per row of x: x is f32[3, 4], rstd is "
            "f32[4]");
}

// The gradient may come through the norm, the sum, or both.
TEST(RmsNorm, GradientsOfTheSumAndOfTheNormMeet) {
  const Session session;
  const auto gradients = [](bool through_y, bool through_sum, bool fused) {
    Tensor x = normal({3, 8}, {1, 1}).set_requires_grad(),
           r = normal({3, 8}, {1, 2}).set_requires_grad(),
           w = normal({8}, {1, 3}).set_requires_grad();
    AddRmsNormResult result;
    if (fused) result = add_rms_norm(x, r, w);
    else result = {rms_norm(x + r, w), x + r};
    const Tensor g = normal({3, 8}, {1, 4});
    std::vector<Tensor> outputs;
    GradOptions options{.allow_unused = true};
    if (through_y) outputs.push_back(result.y), options.grad_outputs.push_back(g);
    if (through_sum) outputs.push_back(result.sum), options.grad_outputs.push_back(g * 2.0);
    std::vector<double> all;
    for (const Tensor& d : grad(outputs, {x, r, w}, options)) {
      if (!d.defined()) continue;
      const auto v = d.values();
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  };
  for (const auto& [y, sum] : {std::pair{true, false}, {false, true}, {true, true}}) {
    const auto got = gradients(y, sum, true), want = gradients(y, sum, false);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << i;
  }
}

}  // namespace
}  // namespace tessera
