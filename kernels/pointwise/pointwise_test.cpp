// SPDX-License-Identifier: Apache-2.0
// Known values and messages of the pointwise family; the laws check the rest.
#include "tessera/kernels/pointwise/pointwise.h"

#include "tessera/autograd/autograd.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(Pointwise, BroadcastsAndKeepsDtype) {
  const Session session;
  const Tensor y = tensor({{1, 2}, {3, 4}}) + tensor({10, 20});
  EXPECT_EQ(y.values(), (std::vector<double>{11, 22, 13, 24}));
  EXPECT_EQ(y.dtype(), DType::f32);
}

TEST(Pointwise, MixedDtypesNameBothOperands) {
  const Session session;
  try {
    (void)add(tensor({1, 2}, DType::f32), tensor({1, 2}, DType::bf16));
    FAIL() << "expected DTypeError";
  } catch (const DTypeError& e) {
    EXPECT_NE(std::string(e.what()).find("[add] inputs must share one dtype"), std::string::npos)
        << e.what();
    EXPECT_NE(std::string(e.what()).find("bf16[2]"), std::string::npos) << e.what();
  }
}

TEST(Pointwise, ElementaryFunctionsAtTheirEdges) {
  const Session session;
  const double inf = INFINITY;
  const auto e = exp(tensor({-inf, -200, 0, 89, inf})).values();
  EXPECT_EQ(e[0], 0);
  EXPECT_EQ(e[1], 0);
  EXPECT_EQ(e[2], 1);
  EXPECT_EQ(e[3], inf);
  EXPECT_EQ(e[4], inf);
  const auto l = log(tensor({0, 1, inf, 1e-40})).values();
  EXPECT_EQ(l[0], -inf);
  EXPECT_EQ(l[1], 0);
  EXPECT_EQ(l[2], inf);
  EXPECT_NEAR(l[3], std::log(1e-40), 1e-4);
  EXPECT_TRUE(std::isnan(log(tensor(-1)).item()));
  EXPECT_TRUE(std::isnan(tanh(tensor(NAN)).item()));
  EXPECT_EQ(tanh(tensor(50)).item(), 1);
}

TEST(Pointwise, GradientsAtTheEdges) {
  const Session session;
  Tensor x = tensor({-200, -6, 0, 200}).set_requires_grad();
  backward(silu(x), {.gradient = tensor({1, 1, 1, 1})});
  const auto g = x.grad().values();
  EXPECT_EQ(g[0], 0);
  EXPECT_NEAR(g[1], -0.012326, 1e-5);
  EXPECT_EQ(g[2], 0.5);
  EXPECT_EQ(g[3], 1);
  Tensor a = tensor({1, 2}).set_requires_grad(), b = tensor({3, 4}).set_requires_grad();
  backward(where(tensor({1, 0}, DType::bool_), a, b), {.gradient = tensor({1, INFINITY})});
  EXPECT_EQ(a.grad().values(), (std::vector<double>{1, 0}));
  EXPECT_THROW((void)(tensor({49}, DType::i64) / 7), DTypeError);
}

TEST(Pointwise, NarrowFloatsRoundToNearestEven) {
  const Session session;
  const auto to = [](double v, DType t) { return cast(tensor(v), t).item(); };
  EXPECT_EQ(to(1.00390625, DType::bf16), 1.0);       // half way, down to even
  EXPECT_EQ(to(1.01171875, DType::bf16), 1.015625);  // half way, up to even
  EXPECT_EQ(to(65520, DType::f16), INFINITY);
  EXPECT_EQ(to(65519, DType::f16), 65504);
  EXPECT_EQ(to(6e-8, DType::f16), std::ldexp(1, -24));
  EXPECT_EQ(to(448, DType::f8_e4m3), 448);
  EXPECT_TRUE(std::isnan(to(480, DType::f8_e4m3)));
  EXPECT_EQ(to(57344, DType::f8_e5m2), 57344);
  EXPECT_EQ(to(61440, DType::f8_e5m2), INFINITY);
  EXPECT_EQ(to(std::ldexp(1, -9), DType::f8_e4m3), std::ldexp(1, -9));  // smallest subnormal
}

TEST(Pointwise, EveryNarrowFloatSurvivesTheRoundTrip) {
  const auto check = []<class T>(int values) {
    for (int bits = 0; bits < values; ++bits) {
      T x;
      x.bits = static_cast<decltype(x.bits)>(bits);
      const float f = x;
      if (std::isnan(f)) EXPECT_TRUE(std::isnan(static_cast<float>(T(f))));
      else EXPECT_EQ(T(f).bits, x.bits) << bits;
    }
  };
  check.operator()<f16>(1 << 16);
  check.operator()<bf16>(1 << 16);
  check.operator()<f8_e4m3>(1 << 8);
  check.operator()<f8_e5m2>(1 << 8);
}

}  // namespace
}  // namespace tessera
