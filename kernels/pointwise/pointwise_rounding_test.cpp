// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/pointwise/pointwise_rounding.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

using Values = std::vector<double>;
constexpr double kInf = INFINITY;

TEST(Rounding, UpDownAndTowardsZero) {
  const Session session;
  const Tensor x = tensor({-1.5, -0.25, 0, 0.25, 2.75, kInf});
  EXPECT_EQ(ceil(x).values(), (Values{-1, 0, 0, 1, 3, kInf}));
  EXPECT_EQ(trunc(x).values(), (Values{-1, 0, 0, 0, 2, kInf}));
  EXPECT_EQ(frac(tensor({-1.5, 2.75})).values(), (Values{-0.5, 0.75}));
  EXPECT_TRUE(std::signbit(ceil(tensor(-0.25)).item()));
  EXPECT_EQ(ceil(tensor({3, -4}, DType::i64)).values(), (Values{3, -4}));
  EXPECT_THROW((void)frac(tensor({1}, DType::i64)), DTypeError);
}

TEST(Rounding, FmodHasTheSignOfItsFirstOperand) {
  const Session session;
  EXPECT_EQ(fmod(tensor({7, -7, 7, -7}), tensor({3, 3, -3, -3})).values(), (Values{1, -1, 1, -1}));
  EXPECT_TRUE(std::signbit(fmod(tensor(-6), tensor(3)).item()));
  EXPECT_EQ(fmod(tensor({1, -1e30}), tensor({kInf, 7})).values(),
            (Values{1, -std::fmod(static_cast<double>(1e30F), 7)}));
  EXPECT_TRUE(std::isnan(fmod(tensor(1), tensor(0)).item()));
  EXPECT_EQ(fmod(tensor({-7, 8}, DType::i32), tensor({3, -3}, DType::i32)).values(),
            (Values{-1, 2}));
}

TEST(Rounding, QuotientsAreThoseOfTheExactQuotient) {
  const Session session;
  // 1 / 0.1F rounds to 10, and 0.1F is a little more than 0.1.
  EXPECT_EQ(floor_divide(tensor({1, -1, 6}), tensor({0.1, 0.1, 0.2})).values(),
            (Values{9, -10, 29}));
  EXPECT_EQ(floor_divide(tensor({7, -7, 7, -7}), tensor({2, 2, -2, -2})).values(),
            (Values{3, -4, -4, 3}));
  EXPECT_EQ(floor_divide(tensor({1, -1, 1}), tensor({0, 0, kInf})).values(),
            (Values{kInf, -kInf, 0}));
  EXPECT_EQ(floor_divide(tensor(-1), tensor(kInf)).item(), -1);
  EXPECT_EQ(floor_divide(tensor({7, -7, -8}, DType::i64), tensor({2, 2, 4}, DType::i64)).values(),
            (Values{3, -4, -2}));
  const Tensor a = affine(normal({5000}, {7, 8}), 100, 0), b = normal({5000}, {9, 10});
  const auto as = a.values(), bs = b.values(), q = floor_divide(a, b).values(),
             r = fmod(a, b).values();
  for (size_t i = 0; i < q.size(); ++i) {
    ASSERT_EQ(q[i], std::floor(as[i] / bs[i])) << as[i] << " " << bs[i];  // in f64
    ASSERT_EQ(static_cast<float>(r[i]),
              std::fmod(static_cast<float>(as[i]), static_cast<float>(bs[i])));
  }
}

TEST(Rounding, GradientsOfRemaindersTakeTheExactQuotient) {
  const Session session;
  // 1.5625 / -0.51953125 is -3.0075, which bf16 rounds to -3.
  const Tensor a = tensor({1.5625, -1.5625, 1.5625}, DType::bf16),
               b = tensor({-0.51953125, -0.51953125, 0.51953125}, DType::bf16);
  const auto slope = [&](Tensor (*f)(const Tensor&, const Tensor&)) {
    const Tensor divisor = b.detach().set_requires_grad();
    return grad({f(a, divisor)}, {divisor}, {.grad_outputs = {ones({3}, DType::bf16)}})[0].values();
  };
  EXPECT_EQ(slope(remainder), (Values{4, -3, -3}));
  EXPECT_EQ(slope(fmod), (Values{3, -3, -3}));
  // In f32, 1 / 0.1F rounds to 10.
  const Tensor tenth = tensor({0.1}).set_requires_grad();
  for (const auto f : {static_cast<Tensor (*)(const Tensor&, const Tensor&)>(remainder), fmod}) {
    EXPECT_EQ(grad({f(tensor({1}), tenth)}, {tenth}, {.grad_outputs = {ones({1})}})[0].item(), -9);
  }
}

TEST(Rounding, AnIntegerZeroIsNamed) {
  const Session session;
  const Tensor x = tensor({4, 0}, DType::i64);
  for (const bool quotient : {false, true}) {
    try {
      (void)(quotient ? floor_divide(x, x) : fmod(x, x));
      FAIL() << "expected ValueError";
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find("element 1 of the divisor i64[2]"), std::string::npos)
          << e.what();
    }
  }
}

