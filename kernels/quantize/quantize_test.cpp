// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/quantize/quantize.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/quantize/f8_impl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                 kInf = std::numeric_limits<double>::infinity();

TEST(Quantize, KnownValues) {
  const Session session;
  const auto [values, scale] = quantize(tensor({1, -2, 0.5, 0}));
  EXPECT_FLOAT_EQ(static_cast<float>(scale.item()), 2.0f / 448);
  EXPECT_EQ(values.values(), (std::vector<double>{224, -448, 112, 0}));
  const auto rows = quantize(tensor({{1, 2}, {0, 0}, {-4, 1}}), DType::f8_e5m2, true);
  EXPECT_EQ(rows.scale.shape(), (Shape{3}));
  EXPECT_EQ(rows.scale.values()[1], 1);
  EXPECT_EQ(rows.values.values(), (std::vector<double>{28672, 57344, 0, 0, -57344, 14336}));
}

TEST(Quantize, ThereAndBackIsWithinAStep) {
  const Session session;
  const Tensor x = normal({64, 33}, {1, 1});
  for (const DType t : {DType::f8_e4m3, DType::f8_e5m2}) {
    for (const bool per_row : {false, true}) {
      const auto want = x.values(), got = dequantize(quantize(x, t, per_row)).values();
      const double step =
          t == DType::f8_e4m3 ? 1.0 / 16 : 1.0 / 8;  // half a unit in the last place
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_LE(std::abs(got[i] - want[i]), step * std::abs(want[i]) + 1e-4) << i;
    }
  }
}

TEST(Quantize, NothingAndNonsense) {
  const Session session;
  EXPECT_EQ(quantize(zeros({0, 3})).scale.item(), 1);
  EXPECT_EQ(quantize(zeros({3, 0}), DType::f8_e4m3, true).scale.values(),
            (std::vector<double>{1, 1, 1}));
  const auto with_nan = quantize(tensor({{1, kNan}, {1, 2}}), DType::f8_e4m3, true);
  EXPECT_TRUE(std::isnan(with_nan.scale.values()[0]));
  EXPECT_TRUE(std::isnan(with_nan.values.values()[0]));
  EXPECT_EQ(with_nan.values.values()[3], 448);
  EXPECT_EQ(quantize(tensor({1, kInf})).scale.item(), kInf);
  // A scale too small for f32 is 1, too.
  EXPECT_EQ(quantize(tensor({1e-45})).scale.item(), 1);
}

// The loops' conversions are those of the dtypes: all values back, and around every midpoint there.
TEST(Quantize, LoopsConvertAsTheDTypesDo) {
  const auto check = []<class F8>(float largest) {
    for (int b = 0; b < 256; ++b) {
      F8 v;
      v.bits = static_cast<uint8_t>(b);
      const float wide = v;
      if (std::isnan(wide)) {
        EXPECT_TRUE(std::isnan(widen(v))) << b;
        continue;
      }
      EXPECT_EQ(widen(v), wide) << b;
      EXPECT_EQ(std::signbit(widen(v)), std::signbit(wide)) << b;
      F8 next;
      next.bits = static_cast<uint8_t>(b + 1);
      const float other = b % 128 == 127 ? wide : static_cast<float>(next);
      if (!(std::abs(wide) <= largest) || !(std::abs(other) <= largest)) continue;
      const float middle = (wide + other) / 2;
      for (const float x : {wide, middle, std::nextafter(middle, wide),
                            std::nextafter(middle, other), std::nextafter(wide, 0.0f)})
        EXPECT_EQ(narrow_finite<F8>(x).bits, F8(x).bits) << b << " " << x;
    }
    EXPECT_EQ(narrow_finite<F8>(1e-30f).bits, 0);
    EXPECT_EQ(narrow_finite<F8>(std::nanf("")).bits, F8(std::nanf("")).bits);
  };
  check.operator()<f8_e4m3>(448);
  check.operator()<f8_e5m2>(57344);
}

TEST(Quantize, ItsGradientIsTheCallersToChoose) {
  const Session session;
  Tensor x = tensor({1, 2}).set_requires_grad();
  EXPECT_THROW(backward(dequantize(quantize(x)), {.gradient = tensor({1, 1})}), AutogradError);
}

}  // namespace
}  // namespace tessera
