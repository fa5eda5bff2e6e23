// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/index_select/index_select.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

Tensor places(std::initializer_list<Scalar> values) { return tensor(values, DType::i64); }

TEST(IndexSelect, TakesSlices) {
  Context context;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(index_select(x, 0, places({1, 1, 0})).values(),
            (std::vector<double>{4, 5, 6, 4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(index_select(x, 1, places({2, 0})).values(), (std::vector<double>{3, 1, 6, 4}));
  EXPECT_EQ(index_select(transpose(x, 0, 1), -2, places({2, 0})).values(),
            (std::vector<double>{3, 6, 1, 4}));
  EXPECT_EQ(index_select(slice(x, 1, {1}), 0, places({1})).values(), (std::vector<double>{5, 6}));
  EXPECT_EQ(index_select(x, 1, zeros({0}, DType::i64)).shape(), (Shape{2, 0}));
}

TEST(IndexSelect, IndexAddSumsEqualPlaces) {
  Context context;
  const Tensor x = tensor({{1, 1}, {1, 1}, {1, 1}});
  EXPECT_EQ(index_add(x, 0, places({2, 0, 2}), tensor({{1, 2}, {3, 4}, {5, 6}})).values(),
            (std::vector<double>{4, 5, 1, 1, 7, 9}));
  EXPECT_EQ(x.values()[0], 1);
  EXPECT_EQ(index_zeros(3, 1, places({2, 2}), tensor({{1, 2}})).values(),
            (std::vector<double>{0, 0, 3}));
  const Tensor narrow =
      index_add(zeros({1}, DType::bf16), 0, zeros({300}, DType::i64), ones({300}, DType::bf16));
  EXPECT_EQ(narrow.item(), 300);
  EXPECT_EQ(index_zeros(0, 0, zeros({0}, DType::i64), zeros({0})).numel(), 0);
  EXPECT_EQ(index_zeros(2, 0, zeros({0}, DType::i64), zeros({0})).values(),
            (std::vector<double>{0, 0}));
}

TEST(IndexSelect, NamesTheIndexThatIsOutside) {
  Context context;
  try {
    (void)index_select(zeros({2, 3}), 1, places({0, 3}));
    FAIL();
  } catch (const IndexError& e) {
    EXPECT_STREQ(e.what(),
                 "[index_select] index 3 at position 1 of i64[2] is out of range: expected 0 to 2");
  }
  EXPECT_THROW((void)index_select(zeros({0, 3}), 0, places({0})), IndexError);
  EXPECT_THROW((void)index_add(zeros({2}), 0, places({-1}), ones({1})), IndexError);
}

TEST(IndexSelect, TakesIndicesOf32Bits) {
  Context context;
  const Tensor x = tensor({1, 2, 3}), at = tensor({2, 0}, DType::i32);
  EXPECT_EQ(index_select(x, 0, at).values(), (std::vector<double>{3, 1}));
  EXPECT_EQ(index_add(x, 0, at, tensor({10, 20})).values(), (std::vector<double>{21, 2, 13}));
}

TEST(IndexSelect, RepeatsEachElementByItsCount) {
  Context context;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(repeat_interleave(x, places({2, 0, 1}), 1).values(),
            (std::vector<double>{1, 1, 3, 4, 4, 6}));
  EXPECT_EQ(repeat_interleave(x, tensor({0, 2}, DType::i32), -2).values(),
            (std::vector<double>{4, 5, 6, 4, 5, 6}));
  EXPECT_EQ(repeat_interleave(x, places({0, 0, 0, 0, 1, 2})).values(),
            (std::vector<double>{5, 6, 6}));
  EXPECT_EQ(repeat_interleave(x, places({0, 0}), 0).shape(), (Shape{0, 3}));
  EXPECT_THROW((void)repeat_interleave(x, places({1, -1}), 0), ValueError);
  EXPECT_THROW((void)repeat_interleave(x, places({1, 1}), 1), ShapeError);
  EXPECT_THROW((void)repeat_interleave(x, tensor({1, 1}), 0), DTypeError);
}

}  // namespace
}  // namespace tessera
