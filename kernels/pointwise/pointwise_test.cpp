// SPDX-License-Identifier: Apache-2.0
// Known values and messages of the pointwise family; the laws check the rest.
#include "tessera/kernels/pointwise/pointwise.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

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

using Values = std::vector<double>;

TEST(Pointwise, ArithmeticAtTheEdges) {
  const Session session;
  const double inf = INFINITY;
  EXPECT_EQ(remainder(tensor({7, -7, 7, -7, 1e30}), tensor({3, 3, -3, -3, 7})).values(),
            (Values{1, 2, -2, -1, std::fmod(static_cast<double>(1e30F), 7)}));
  EXPECT_EQ(remainder(tensor({-1, 1}), tensor({inf, inf})).values(), (Values{inf, 1}));
  EXPECT_TRUE(std::isnan(remainder(tensor(1), tensor(0)).item()));
  // As in Python, what b rounds off is b itself.
  EXPECT_EQ(remainder(tensor({-1e-20, 1e-20, -1}), tensor({1, -1, 1e31})).values(),
            (Values{1, -1, static_cast<double>(1e31F)}));
  EXPECT_EQ(remainder(tensor(-501), tensor(1e20)).item(), static_cast<double>(1e20F));
  EXPECT_EQ((op::Remainder::exact(-1e-20F, 1.0F)), op::Remainder::f(-1e-20F, 1.0F));
  EXPECT_EQ(remainder(tensor({7, -7, -8}, DType::i32), tensor({-3, 3, -1}, DType::i32)).values(),
            (Values{-2, 2, 0}));
  EXPECT_EQ(pow(tensor({-2, -2, 0, 0, 4}), tensor({3, 2, 0, -1, -0.5})).values(),
            (Values{-8, 4, 1, inf, 0.5}));
  EXPECT_TRUE(std::isnan(pow(tensor(-2), 0.5).item()));
  EXPECT_EQ(pow(tensor({3, -2, 2, -1}, DType::i64), tensor({4, 3, -1, -3}, DType::i64)).values(),
            (Values{81, -8, 0, -1}));
  EXPECT_EQ(round(tensor({0.5, 1.5, -2.5, 2.51})).values(), (Values{0, 2, -2, 3}));
  EXPECT_EQ(floor(tensor({-0.5, inf, 3})).values(), (Values{-1, inf, 3}));
  EXPECT_EQ(clamp(tensor({-5, 0.5, 9}), {.min = 0}).values(), (Values{0, 0.5, 9}));
  EXPECT_EQ(clamp(tensor({-5, 9}), {.min = 3, .max = 1}).values(), (Values{1, 1}));
  EXPECT_EQ(clamp(tensor({-5, 9}, DType::i32), {.max = 1e12}).values(), (Values{-5, 9}));
  EXPECT_TRUE(std::isnan(clamp(tensor(NAN), {.min = 0, .max = 1}).item()));
  EXPECT_TRUE(std::isnan(relu(tensor(NAN)).item()));
  EXPECT_TRUE(std::isnan(maximum(tensor(NAN), tensor(1)).item()));
  EXPECT_TRUE(std::isnan(minimum(tensor(1), tensor(NAN)).item()));
  EXPECT_EQ(sign(tensor({-3, 0, 5, NAN})).values(), (Values{-1, 0, 1, 0}));
  EXPECT_EQ(abs(tensor({-3, 2}, DType::i64)).values(), (Values{3, 2}));
}

TEST(Pointwise, FunctionsFarOut) {
  const Session session;
  const double inf = INFINITY;
  for (const double x : {1e5, -3e9, 1e30, 0.25}) {
    const double stored = static_cast<float>(x);
    EXPECT_NEAR(sin(tensor({x, 0, 0})).values()[0], std::sin(stored), 1e-6) << x;
    EXPECT_NEAR(cos(tensor(x)).item(), std::cos(stored), 1e-6) << x;
  }
  EXPECT_TRUE(std::isnan(sin(tensor({1, inf})).values()[1]));
  EXPECT_TRUE(std::signbit(sin(tensor(-0.0)).item()));
  EXPECT_EQ(erf(tensor({-inf, 0, 20})).values(), (Values{-1, 0, 1}));
  EXPECT_EQ(log1p(tensor({-1, 0, inf})).values(), (Values{-inf, 0, inf}));
  EXPECT_TRUE(std::isnan(log1p(tensor(-2)).item()));
  EXPECT_EQ(expm1(tensor({-200, 0, 1e-20, inf})).values(),
            (Values{-1, 0, static_cast<double>(1e-20F), inf}));
  EXPECT_EQ(sigmoid(tensor({-inf, 0, inf})).values(), (Values{0, 0.5, 1}));
  EXPECT_EQ(softplus(tensor({-200, 30, 1000})).values(), (Values{0, 30, 1000}));
  EXPECT_EQ(gelu(tensor({-100, 100})).values()[1], 100);
  EXPECT_EQ(isnan(tensor({NAN, 1, inf})).values(), (Values{1, 0, 0}));
  EXPECT_EQ(isfinite(tensor({NAN, 1, -inf})).values(), (Values{0, 1, 0}));
}

