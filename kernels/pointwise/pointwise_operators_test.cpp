// SPDX-License-Identifier: Apache-2.0
// Operators on tensors and numbers, as PyTorch has them. (2^53 + 1 is the first whole number that
// no double holds.)
#include "tessera/kernels/pointwise/pointwise_operators.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace tessera {
namespace {

constexpr int64_t kBig = (int64_t{1} << 53) + 1;
using Doubles = std::vector<double>;

Tensor whole(int64_t v) { return tensor<int64_t>({v}); }
int64_t first(const Tensor& x) { return x.to_vector<int64_t>()[0]; }

TEST(Operators, NumbersStandOnEitherSide) {
  const Session session;
  const Tensor x = tensor({1, 2, 4});
  EXPECT_EQ((x + 1).values(), (Doubles{2, 3, 5}));
  EXPECT_EQ((2 + x).values(), (Doubles{3, 4, 6}));
  EXPECT_EQ((x - 1).values(), (Doubles{0, 1, 3}));
  EXPECT_EQ((1 - x).values(), (Doubles{0, -1, -3}));
  EXPECT_EQ((x * 3).values(), (Doubles{3, 6, 12}));
  EXPECT_EQ((3 * x).values(), (Doubles{3, 6, 12}));
  EXPECT_EQ((x / 2).values(), (Doubles{0.5, 1, 2}));
  EXPECT_EQ((1 / x).values(), (Doubles{1, 0.5, 0.25}));
  EXPECT_EQ((8 / x).values(), (Doubles{8, 4, 2}));
  EXPECT_EQ((-x).values(), (Doubles{-1, -2, -4}));
  EXPECT_EQ(pow(2, x).values(), (Doubles{2, 4, 16}));
}

TEST(Operators, RemaindersHaveTheSignOfTheDivisor) {
  const Session session;
  const Tensor x = tensor({-7, 7, 5});
  EXPECT_EQ((x % 3).values(), (Doubles{2, 1, 2}));
  EXPECT_EQ((x % tensor({3, -3, 5})).values(), (Doubles{2, -2, 0}));
  EXPECT_EQ((7 % tensor({4, -4}, DType::i64)).values(), (Doubles{3, -1}));
  EXPECT_THROW((void)(tensor({1}, DType::i64) % 0), ValueError);
}

TEST(Operators, ComparisonsGiveBoolTensors) {
  const Session session;
  const Tensor x = tensor({-1, 0, 2}), y = tensor({0, 0, 0});
  EXPECT_EQ((x > 0).dtype(), DType::bool_);
  EXPECT_EQ((x > 0).values(), (Doubles{0, 0, 1}));
  EXPECT_EQ((x >= 0).values(), (Doubles{0, 1, 1}));
  EXPECT_EQ((x < 0).values(), (Doubles{1, 0, 0}));
  EXPECT_EQ((x <= 0).values(), (Doubles{1, 1, 0}));
  EXPECT_EQ((x == 0).values(), (Doubles{0, 1, 0}));
  EXPECT_EQ((x != 0).values(), (Doubles{1, 0, 1}));
  EXPECT_EQ((0 > x).values(), (Doubles{1, 0, 0}));
  EXPECT_EQ((0 >= x).values(), (Doubles{1, 1, 0}));
  EXPECT_EQ((0 < x).values(), (Doubles{0, 0, 1}));
  EXPECT_EQ((0 <= x).values(), (Doubles{0, 1, 1}));
  EXPECT_EQ((0 == x).values(), (Doubles{0, 1, 0}));
  EXPECT_EQ((0 != x).values(), (Doubles{1, 0, 1}));
  EXPECT_EQ((x > y).values(), (x > 0).values());
  EXPECT_EQ((x == y).values(), (x == 0).values());
  EXPECT_EQ((x != y).values(), (x != 0).values());
}

TEST(Operators, ComparisonsOfNanAreFalseButForNotEqual) {
  const Session session;
  const Tensor x = tensor({NAN, 1});
  EXPECT_EQ((x == NAN).values(), (Doubles{0, 0}));
  EXPECT_EQ((x != NAN).values(), (Doubles{1, 1}));
  EXPECT_EQ((x < 2).values(), (Doubles{0, 1}));
  EXPECT_EQ((x >= 0).values(), (Doubles{0, 1}));
}

TEST(Operators, NumbersAreRoundedToAFloatingTensor) {
  const Session session;
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::f64})
    EXPECT_EQ((tensor(0.1, t) == 0.1).item(), 1) << t;
}

TEST(Operators, IntegersCompareWithAllBitsAndWithFractions) {
  const Session session;
  EXPECT_EQ((whole(kBig) == kBig - 1).item(), 0);
  EXPECT_EQ((whole(kBig) > kBig - 1).item(), 1);
  EXPECT_EQ((tensor({0, 1}, DType::i32) > 0.5).values(), (Doubles{0, 1}));
  EXPECT_EQ((tensor({0, 1}, DType::i32) < int64_t{1} << 40).values(), (Doubles{1, 1}));
  EXPECT_EQ((tensor({3, 200}, DType::u8) == 200).values(), (Doubles{0, 1}));
  EXPECT_EQ((tensor({1, 0}, DType::bool_) == true).values(), (Doubles{1, 0}));
}

