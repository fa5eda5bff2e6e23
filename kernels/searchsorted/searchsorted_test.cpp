// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/searchsorted/searchsorted.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace tessera {
namespace {

TEST(SearchSorted, LeftAndRight) {
  Context context;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Tensor sorted = tensor({1, 3, 3, 5}), values = tensor({0, 1, 3, 4, 6, kInf, -kInf});
  EXPECT_EQ(searchsorted(sorted, values).values(), (std::vector<double>{0, 0, 1, 3, 4, 4, 0}));
  EXPECT_EQ(searchsorted(sorted, values, true).values(),
            (std::vector<double>{0, 1, 3, 3, 4, 4, 0}));
  EXPECT_EQ(searchsorted(sorted, tensor(std::nan(""))).item(), 4);
}

TEST(SearchSorted, RowsAndEdges) {
  Context context;
  const Tensor sorted = tensor({{1, 2, 3}, {4, 5, 6}}), values = tensor({{2, 9}, {2, 5}});
  EXPECT_EQ(searchsorted(sorted, values).values(), (std::vector<double>{1, 3, 0, 1}));
  const Tensor columns = transpose(tensor({{1, 4}, {2, 5}, {3, 6}}), 0, 1);
  EXPECT_EQ(searchsorted(columns, values).values(), (std::vector<double>{1, 3, 0, 1}));
  EXPECT_EQ(searchsorted(zeros({0}), tensor({1, 2})).values(), (std::vector<double>{0, 0}));
  EXPECT_EQ(searchsorted(tensor({1}), zeros({0, 3})).shape(), (Shape{0, 3}));
}

TEST(SearchSorted, NanComesAfterAllNumbers) {
  Context context;
  const double nan = std::nan("");
  for (const int64_t copies : {1, 8}) {  // one by one, and several at a time
    const Tensor sorted = tensor({1, 2, INFINITY, nan, nan});
    const Tensor each = from_values(std::vector<double>{0.5, 2, INFINITY, nan}, {4, 1});
    const Tensor values = reshape(expand(each, {4, copies}), {4 * copies});
    const auto left = searchsorted(sorted, values).values(),
               right = searchsorted(sorted, values, true).values();
    for (size_t i = 0; i < left.size(); ++i) {
      const size_t which = i / static_cast<size_t>(copies);
      EXPECT_EQ(left[i], (std::array<double, 4>{0, 1, 2, 3}[which]));
      EXPECT_EQ(right[i], (std::array<double, 4>{0, 2, 3, 5}[which]));
    }
  }
}

TEST(SearchSorted, Errors) {
  Context context;
  EXPECT_THROW((void)searchsorted(zeros({2, 3}), zeros({3, 3})), ShapeError);
  EXPECT_THROW((void)searchsorted(zeros({2}), zeros({2}, DType::f64)), DTypeError);
}

}  // namespace
}  // namespace tessera