// Clamps by bits pass no NaN on, so each function must.
TEST(Pointwise, NanStaysNan) {
  const Session session;
  using Function = Tensor (*)(const Tensor&);
  for (const Function f : {exp, log, log1p, expm1, tanh, erf, sigmoid, silu}) {
    for (const DType t : {DType::f32, DType::bf16}) {
      const auto y = f(tensor({NAN, -NAN, 0.5}, t)).values();
      EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && std::isfinite(y[2])) << t;
    }
  }
  for (const bool approximate : {true, false}) {
    Tensor x = tensor({NAN, 1}).set_requires_grad();
    const Tensor y = gelu(x, approximate);
    backward(y, {.gradient = tensor({1, 1})});
    EXPECT_TRUE(std::isnan(y.values()[0]) && std::isnan(x.grad().values()[0]));
  }
  EXPECT_NEAR(log1p(tensor(3.4e38)).item(), std::log(3.4e38), 1e-5);
  EXPECT_EQ(tanh(tensor({9.5, -INFINITY})).values(), (Values{1, -1}));
}

TEST(Pointwise, GeluFarOutHasASlope) {
  const Session session;
  for (const DType t : {DType::f16, DType::bf16, DType::f32}) {
    for (const bool approximate : {true, false}) {
      Tensor x = tensor({-60000, -300, 300, 60000}, t).set_requires_grad();
      const Tensor y = gelu(x, approximate);
      backward(y, {.gradient = full({4}, 1, t)});
      EXPECT_EQ(x.grad().values(), (Values{0, 0, 1, 1})) << t;
      EXPECT_EQ(y.values()[3], x.values()[3]);
    }
  }
}

TEST(Pointwise, GradientsAtTiesKinksAndZeros) {
  const Session session;
  const auto gradient = [](Tensor x, const std::function<Tensor(const Tensor&)>& f) {
    x = x.detach().set_requires_grad();
    const Tensor y = f(x);
    backward(y, {.gradient = full(y.shape(), 1, y.dtype())});
    return x.grad().values();
  };
  const Tensor one = tensor({1, 1, 1});
  const auto top = [&](const Tensor& x) { return maximum(x, one); };
  const auto bottom = [&](const Tensor& x) { return minimum(one, x); };
  EXPECT_EQ(gradient(tensor({0, 1, 2}), top), (Values{0, 0.5, 1}));
  EXPECT_EQ(gradient(tensor({0, 1, 2}), bottom), (Values{1, 0.5, 0}));
  EXPECT_EQ(gradient(tensor({-1, 0, 2}), [](const Tensor& x) { return abs(x); }),
            (Values{-1, 0, 1}));
  EXPECT_EQ(gradient(tensor({-1, 0, 2}), relu), (Values{0, 0, 1}));
  const auto bounded = [](const Tensor& x) { return clamp(x, {.min = -1, .max = 2}); };
  EXPECT_EQ(gradient(tensor({-1, 0, 2, 3}), bounded), (Values{1, 1, 1, 0}));
  const auto zeroth = [](const Tensor& x) { return pow(x, tensor({0, 1, 2})); };
  EXPECT_EQ(gradient(tensor({0, 0, 0}), zeroth), (Values{0, 1, 0}));
  const auto exponents = [](const Tensor& b) { return pow(tensor({0, 0, 1}), b); };
  EXPECT_EQ(gradient(tensor({0, 2, 5}), exponents), (Values{0, 0, 0}));
  const auto masked = [](const Tensor& x) {
    return masked_fill(x, tensor({1, 0, 0}, DType::bool_), -INFINITY);
  };
  EXPECT_EQ(gradient(tensor({3, 4, 5}), masked), (Values{0, 1, 1}));
}