TEST(Lerp, ReachesBothEnds) {
  const Session session;
  const Tensor a = tensor({0.1, 1e8}), b = tensor({0.7, 1});
  EXPECT_EQ(lerp(a, b, 0.0).values(), a.values());
  EXPECT_EQ(lerp(a, b, 1.0).values(), b.values());
  EXPECT_EQ(lerp(tensor({0, 10}), tensor({4, 20}), tensor({0.25, 0.5})).values(), (Values{1, 15}));
  EXPECT_EQ(lerp(a, b, ones({3, 1})).shape(), (Shape{3, 2}));
}

TEST(ClampByTensors, TiesShareTheGradient) {
  const Session session;
  Tensor x = tensor({0, 1, 2, 3, 4}).set_requires_grad();
  Tensor low = tensor(1).set_requires_grad(), high = tensor({3, 3, 3, 3, 3}).set_requires_grad();
  const Tensor y = clamp(x, low, high);
  EXPECT_EQ(y.values(), (Values{1, 1, 2, 3, 3}));
  backward(y, {.gradient = tensor({1, 2, 4, 8, 16})});
  EXPECT_EQ(x.grad().values(), (Values{0, 1, 4, 4, 0}));
  EXPECT_EQ(low.grad().item(), 2);
  EXPECT_EQ(high.grad().values(), (Values{0, 0, 0, 4, 16}));
}

TEST(ClampByTensors, ABoundMayBeLeftOut) {
  const Session session;
  Tensor x = tensor({-2, 5}).set_requires_grad();
  EXPECT_EQ(clamp(x, tensor(0)).values(), (Values{0, 5}));
  const Tensor y = clamp(x, {}, from_values({1, 2}, {2, 1}));
  EXPECT_EQ(y.values(), (Values{-2, 1, -2, 2}));
  backward(y, {.gradient = ones({2, 2})});
  EXPECT_EQ(x.grad().values(), (Values{2, 0}));
  EXPECT_EQ(clamp(tensor({1, 9}, DType::i64), {}, tensor(4, DType::i64)).values(), (Values{1, 4}));
  EXPECT_TRUE(std::isnan(clamp(tensor(1), tensor(NAN), tensor(3)).item()));
  EXPECT_TRUE(std::isnan(clamp(tensor(NAN), tensor(1)).item()));
  EXPECT_EQ(clamp(tensor(2), tensor(5), tensor(1)).item(), 1);
  EXPECT_THROW((void)clamp(x, Tensor(), Tensor()), UsageError);
}

TEST(NanToNum, ReplacesWhatIsNoNumber) {
  const Session session;
  Tensor x = tensor({NAN, kInf, -kInf, 2}).set_requires_grad();
  const Tensor y = nan_to_num(x, {.nan = 7, .posinf = 1e4});
  EXPECT_EQ(y.values(), (Values{7, 1e4, -static_cast<double>(3.4028234663852886e38F), 2}));
  backward(y, {.gradient = ones({4})});
  EXPECT_EQ(x.grad().values(), (Values{0, 0, 0, 1}));
  EXPECT_EQ(nan_to_num(tensor({kInf, -kInf}, DType::f16)).values(), (Values{65504, -65504}));
  EXPECT_EQ(nan_to_num(tensor({kInf, 1}, DType::bf16)).values()[0], 0x1.fep127);
  EXPECT_EQ(isinf(tensor({NAN, kInf, -kInf, 2})).values(), (Values{0, 1, 1, 0}));
}

TEST(Logarithms, AreExactAtPowersOfTheirBase) {
  const Session session;
  for (const DType t : {DType::f32, DType::f64}) {
    EXPECT_EQ(log2(tensor({1, 2, 1024, 0.125}, t)).values(), (Values{0, 1, 10, -3}));
    EXPECT_EQ(exp2(tensor({0, 1, 10, -3, -200, 200}, t)).values()[3], 0.125);
  }
  EXPECT_EQ(exp2(tensor({-kInf, -160, 127, 128, kInf})).values(),
            (Values{0, 0, 0x1p127, kInf, kInf}));
  EXPECT_EQ(exp2(tensor({-149, -126})).values(), (Values{0x1p-149, 0x1p-126}));
  EXPECT_EQ(log2(tensor({0, kInf})).values(), (Values{-kInf, kInf}));
  EXPECT_EQ(log2(tensor({0x1p-149, 3})).values()[0], -149);
  EXPECT_TRUE(std::isnan(log10(tensor(-1)).item()) && std::isnan(exp2(tensor(NAN)).item()));
}

// Against libm in f64, in units of the last place of f32.
TEST(Logarithms, LoseLittle) {
  const Session session;
  const Tensor x = affine(uniform({20000}, {3, 4}), 8, 1e-3), z = affine(x, 10, -40);
  const auto xs = x.values(), zs = z.values(), two = log2(x).values(), ten = log10(x).values(),
             power = exp2(z).values();
  for (size_t i = 0; i < xs.size(); ++i) {
    const auto near = [&](double got, double want) {
      return std::abs(got - want) <= 2.5 * std::ldexp(1, std::ilogb(want) - 23);
    };
    ASSERT_TRUE(near(two[i], std::log2(xs[i]))) << xs[i] << " " << two[i];
    ASSERT_TRUE(near(ten[i], std::log10(xs[i]))) << xs[i] << " " << ten[i];
    ASSERT_TRUE(near(power[i], std::exp2(zs[i]))) << zs[i] << " " << power[i];
  }
}

}  // namespace
}  // namespace tessera
