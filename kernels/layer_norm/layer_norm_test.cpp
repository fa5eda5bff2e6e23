// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/layer_norm/layer_norm.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(LayerNorm, KnownValues) {
  const Session session;
  const auto y = layer_norm(tensor({{1, 3}}), tensor({1, 2}), tensor({10, 20}), 0).values();
  EXPECT_NEAR(y[0], 9, 1e-6);
  EXPECT_NEAR(y[1], 22, 1e-6);
}

TEST(LayerNorm, AConstantRowIsTheBias) {
  const Session session;
  EXPECT_EQ(layer_norm(tensor({{7, 7}}), tensor({3, 3}), tensor({1, 2})).values(),
            (std::vector<double>{1, 2}));
  EXPECT_EQ(layer_norm(tensor({{7, 7}}), tensor({3, 3})).values(), (std::vector<double>{0, 0}));
}

// The variance is of differences: a mean far from zero costs it nothing.
TEST(LayerNorm, AFarMeanDoesNotDrownTheVariance) {
  const Session session;
  const auto y = layer_norm(tensor({{4096.25, 4095.75}}), tensor({1, 1}), {}, 0).values();
  EXPECT_EQ(y, (std::vector<double>{1, -1}));
}

TEST(LayerNorm, RowsOfNothing) {
  const Session session;
  EXPECT_EQ(layer_norm(zeros({0, 4}), ones({4})).shape(), (Shape{0, 4}));
  Tensor w = ones({4}).set_requires_grad(), b = zeros({4}).set_requires_grad();
  backward(layer_norm(zeros({0, 4}), w, b), {.gradient = zeros({0, 4})});
  EXPECT_EQ(w.grad().values(), std::vector<double>(4, 0));
  EXPECT_EQ(b.grad().values(), std::vector<double>(4, 0));
}

// Every choice of parameters against ops, in f64.
TEST(LayerNorm, WeightAndBiasMayBeLeftOut) {
  const Session session;
  const auto results = [](bool weighted, bool biased, auto&& norm) {
    const auto leaf = [](const Shape& shape, uint64_t stream) {
      return normal(shape, {1, stream}, 0, 1, DType::f64).set_requires_grad();
    };
    const Tensor x = leaf({5, 37}, 1), w = weighted ? leaf({37}, 2) : Tensor(),
                 b = biased ? leaf({37}, 3) : Tensor();
    const Tensor y = norm(x, w, b);
    backward(y, {.gradient = normal({5, 37}, {1, 4}, 0, 1, DType::f64)});
    std::vector<double> all = y.values();
    for (const Tensor& t : {x, w, b}) {
      if (!t.defined()) continue;
      const auto v = t.grad().values();
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  };
  for (const auto& [weighted, biased] :
       {std::pair{true, true}, {true, false}, {false, true}, {false, false}}) {
    const auto got = results(weighted, biased, [](const auto& x, const auto& w, const auto& b) {
      return layer_norm(x, w, b, 1e-3);
    });
    const auto want = results(weighted, biased, [](const auto& x, const auto& w, const auto& b) {
      const Tensor centred = x - mean(x, {-1}, true);
      Tensor y = centred * rsqrt(mean(centred * centred, {-1}, true) + 1e-3);
      if (w.defined()) y = y * w;
      return b.defined() ? y + b : y;
    });
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12) << i;
  }
  const Tensor x = tensor({{1, 2, 6}});
  EXPECT_EQ(layer_norm(x, 0.5).values(), layer_norm(x, ones({3}), zeros({3}), 0.5).values());
}

TEST(LayerNorm, Errors) {
  const Session session;
  EXPECT_THROW((void)layer_norm(zeros({3, 4}), ones({3})), ShapeError);
  EXPECT_THROW((void)layer_norm(zeros({3, 4}), ones({4}), zeros({4}, DType::bf16)), DTypeError);
  EXPECT_THROW((void)layer_norm(zeros({3, 4}, DType::i64), ones({4}, DType::i64)), DTypeError);
}

TEST(LayerNorm, StatisticsHaveNoGradient) {
  const Session session;
  const Tensor x = zeros({3, 4}).set_requires_grad();
  for (const size_t i : {1, 2}) {
    const Tensor statistic = call(op::LayerNorm{}, {x, ones({4}), Tensor()})[i];
    EXPECT_EQ(test::error_of<AutogradError>([&] { backward(statistic, {.gradient = ones({3})}); }),
              concat("[layer_norm] ", i == 1 ? "mean" : "rstd",
                     " has no gradient, backward alone reads it: given dy of f32[3]"));
  }
}

// Mean 2.5 and variance 1.25 over (2, 2).
TEST(LayerNorm, NormalisesOverSeveralDims) {
  Context context;
  const Tensor x = tensor({{1, 2}, {3, 4}}), weight = tensor({{1, 1}, {1, 2}}),
               bias = tensor({{0, 0}, {0, 1}});
  const double unit = 1 / std::sqrt(1.25);
  const auto y = layer_norm(x, weight, bias, 0).values();
  const std::vector<double> expected{-1.5 * unit, -0.5 * unit, 0.5 * unit, 3 * unit + 1};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], expected[i], 1e-6);
  EXPECT_EQ(layer_norm(zeros({0, 2, 2}), weight).shape(), (Shape{0, 2, 2}));
  EXPECT_THROW((void)layer_norm(zeros({2, 3}), weight), ShapeError);
  EXPECT_THROW((void)layer_norm(zeros({2}), weight), ShapeError);
  EXPECT_THROW((void)layer_norm(x, weight, zeros({4})), ShapeError);
}

}  // namespace
}  // namespace tessera