TEST(Pointwise, ClampIsLinearOnlyWithoutBounds) {
  const double inf = INFINITY;
  EXPECT_TRUE((op::Clamp{{}, -inf, inf}.linear(DType::f32)));
  EXPECT_FALSE((op::Clamp{{}, inf, inf}.linear(DType::f32)));
  EXPECT_FALSE((op::Clamp{{}, -inf, -inf}.linear(DType::f32)));
}

TEST(Pointwise, SoftplusFallsAtItsThreshold) {
  const Session session;
  const auto y = softplus(tensor({1, 1.0001}), 1, 1).values();
  EXPECT_GT(y[0], y[1]);  // so that it may not change places with a maximum
  EXPECT_EQ(op::Softplus::kMonotone, 0);
}

TEST(Pointwise, BadInputNamesWhatWasGiven) {
  const Session session;
  const auto message = [](const std::function<void()>& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const Tensor whole = tensor({4, 0}, DType::i64);
  EXPECT_NE(message([&] { (void)remainder(whole, whole); }).find("element 1 of the divisor i64[2]"),
            std::string::npos);
  EXPECT_THROW((void)pow(whole, -1), DTypeError);
  EXPECT_THROW((void)pow(whole, 0.5), DTypeError);
  EXPECT_THROW((void)clamp(whole, {.min = 0.5}), DTypeError);
  EXPECT_THROW((void)clamp(tensor({1}), {.min = NAN}), ValueError);
  EXPECT_THROW((void)masked_fill(whole, tensor({1, 0}, DType::bool_), 0.5), DTypeError);
  EXPECT_THROW((void)masked_fill(tensor({1, 2}), tensor({1, 0}), 0), DTypeError);
  const Tensor narrow = tensor({4, 0}, DType::i32);
  EXPECT_NE(message([&] {
              (void)masked_fill(narrow, tensor({1, 0}, DType::bool_), 3e9);
            }).find("3000000000 is beyond the range of i32"),
            std::string::npos);
  EXPECT_THROW((void)pow(narrow, 4294967299.0), ValueError);
  EXPECT_EQ(pow(whole, 4294967299.0).values()[1], 0);
  EXPECT_THROW((void)affine(whole, 1e300, 0), ValueError);
  EXPECT_THROW((void)affine(whole, NAN, 0), ValueError);
  EXPECT_THROW((void)affine(whole, 1, INFINITY), ValueError);
  EXPECT_EQ(affine(tensor({1}), INFINITY, 0).item(), INFINITY);
  EXPECT_THROW((void)softplus(tensor({1, 2}), 0), ValueError);
  EXPECT_THROW((void)logical_and(whole, whole), DTypeError);
}

// bf16 goes through f32 in blocks, whatever the length, also from an odd place on.
TEST(Pointwise, Bf16IsF32Rounded) {
  const Session session;
  const auto wide = [](const Tensor& t) { return cast(t, DType::f32); };
  const auto same = [&](const Tensor& narrow, const Tensor& expected) {
    EXPECT_EQ(narrow.values(), cast(expected, DType::bf16).values()) << narrow.meta();
  };
  for (const int64_t n : {1, 2, 3, 31, 511, 512, 513, 1500}) {
    const Tensor all = cast(normal({2, n + 1}, {1, 1}), DType::bf16);
    const Tensor a = reshape(slice(slice(all, 0, {0, 1}), 1, {1, n + 1}), {n}),
                 b = reshape(slice(slice(all, 0, {1, 2}), 1, {0, n}), {n}),
                 one = full({}, 0.37, DType::bf16);
    using Function = Tensor (*)(const Tensor&);
    for (const Function f : {exp, sin, tanh, abs}) same(f(a), f(wide(a)));
    same(log(abs(a)), log(abs(wide(a))));
    same(gelu(a), gelu(wide(a)));
    same(a / b, wide(a) / wide(b));
    same(a - one, wide(a) - wide(one));
    same(one - a, wide(one) - wide(a));
  }
}

TEST(Pointwise, ChoicesMoveBits) {
  const Session session;
  const int64_t n = 1000;
  const Tensor u = uniform({n}, {3, 4});
  const Tensor c = less(u, full({n}, 0.5));
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64}) {
    const Tensor a = cast(affine(u, 1000, 0), t), b = cast(affine(u, -1000, -1), t);
    const auto chosen = where(c, a, b).values(), filled = masked_fill(b, c, -7).values(),
               first = where(c, full({}, 3, t), b).values();
    const auto cs = c.values(), as = a.values(), bs = b.values();
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      ASSERT_EQ(chosen[i], cs[i] != 0 ? as[i] : bs[i]) << t << " " << i;
      ASSERT_EQ(filled[i], cs[i] != 0 ? -7 : bs[i]) << t << " " << i;
      ASSERT_EQ(first[i], cs[i] != 0 ? 3 : bs[i]) << t << " " << i;
    }
  }
  const auto odd =
      where(tensor({1, 0, 1}, DType::bool_), tensor({NAN, 1, -0.0}), tensor({2, INFINITY, 3}))
          .values();
  EXPECT_TRUE(std::isnan(odd[0]) && std::isinf(odd[1]) && std::signbit(odd[2]));
}

