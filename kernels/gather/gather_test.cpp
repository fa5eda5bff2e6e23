// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/gather/gather.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Gather, TakesAlongADim) {
  Context context;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  const Tensor at = tensor({{2, 0}, {1, 1}}, DType::i64);
  EXPECT_EQ(gather(x, 1, at).values(), (std::vector<double>{3, 1, 5, 5}));
  EXPECT_EQ(gather(transpose(x, 0, 1), 0, transpose(at, 0, 1)).values(),
            (std::vector<double>{3, 5, 1, 5}));
  EXPECT_EQ(gather(x, 1, zeros({2, 0}, DType::i64)).shape(), (Shape{2, 0}));
}

TEST(Gather, ScatterAddSumsRepeatedIndices) {
  Context context;
  const Tensor x = tensor({1, 1, 1});
  EXPECT_EQ(scatter_add(x, 0, tensor({2, 0, 2, 2}, DType::i64), tensor({1, 2, 3, 4})).values(),
            (std::vector<double>{3, 1, 9}));
  EXPECT_EQ(x.values()[0], 1);
  const Tensor narrow =
      scatter_add(zeros({1}, DType::bf16), 0, zeros({300}, DType::i64), ones({300}, DType::bf16));
  EXPECT_EQ(narrow.item(), 300);
}

TEST(Gather, ScatterOntoZerosNeedsNoInput) {
  Context context;
  const Tensor at = tensor({2, 0, 2}, DType::i64), src = tensor({1, 2, 3});
  EXPECT_EQ(scatter_zeros(4, 0, at, src).values(), (std::vector<double>{2, 0, 4, 0}));
  EXPECT_EQ(scatter_zeros(2, 0, zeros({0}, DType::i64), zeros({0})).values(),
            (std::vector<double>{0, 0}));
  EXPECT_EQ(scatter_zeros(0, 0, zeros({0}, DType::i64), zeros({0})).numel(), 0);
}

TEST(Gather, NamesTheIndexThatIsOutside) {
  Context context;
  const Tensor at = tensor({{0, 1}, {3, 0}}, DType::i64);
  try {
    (void)gather(zeros({2, 3}), 1, at);
    FAIL();
  } catch (const IndexError& e) {
    EXPECT_STREQ(
        e.what(),
        "[gather] index 3 at position 2 (row-major) of i64[2, 2] is out of range: expected 0 to 2");
  }
  EXPECT_THROW((void)scatter_add(zeros({2, 3}), 1, at, ones({2, 2})), IndexError);
}

TEST(Gather, TakesASmallerIndex) {
  Context context;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}, {7, 8, 9}});
  EXPECT_EQ(gather(x, 1, from_values({2, 0}, {1, 2}, DType::i64)).values(),
            (std::vector<double>{3, 1}));
  EXPECT_EQ(gather(x, 0, from_values({2, 0}, {2, 1}, DType::i64)).values(),
            (std::vector<double>{7, 1}));
  EXPECT_EQ(
      scatter_add(x, 0, from_values({2, 1}, {1, 2}, DType::i64), tensor({{10, 20, 30}, {1, 1, 1}}))
          .values(),
      (std::vector<double>{1, 2, 3, 4, 25, 6, 17, 8, 9}));
  EXPECT_THROW((void)gather(x, 1, zeros({4, 1}, DType::i64)), ShapeError);
  EXPECT_THROW((void)scatter_add(x, 0, from_values({2, 1}, {1, 2}, DType::i64), ones({1, 1})),
               ShapeError);
}

TEST(Gather, TakesTensorsWithoutDims) {
  Context context;
  const Tensor zero = zeros({}, DType::i64);
  EXPECT_EQ(gather(tensor(3), 0, zero).item(), 3);
  EXPECT_EQ(gather(tensor(3), -1, zero).rank(), 0);
  EXPECT_EQ(scatter_add(tensor(3), 0, zero, tensor(4)).item(), 7);
  EXPECT_THROW((void)gather(tensor(3), 1, zero), IndexError);
  EXPECT_THROW((void)gather(tensor(3), 0, tensor(1, DType::i64)), IndexError);
}

TEST(Gather, TakesIndicesOf32Bits) {
  Context context;
  const Tensor x = tensor({1, 2, 3}), at = tensor({2, 0}, DType::i32);
  EXPECT_EQ(gather(x, 0, at).values(), (std::vector<double>{3, 1}));
  EXPECT_EQ(scatter_add(x, 0, at, tensor({10, 20})).values(), (std::vector<double>{21, 2, 13}));
  EXPECT_EQ(scatter_zeros(3, 0, at, tensor({10, 20})).values(), (std::vector<double>{20, 0, 10}));
}

}  // namespace
}  // namespace tessera
