// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/rms_norm/rms_norm.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
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