// What an op finds rare does not change its neighbours, nor they it.
TEST(Pointwise, RareArgumentsAmongOthers) {
  const Session session;
  const std::vector<double> odd{0,     -0.0,   -1,      INFINITY, -INFINITY, NAN,
                                1e-40, -1e-40, 1.2e-38, 3.4e38,   1e30,      -3e9};
  std::vector<double> values = normal({700}, {5, 6}).values();
  for (size_t i = 0; i < odd.size(); ++i) values[i * 53 + 7] = odd[i];
  const Tensor x = from_values(values, {700}), y = affine(x, 1, 0.25);
  const auto bits = [](const Tensor& t) {
    std::vector<double> v = t.values();
    for (double& e : v) e = std::isnan(e) ? 12345 : e;  // a NaN equals itself here
    return v;
  };
  const auto check = [&](const std::function<Tensor(const Tensor&, const Tensor&)>& f) {
    const auto together = bits(f(x, y));
    for (int64_t i = 0; i < 700; ++i) {
      ASSERT_EQ(together[static_cast<size_t>(i)],
                bits(f(slice(x, 0, {i, i + 1}), slice(y, 0, {i, i + 1})))[0])
          << i;
    }
  };
  check([](const Tensor& a, const Tensor&) { return log(a); });
  check([](const Tensor& a, const Tensor&) { return cos(a); });
  check([](const Tensor& a, const Tensor& b) { return pow(a, b); });
  check([](const Tensor& a, const Tensor& b) { return remainder(a, b); });
}

TEST(Pointwise, RemainderIsExact) {
  const Session session;
  const Tensor a = affine(normal({5000}, {7, 8}), 100, 0), b = normal({5000}, {9, 10});
  const auto as = a.values(), bs = b.values(), r = remainder(a, b).values();
  for (size_t i = 0; i < r.size(); ++i) {
    const auto x = static_cast<float>(as[i]), y = static_cast<float>(bs[i]);
    ASSERT_EQ(static_cast<float>(r[i]), op::Remainder::exact(x, y)) << x << " " << y;
  }
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

TEST(Pointwise, CastSaturatesOnRequest) {
  Context context;
  const double inf = INFINITY;
  const Tensor x = tensor({1000, -inf, 460, 1e30, -3});
  const auto to = [&](DType t) { return cast(x, t, {.saturate = true}).values(); };
  EXPECT_EQ(to(DType::f8_e4m3), (Values{448, -448, 448, 448, -3}));
  EXPECT_EQ(to(DType::f8_e5m2), (Values{1024, -57344, 448, 57344, -3}));
  EXPECT_EQ(to(DType::f16), (Values{1000, -65504, 460, 65504, -3}));
  EXPECT_TRUE(std::isnan(cast(tensor(NAN), DType::f8_e4m3, {.saturate = true}).item()));
  EXPECT_THROW((void)cast(x, DType::i32, {.saturate = true}), DTypeError);
}

TEST(Pointwise, ZerosKeepTheirSigns) {
  const Session session;
  const Tensor zero = tensor({0, -0.0});
  const auto negative = [](const Tensor& x) {
    const auto v = x.values();
    return std::vector<bool>{std::signbit(v[0]), std::signbit(v[1])};
  };
  using Signs = std::vector<bool>;
  EXPECT_EQ(negative(expm1(zero)), (Signs{false, true}));
  EXPECT_EQ(negative(elu(zero)), (Signs{false, true}));
  EXPECT_EQ(negative(neg(zero)), (Signs{true, false}));
  EXPECT_EQ(negative(zero * 2), (Signs{false, true}));
}

TEST(Pointwise, GeluKeepsTheDigitsOfItsNegativeTail) {
  const Session session;
  const Tensor narrow = affine(arange(14001, DType::f32), 1e-3, -6),
               wide = cast(narrow, DType::f64);
  for (const bool approximate : {false, true}) {
    const auto results = [&](const Tensor& at) {
      const Tensor x = at.detach().set_requires_grad();
      const Tensor y = gelu(x, approximate);
      return std::pair{
          y.values(),
          grad({y}, {x}, {.grad_outputs = {full({x.shape()[0]}, 1, x.dtype())}})[0].values()};
    };
    const auto [y, slope] = results(narrow);
    const auto [exact, exact_slope] = results(wide);
    const Values x = narrow.values();
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(y[i], exact[i], 1e-6 * std::abs(exact[i])) << x[i] << ' ' << approximate;
      const double size = x[i] < -1.5 ? std::abs(exact_slope[i]) : 1;  // it crosses 0 near -0.75
      ASSERT_NEAR(slope[i], exact_slope[i], 1e-6 * size) << x[i] << ' ' << approximate;
    }
  }
  EXPECT_NEAR(gelu(tensor({-2.8261}), true).item(), -0.00619697, 1e-8);
  EXPECT_EQ(gelu(tensor({-20, -20}), true).values(), (Values{0, 0}));
}

