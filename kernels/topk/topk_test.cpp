// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/topk/topk.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera {
namespace {

TEST(TopK, LargestFirstAndEqualsInOrder) {
  Context context;
  const auto [values, indices] = topk(tensor({2, 5, std::nan(""), 5, 1}), 4);
  EXPECT_TRUE(std::isnan(values.values()[0]));
  EXPECT_EQ(indices.values(), (std::vector<double>{2, 1, 3, 0}));
  EXPECT_EQ(topk(tensor({1, 2}), 0)[0].numel(), 0);
}

TEST(TopK, SmallestFirstAndNaNLast) {
  Context context;
  const Tensor x = tensor({2, 1, std::nan(""), 1, 5});
  EXPECT_EQ(topk(x, 3, -1, false)[1].values(), (std::vector<double>{1, 3, 0}));
  EXPECT_EQ(topk(x, 5, -1, false)[1].values(), (std::vector<double>{1, 3, 0, 4, 2}));
}

// Both ways of selecting, on rows and on columns, against a stable sort.
TEST(TopK, AgreesWithSorting) {
  Context context;
  const int64_t n = 1000;
  const Tensor x = cast(uniform({3, n}, {1, 2}, -50, 50), DType::i64);  // many equal elements
  for (const int64_t k : {1, 7, 128, -128, 129, -129, 1000}) {          // negative: the smallest
    const bool largest = k > 0;
    const int64_t count = std::abs(k);
    const Tensor rows = topk(x, count, -1, largest)[1];
    const Tensor columns = topk(contiguous(transpose(x, 0, 1)), count, 0, largest)[1];
    EXPECT_EQ(transpose(columns, 0, 1).values(), rows.values());
    for (int r = 0; r < 3; ++r) {
      const auto v = x[r].values();
      std::vector<double> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](double a, double b) {
        const double p = v[static_cast<size_t>(a)], q = v[static_cast<size_t>(b)];
        return largest ? p > q : p < q;
      });
      order.resize(static_cast<size_t>(count));
      EXPECT_EQ(rows[r].values(), order);
    }
  }
}

TEST(TopK, Errors) {
  Context context;
  EXPECT_THROW((void)topk(zeros({3}), 4), ShapeError);
  EXPECT_THROW((void)topk(zeros({3}), 1, 1), IndexError);
}

}  // namespace
}  // namespace tessera
