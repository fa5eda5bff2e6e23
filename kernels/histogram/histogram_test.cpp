// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/histogram/histogram.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace tessera {
namespace {

TEST(Histogram, Bincount) {
  Context context;
  EXPECT_EQ(bincount(tensor({1, 0, 3, 1}, DType::i64), 5).values(),
            (std::vector<double>{1, 2, 0, 1, 0}));
  EXPECT_EQ(bincount(tensor({{2, 2}, {0, 2}}, DType::i64), 3).values(),
            (std::vector<double>{1, 0, 3}));
  EXPECT_EQ(bincount(zeros({0}, DType::i64), 2).values(), (std::vector<double>{0, 0}));
  EXPECT_EQ(bincount(zeros({0}, DType::i64), 0).numel(), 0);
  const Tensor many = cast(uniform({300000}, {1, 2}, 0, 7), DType::i64);  // by several threads
  const auto counts = bincount(many, 7).values();
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0.0), 300000);
  EXPECT_NEAR(counts[3], 300000 / 7.0, 1000);
}

TEST(Histogram, LastBinHoldsItsEndAndNothingOutsideCounts) {
  Context context;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Tensor x = tensor({0, 1, 0.5, 0.49, -0.01, 1.01, kInf, -kInf, std::nan("")});
  EXPECT_EQ(histogram(x, 2, 0, 1).values(), (std::vector<double>{2, 2}));
  EXPECT_EQ(histogram(x, 0, 0, 1).numel(), 0);
  EXPECT_EQ(histogram(zeros({0}), 2, 0, 1).values(), (std::vector<double>{0, 0}));
  const auto counts = histogram(normal({200000}, {1, 2}), 4, -1, 1).values();
  EXPECT_NEAR(std::accumulate(counts.begin(), counts.end(), 0.0), 0.6827 * 200000, 1000);
}

TEST(Histogram, RangesNearTheLargestNumber) {
  Context context;
  const auto counts = histogram(zeros({40000}, DType::f64), 100, -8e307, 8e307).values();
  for (size_t b = 0; b < 100; ++b) EXPECT_EQ(counts[b], b == 50 ? 40000 : 0) << b;
  EXPECT_EQ(histogram(tensor({-8e307, -3e307, 1.0, 8e307}, DType::f64), 4, -8e307, 8e307).values(),
            (std::vector<double>{1, 1, 1, 1}));
}

TEST(Histogram, Errors) {
  Context context;
  try {
    (void)bincount(tensor({{0, 1}, {5, 0}}, DType::i64), 5);
    FAIL();
  } catch (const IndexError& e) {
    EXPECT_STREQ(e.what(),
                 "[bincount] value 5 at position 2 (row-major) of i64[2, 2] has no bin: expected 0 "
                 "to 4");
  }
  EXPECT_THROW((void)bincount(tensor({0}, DType::i64), 0), IndexError);
  EXPECT_THROW((void)bincount(tensor({-1}, DType::i64), 4), IndexError);
  EXPECT_THROW((void)histogram(zeros({2}), 3, 1, 0), ValueError);
  EXPECT_THROW((void)histogram(zeros({2}), 3, 0, std::nan("")), ValueError);
}

TEST(Histogram, BincountTakesNumbersOf32Bits) {
  Context context;
  EXPECT_EQ(bincount(tensor({1, 0, 1}, DType::i32), 3).values(), (std::vector<double>{1, 2, 0}));
}

}  // namespace
}  // namespace tessera
