// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/pointwise/pointwise_activations.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace tessera {
namespace {

using Values = std::vector<double>;
using Function = std::function<Tensor(const Tensor&)>;

Values gradient(Tensor x, const Function& f) {
  x = x.detach().set_requires_grad();
  const Tensor y = f(x);
  backward(y, {.gradient = full(y.shape(), 1, y.dtype())});
  return x.grad().values();
}

TEST(Activations, AtTheirKinks) {
  const Session session;
  const Tensor x = tensor({-2, 0, 3});
  EXPECT_EQ(leaky_relu(x, 0.25).values(), (Values{-0.5, 0, 3}));
  EXPECT_EQ(gradient(x, [](const Tensor& t) { return leaky_relu(t, 0.25); }),
            (Values{0.25, 0.25, 1}));
  EXPECT_EQ(hardtanh(x).values(), (Values{-1, 0, 1}));
  EXPECT_EQ(gradient(tensor({-1, 0.5, 1}), [](const Tensor& t) { return hardtanh(t); }),
            (Values{0, 1, 0}));
  EXPECT_EQ(relu6(tensor({-1, 2, 9})).values(), (Values{0, 2, 6}));
  EXPECT_EQ(elu(tensor({-INFINITY, 0, 2}), 2).values(), (Values{-2, 0, 2}));
  EXPECT_EQ(gradient(tensor({0, 5}), [](const Tensor& t) { return elu(t, 2); }), (Values{2, 1}));
}

TEST(Activations, FarOutTheyHaveValuesAndSlopes) {
  const Session session;
  for (const DType t : {DType::f16, DType::bf16, DType::f32}) {
    const Tensor x = tensor({-60000, -300, 300, 60000}, t);
    const auto stored = x.values();
    EXPECT_EQ(mish(x).values(), (Values{0, 0, stored[2], stored[3]})) << t;
    EXPECT_EQ(gradient(x, mish)[3], 1) << t;
    EXPECT_EQ(gradient(x, mish)[0], 0) << t;
    EXPECT_EQ(logsigmoid(x).values(), (Values{stored[0], stored[1], 0, 0})) << t;
    EXPECT_EQ(gradient(x, logsigmoid)[0], 1) << t;
    EXPECT_EQ(gradient(x, logsigmoid)[3], 0) << t;
    EXPECT_EQ(gradient(x, [](const Tensor& v) { return elu(v); }), (Values{0, 0, 1, 1})) << t;
  }
  EXPECT_EQ(logsigmoid(tensor({-INFINITY, INFINITY})).values(), (Values{-INFINITY, 0}));
  EXPECT_EQ(mish(tensor({-INFINITY, INFINITY})).values(), (Values{0, INFINITY}));
}

TEST(Activations, NanStaysNan) {
  const Session session;
  const std::vector<Function> all{[](const Tensor& x) { return leaky_relu(x); },
                                  [](const Tensor& x) { return elu(x); }, mish, logsigmoid,
                                  [](const Tensor& x) { return hardtanh(x); }};
  for (const Function& f : all) {
    for (const DType t : {DType::f32, DType::bf16}) {
      const auto y = f(tensor({NAN, -NAN, 0.5}, t)).values();
      EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && std::isfinite(y[2])) << t;
    }
  }
}

}  // namespace
}  // namespace tessera