TEST(Operators, MasksCombine) {
  const Session session;
  const Tensor a = tensor({1, 1, 0, 0}, DType::bool_), b = tensor({1, 0, 1, 0}, DType::bool_);
  EXPECT_EQ((~a).values(), (Doubles{0, 0, 1, 1}));
  EXPECT_EQ((a & b).values(), (Doubles{1, 0, 0, 0}));
  EXPECT_EQ((a | b).values(), (Doubles{1, 1, 1, 0}));
  EXPECT_EQ((a ^ b).values(), (Doubles{0, 1, 1, 0}));
  EXPECT_THROW((void)(tensor({1}) & tensor({1})), DTypeError);
}

TEST(Operators, WholeNumbersKeepAllTheirBits) {
  const Session session;
  const Tensor i = whole(kBig);
  EXPECT_EQ(first(i + 0), kBig);
  EXPECT_EQ(first(i + 1), kBig + 1);
  EXPECT_EQ(first(i * 1), kBig);
  EXPECT_EQ(first(i - kBig), 0);
  EXPECT_EQ(first(-i), -kBig);
  EXPECT_EQ(first(1 - i), 1 - kBig);
  EXPECT_EQ(first(full({1}, kBig, DType::i64)), kBig);
  EXPECT_EQ(first(masked_fill(whole(0), tensor({1}, DType::bool_), kBig)), kBig);
  EXPECT_EQ(first(where(tensor({0}, DType::bool_), whole(0), kBig)), kBig);
}

TEST(Operators, IntegersWrapAroundAsTensorsDo) {
  const Session session;
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(first(whole(kLast) + 1), first(whole(kLast) + whole(1)));
  EXPECT_EQ(first(whole(kLast) + 1), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(first(whole(kLast) * 2), -2);
  const Tensor narrow = tensor({2147483647}, DType::i32);
  EXPECT_EQ((narrow + 1).values(), (narrow + tensor({1}, DType::i32)).values());
}

TEST(Operators, FractionsAndNumbersOutOfRangeAreErrorsOnIntegers) {
  const Session session;
  const Tensor i = tensor({1, 2}, DType::i64), narrow = tensor({1, 2}, DType::i32);
  const auto message = [](const std::function<Tensor()>& f) -> std::string {
    try {
      (void)f();
    } catch (const DTypeError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message([&] { return i + 0.5; }).find("cast it to a floating dtype first"),
            std::string::npos);
  EXPECT_NE(message([&] { return 0.5 * i; }).find("i64[2] and 0.5"), std::string::npos);
  EXPECT_NE(message([&] { return i / 2; }).find("cast to a floating dtype first"),
            std::string::npos);
  EXPECT_THROW((void)(1 / i), DTypeError);
  EXPECT_THROW((void)(narrow + (int64_t{1} << 31)), ValueError);
  EXPECT_EQ((i * 2.0).dtype(), DType::i64);
}

TEST(Operators, ZerosKeepTheirSigns) {
  const Session session;
  const auto negative = [](const Tensor& x) { return std::signbit(x.item()); };
  for (const DType t : {DType::f32, DType::f64, DType::bf16}) {
    const Tensor zero = tensor(0.0, t), minus = tensor(-0.0, t);
    EXPECT_TRUE(negative(-zero)) << t;
    EXPECT_FALSE(negative(-minus)) << t;
    EXPECT_TRUE(negative(minus * 2)) << t;
    EXPECT_TRUE(negative(zero * -1)) << t;
    EXPECT_TRUE(negative(minus - 0)) << t;
    EXPECT_FALSE(negative(minus + 0)) << t;
    EXPECT_FALSE(negative(0 - zero)) << t;
  }
}

TEST(Operators, WhereTakesANumberOnEitherSide) {
  const Session session;
  const Tensor c = tensor({1, 0}, DType::bool_), x = tensor({{1, 2}, {3, 4}});
  EXPECT_EQ(where(c, x, 9).values(), (Doubles{1, 9, 3, 9}));
  EXPECT_EQ(where(c, 9, x).values(), (Doubles{9, 2, 9, 4}));
}

TEST(Operators, GradientsPassThroughNumbers) {
  const Session session;
  const auto slope = [](const std::function<Tensor(const Tensor&)>& f) {
    Tensor x = tensor({2, 4}, DType::f64).set_requires_grad();
    backward(sum(f(x)));
    return x.grad().values();
  };
  EXPECT_EQ(slope([](const Tensor& x) { return 1 - x; }), (Doubles{-1, -1}));
  EXPECT_EQ(slope([](const Tensor& x) { return 1 / x; }), (Doubles{-0.25, -0.0625}));
  EXPECT_EQ(slope([](const Tensor& x) { return 8 / x; }), (Doubles{-2, -0.5}));
  EXPECT_EQ(slope([](const Tensor& x) { return x % 3; }), (Doubles{1, 1}));
  EXPECT_EQ(slope([](const Tensor& x) { return where(x > 3, x, 0); }), (Doubles{0, 1}));
}

TEST(Operators, OperandsThatCannotBeReadTogetherAreNamed) {
  const Session session;
  const Tensor x = tensor({1, 2}), planned = empty({2}, DType::f32, kMeta);
  EXPECT_EQ(test::error_of<DeviceError>([&] { (void)(x + planned); }),
            "[add] inputs are on different devices: f32[2] on cpu, f32[2]@meta on meta; move one "
            "with to_device");
  x.storage().release_bytes();
  EXPECT_EQ(test::error_of<StorageError>([&] {
              (void)(x + tensor({1, 2}));
            }),
            "[add] the bytes of input f32[2] are released; regain them before the call");
}

}  // namespace
}  // namespace tessera
