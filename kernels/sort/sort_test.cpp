// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/sort/sort.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tessera {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Sort, EqualsKeepTheirOrderAndNaNIsLargest) {
  Context context;
  const Tensor x = tensor({2, 0, std::nan(""), -kInf, -0.0, kInf, 2, -std::nan("")});
  EXPECT_EQ(argsort(x).values(), (std::vector<double>{3, 1, 4, 0, 6, 5, 2, 7}));
  EXPECT_EQ(argsort(x, 0, true).values(), (std::vector<double>{2, 7, 5, 0, 6, 1, 4, 3}));
  EXPECT_TRUE(std::signbit(sort(x)[0].data<float>()[2]));  // values are copied, not made from keys
}

TEST(Sort, SmallSizes) {
  Context context;
  EXPECT_EQ(sort(zeros({0}))[0].numel(), 0);
  EXPECT_EQ(sort(zeros({3, 0}), 0)[1].shape(), (Shape{3, 0}));
  EXPECT_EQ(sort(tensor(3))[0].item(), 3);
  EXPECT_EQ(sort(tensor(3))[1].item(), 0);
  EXPECT_EQ(sort(tensor({5}))[1].values(), (std::vector<double>{0}));
}

// Both ways of sorting, in every width of key, on rows and on columns, against the standard's.
TEST(Sort, AgreesWithTheStandard) {
  Context context;
  for (const DType t : {DType::i64, DType::i32, DType::f32, DType::f64, DType::bf16}) {
    for (const int64_t n : {1, 2, 95, 96, 1000}) {
      const Tensor x = cast(cast(uniform({3, n}, {1, 2}, -50, 50), DType::i64), t);
      for (const bool descending : {false, true}) {
        const Tensor rows = argsort(x, -1, descending);
        const Tensor columns = argsort(transpose(x, 0, 1), 0, descending);
        EXPECT_EQ(transpose(columns, 0, 1).values(), rows.values());
        for (int r = 0; r < 3; ++r) {
          const auto v = x[r].values();
          std::vector<double> order(static_cast<size_t>(n));
          std::iota(order.begin(), order.end(), 0);
          std::ranges::stable_sort(order, [&](double a, double b) {
            const double p = v[static_cast<size_t>(a)], q = v[static_cast<size_t>(b)];
            return descending ? p > q : p < q;
          });
          EXPECT_EQ(rows[r].values(), order) << t << " " << n << " " << descending;
        }
      }
    }
  }
}

TEST(Sort, ExtremeIntegers) {
  Context context;
  constexpr int64_t kLow = std::numeric_limits<int64_t>::min(), kHigh = -(kLow + 1);
  const Tensor x = empty({4}, DType::i64);
  for (const auto& [i, v] : {std::pair<int, int64_t>{0, kHigh}, {1, -1}, {2, kLow}, {3, kHigh - 1}})
    x.data<int64_t>()[i] = v;
  EXPECT_EQ(argsort(x).values(), (std::vector<double>{2, 1, 3, 0}));
}

TEST(Sort, Errors) {
  Context context;
  EXPECT_THROW((void)sort(zeros({3}), 1), IndexError);
  try {
    (void)sort(zeros({2}, DType::bool_));
    FAIL();
  } catch (const DTypeError& e) {
    EXPECT_STREQ(e.what(),
                 "[sort] the input must be of {f64, f32, bf16, f16, i64, i32}: given bool[2]; cast "
                 "it");
  }
}

}  // namespace
}  // namespace tessera
