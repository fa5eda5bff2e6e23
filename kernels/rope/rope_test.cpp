// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/rope/rope.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(Rope, PositionZeroIsTheIdentityAndInverseUndoesIt) {
  const Session session;
  const auto [cos, sin] = rope_tables(5, 6, 10000);
  const Tensor x = normal({2, 5, 3, 6}, {1, 1});
  const Tensor y = rope(x, cos, sin), back = call(op::Rope{true}, {y, cos, sin});
  for (size_t i = 0; i < 18; ++i) EXPECT_EQ(y.values()[i], x.values()[i]);
  for (size_t i = 0; i < 180; ++i) EXPECT_NEAR(back.values()[i], x.values()[i], 1e-6);
}

TEST(Rope, TablesContinueAtAnOffset) {
  const Session session;
  const auto whole = rope_tables(7, 4, 500000)[0].values(),
             tail = rope_tables(3, 4, 500000, 4)[0].values();
  EXPECT_EQ(std::vector<double>(whole.begin() + 8, whole.end()), tail);
}

TEST(Rope, TablesHaveNoGradient) {
  const Session session;
  auto [cos, sin] = rope_tables(2, 4, 100);
  cos.set_requires_grad();
  const Tensor y = rope(normal({2, 1, 4}, {1, 1}), cos, sin);
  EXPECT_THROW(backward(y, {.gradient = ones({2, 1, 4})}), AutogradError);
}

TEST(Rope, TablesAreOfTheTypeOfTheWork) {
  const Session session;
  const auto [cos, sin] = rope_tables(2, 4, 100, 0, DType::f64);
  EXPECT_EQ(
      test::error_of<DTypeError>([&, &cos = cos, &sin = sin] {
        (void)rope(zeros({2, 1, 4}, DType::bf16), cos, sin);
      }),
      "[rope] the tables must be f32 for x bf16[2, 1, 4]: cos is f64[2, 2], sin is f64[2, 2]");
}

TEST(Rope, HalvesAreAdjacentPairsInAnotherOrder) {
  const Session session;
  for (const int64_t d : {2, 8, 32, 38, 64}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      const auto [cos, sin] =
          rope_tables(5, d, 10000, 3, dtype == DType::f64 ? DType::f64 : DType::f32);
      const Tensor x = cast(normal({2, 5, 3, d}, {1, 1}), dtype);
      // (..., 2, d/2) to (..., d/2, 2) and back.
      const auto paired = [&](const Tensor& t) {
        return reshape(transpose(reshape(t, {2, 5, 3, 2, d / 2}), 3, 4), {2, 5, 3, d});
      };
      const Tensor y = rope(x, cos, sin, {.halves = true});
      EXPECT_EQ(paired(y).values(), rope(paired(x), cos, sin).values()) << d << ' ' << dtype;
    }
  }
}

TEST(Rope, PositionsTakeTheRowsOfTheTables) {
  const Session session;
  const auto [cos, sin] = rope_tables(9, 40, 10000);
  const Tensor x = normal({1, 4, 3, 40}, {1, 1}),
               positions = from_values(std::vector<double>{5, 6, 0, 8}, {1, 4}, DType::i64);
  const auto at = [&](const Tensor& y, int64_t t) { return slice(y, 1, {t, t + 1}).values(); };
  for (const bool halves : {false, true}) {
    const Tensor y = rope(x, cos, sin, {.halves = halves, .positions = positions});
    const int64_t row[] = {5, 6, 0, 8};
    for (int64_t t = 0; t < 4; ++t) {
      const auto own = [&](const Tensor& table) { return slice(table, 0, {row[t], row[t] + 1}); };
      const Tensor one = rope(slice(x, 1, {t, t + 1}), own(cos), own(sin), {.halves = halves});
      EXPECT_EQ(at(y, t), one.values());
    }
  }
  try {
    (void)rope(x, slice(cos, 0, {0, 8}), slice(sin, 0, {0, 8}), {.positions = positions});
    FAIL() << "nothing was thrown";
  } catch (const IndexError& e) {
    EXPECT_NE(std::string(e.what()).find("position 8 of token 3"), std::string::npos) << e.what();
  }
}

TEST(Rope, ValuesBeyondRotaryAreCopiedAndNaNStays) {
  const Session session;
  const auto [cos, sin] = rope_tables(2, 4, 100);
  Tensor x = cast(normal({2, 1, 7}, {1, 1}), DType::bf16);
  for (const bool halves : {false, true}) {
    const Tensor y = rope(x, cos, sin, {.halves = halves, .rotary = 4});
    EXPECT_EQ(slice(y, 2, {4, 7}).values(), slice(x, 2, {4, 7}).values());
  }
  const double inf = INFINITY;
  const auto [c, s] = rope_tables(1, 32, 100, 1);
  const Tensor bad =
      cast(expand(from_values(std::vector<double>{NAN, inf}, {1, 1, 2}, DType::f32), {1, 16, 2}),
           DType::bf16);
  for (double v : rope(reshape(bad, {1, 1, 32}), c, s).values()) EXPECT_TRUE(std::isnan(v));
}

TEST(Rope, ScalingThatContradictsItselfIsAnError) {
  using enum RopeScaling::Kind;
  const auto fails = [](double theta, const RopeScaling& s) {
    EXPECT_THROW((void)rope_frequencies(8, theta, s), ValueError);
  };
  fails(1e4, {.kind = llama3, .factor = 0.5});
  fails(1e4, {.kind = llama3, .factor = 8, .original_max_position = 0});
  fails(1e4, {.kind = llama3, .factor = 8, .low_freq_factor = 4, .high_freq_factor = 1});
  fails(1e4, {.kind = yarn, .factor = 8, .beta_fast = 1, .beta_slow = 32});
  fails(1, {.kind = yarn, .factor = 8});
  fails(1e4, {.kind = yarn, .factor = 8, .attention_factor = -1});
  fails(1e4, {.kind = linear, .factor = 0.5});
  const auto of_pairs = [](size_t pairs, double factor) { return std::vector(pairs, factor); };
  fails(1e4, {.kind = longrope, .short_factors = of_pairs(4, 1), .long_factors = of_pairs(3, 1)});
  fails(1e4, {.kind = longrope, .short_factors = of_pairs(4, 0), .long_factors = of_pairs(4, 1)});
  fails(1e4, {.kind = longrope,
              .factor = 2,
              .original_max_position = 1,
              .short_factors = of_pairs(4, 1),
              .long_factors = of_pairs(4, 1)});
  fails(0, {});
  EXPECT_THROW((void)rope_frequencies(7, 1e4), ValueError);
  EXPECT_THROW((void)rope_tables(-1, 8, 1e4), ValueError);
  // Llama 4 leaves no ramp: factors 1 and 1.
  const RopeScaling step{.kind = llama3, .factor = 16, .low_freq_factor = 1, .high_freq_factor = 1};
  const auto plain = rope_frequencies(64, 5e5), scaled = rope_frequencies(64, 5e5, step);
  for (size_t i = 0; i < plain.size(); ++i)
    EXPECT_TRUE(scaled[i] == plain[i] || scaled[i] == plain[i] / 16) << i;
}

TEST(Rope, TakesPositionsOf32Bits) {
  Context context;
  const auto [cos, sin] = rope_tables(4, 2, 10000);
  const Tensor x = ones({2, 1, 2});  // (T, H, D)
  EXPECT_EQ(rope(x, cos, sin, {.positions = tensor({3, 1}, DType::i32)}).values(),
            rope(x, cos, sin, {.positions = tensor({3, 1}, DType::i64)}).values());
}

}  // namespace
}  // namespace tessera