// In f64 too: a float's digits of a coefficient are not all of them.
TEST(Pointwise, GeluInF64HasTheDigitsOfItsFormula) {
  const Session session;
  const Tensor x = affine(arange(1401, DType::f64), 1e-2, -6).set_requires_grad();
  const Tensor y = gelu(x, true);
  const Values at = x.values(), values = y.values(),
               slopes = grad({y}, {x}, {.grad_outputs = {full({1401}, 1, DType::f64)}})[0].values();
  for (size_t i = 0; i < at.size(); ++i) {
    const double z = 1.5957691216057308 * (at[i] + 0.044715 * at[i] * at[i] * at[i]),
                 s = 1 / (1 + std::exp(-z)),
                 dz = 1.5957691216057308 * (1 + 3 * 0.044715 * at[i] * at[i]);
    ASSERT_NEAR(values[i], at[i] * s, 1e-13 * std::abs(at[i] * s)) << at[i];
    ASSERT_NEAR(slopes[i], s + at[i] * s * (1 - s) * dz, 1e-13) << at[i];
  }
}

// In bf16 half a unit of the last place: the same digits, rounded.
TEST(Pointwise, GeluOfBf16KeepsItsNegativeTail) {
  const Session session;
  const Tensor narrow = cast(affine(arange(5601, DType::f32), 1e-3, -6), DType::bf16);
  for (const bool approximate : {false, true}) {
    const Values y = gelu(narrow, approximate).values(),
                 exact = gelu(cast(narrow, DType::f64), approximate).values();
    for (size_t i = 0; i < y.size(); ++i)
      ASSERT_NEAR(y[i], exact[i], std::abs(exact[i]) * 0.00392) << i << ' ' << approximate;
  }
}

// Of the sigmoid's kind: none computes a small result as a difference of large numbers.
TEST(Pointwise, ActivationsKeepTheDigitsOfTheirNegativeTail) {
  const Session session;
  const Tensor narrow = affine(arange(30001, DType::f32), 1e-3, -30),
               wide = cast(narrow, DType::f64);
  for (const auto& f : std::vector<std::function<Tensor(const Tensor&)>>{
           [](const Tensor& x) { return sigmoid(x); }, [](const Tensor& x) { return silu(x); },
           [](const Tensor& x) { return softplus(x); }, [](const Tensor& x) { return mish(x); },
           [](const Tensor& x) { return elu(x); }}) {
    const Values y = f(narrow).values(), exact = f(wide).values();
    for (size_t i = 0; i < y.size(); ++i)
      ASSERT_NEAR(y[i], exact[i], 1e-6 * std::abs(exact[i])) << narrow.values()[i];
  }
}

TEST(Pointwise, SecondDerivativesOfGeluAreFiniteFarOut) {
  const Session session;
  for (const bool approximate : {false, true}) {
    const Tensor x = tensor({-300, 300, 0, 60000}, DType::f16).set_requires_grad();
    const Tensor dy = ones({4}, DType::f16);
    const Tensor y = gelu(x, approximate);
    const Tensor dx = grad({y}, {x}, {.grad_outputs = {dy}, .create_graph = true})[0];
    const Tensor second = grad({dx}, {x}, {.grad_outputs = {dy}})[0];
    EXPECT_EQ(second.values()[0], 0);
    EXPECT_EQ(second.values()[1], 0);
    EXPECT_NEAR(second.values()[2], 0.79788456, 1e-3);  // twice the density at 0
    EXPECT_EQ(second.values()[3], 0);
  }
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
