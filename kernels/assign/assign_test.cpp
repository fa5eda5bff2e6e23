// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/assign/assign.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Assign, ConvertsIntoWhatIsThere) {
  const Session session;
  const Tensor to = full({2, 3}, -1, DType::bf16), from = normal({2, 3}, {1, 2});
  const void* bytes = to.raw_data();
  assign_(to, from);
  EXPECT_EQ(to.raw_data(), bytes);
  EXPECT_EQ(to.values(), cast(from, DType::bf16).values());
}

TEST(Assign, WritesAStridedPartAlone) {
  const Session session;
  for (DType from : {DType::f32, DType::f64}) {
    const Tensor whole = zeros({2, 3});
    assign_(transpose(slice(whole, 1, {1, 3}), 0, 1),
            cast(from_values({1, 2, 3, 4}, {2, 2}), from));
    EXPECT_EQ(whole.values(), (std::vector<double>{0, 1, 3, 0, 2, 4}));
  }
}

TEST(Assign, MayReadWhatItWrites) {
  const Session session;
  const Tensor x = from_values({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  assign_(x, x);
  assign_(slice(x, 1, {0, 2}), slice(x, 1, {2, 4}));  // interleaved, but no element in common
  EXPECT_EQ(x.values(), (std::vector<double>{3, 4, 3, 4, 7, 8, 7, 8}));
  assign_(slice(x, 0, {0, 1}), slice(x, 0, {1, 2}));
  EXPECT_EQ(x.values(), (std::vector<double>{7, 8, 7, 8, 7, 8, 7, 8}));
  const Tensor one = slice(x, 1, {1, 2});
  assign_(slice(x, 1, {2, 4}), expand(one, {2, 2}));
  EXPECT_EQ(x.values(), (std::vector<double>{7, 8, 8, 8, 7, 8, 8, 8}));
}

TEST(Assign, RefusesOtherAliases) {
  const Session session;
  const Tensor x = from_values({1, 2, 3, 4, 5, 6, 7, 8, 9}, {3, 3});
  EXPECT_THROW(assign_(x, transpose(x, 0, 1)), UsageError);
  EXPECT_THROW(assign_(slice(x, 0, {0, 2}), slice(x, 0, {1, 3})), UsageError);
  EXPECT_THROW(assign_(slice(x, 1, {0, 2}), slice(x, 1, {1, 3})), UsageError);
  EXPECT_THROW(assign_(expand(slice(x, 1, {1, 2}), {3, 3}), zeros({3, 3})), UsageError);
  EXPECT_THROW(assign_(x, expand(slice(x, 1, {1, 2}), {3, 3})), UsageError);
  EXPECT_EQ(x.values(), (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(Assign, IsSeenByAutograd) {
  const Session session;
  const Tensor x = tensor({1, 2}).set_requires_grad();
  EXPECT_THROW(assign_(x, tensor({3, 4})), InPlaceError);
  const NoGrad guard;
  assign_(x, tensor({3, 4}));
  EXPECT_EQ(x.values(), (std::vector<double>{3, 4}));
}

TEST(InPlaceOperators, WriteOverWhatIsThere) {
  const Session session;
  const Tensor x = tensor({1, 2, 4}), other = x;
  x += tensor({1, 1, 1});
  x *= 2;
  x -= 2;
  x /= tensor({2, 2, 2});
  EXPECT_EQ(other.values(), (std::vector<double>{1, 2, 4}));
  x[slice(0, 2)] += 10;
  EXPECT_EQ(other.values(), (std::vector<double>{11, 12, 4}));
  const Tensor whole = tensor<int64_t>({9007199254740993});
  whole += 2;
  EXPECT_EQ(whole.item<int64_t>(), 9007199254740995);
}

TEST(InPlaceOperators, TheOperandBroadcastsAndDoesNotGrowTheTensor) {
  const Session session;
  const Tensor x = zeros({2, 3});
  x += tensor({1, 2, 3});
  EXPECT_EQ(x.values(), (std::vector<double>{1, 2, 3, 1, 2, 3}));
  const Tensor row = zeros({3});
  EXPECT_THROW(row += x, ShapeError);
  EXPECT_THROW(row += tensor({1, 2, 3}, DType::f64), DTypeError);
}

TEST(InPlaceOperators, AreForLeavesUnderNoGrad) {
  const Session session;
  const Tensor x = tensor({1, 2}).set_requires_grad(), buffer = zeros({2});
  EXPECT_THROW(x += 1, InPlaceError);
  EXPECT_THROW(buffer += x, InPlaceError);
  const NoGrad guard;
  x -= x * 0.5;
  EXPECT_EQ(x.values(), (std::vector<double>{0.5, 1}));
  EXPECT_TRUE(x.requires_grad());
}

}  // namespace
}  // namespace tessera
