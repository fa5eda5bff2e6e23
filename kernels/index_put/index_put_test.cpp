// SPDX-License-Identifier: Apache-2.0
// Indexing against values that PyTorch gives, and what index_put_ writes.
#include "tessera/kernels/index_put/index_put.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Doubles = std::vector<double>;

// 0, 1, ... of this shape.
Tensor ramp(const Shape& shape) {
  return reshape(arange(0, static_cast<double>(shape.numel()), 1, DType::f32), shape);
}
Tensor ids(std::initializer_list<Scalar> values, DType t = DType::i64) { return tensor(values, t); }

TEST(Indexing, PlacesSlicesAndNewAxesGiveViews) {
  const Session session;
  const Tensor x = ramp({2, 3, 4});
  const Tensor y = x[{1, slice(1, 3), slice()}];
  EXPECT_EQ(y.shape(), (Shape{2, 4}));
  EXPECT_EQ(y.values(), (Doubles{16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(y.storage().data(), x.storage().data());
  EXPECT_EQ((x[{1, 2, 3}].item()), 23);
  EXPECT_EQ((x[{-1, -1, -1}].item()), 23);
  EXPECT_EQ((x[{slice(), 0, slice(0, 4, 2)}].values()), (Doubles{0, 2, 12, 14}));
  EXPECT_EQ((x[{0, new_axis, slice(0, 1)}].shape()), (Shape{1, 1, 4}));
  EXPECT_EQ(x[new_axis].shape(), (Shape{1, 2, 3, 4}));
}

TEST(Indexing, EllipsisStandsForTheRest) {
  const Session session;
  const Tensor x = ramp({2, 3, 4});
  EXPECT_EQ((x[{ellipsis, 1}].shape()), (Shape{2, 3}));
  EXPECT_EQ((x[{ellipsis, 1}].values()), (Doubles{1, 5, 9, 13, 17, 21}));
  EXPECT_EQ((x[{0, ellipsis, 1}].values()), (Doubles{1, 5, 9}));
  EXPECT_EQ((x[{0, 1, ellipsis, 2}].item()), 6);
  EXPECT_THROW((void)(x[{ellipsis, ellipsis}]), IndexError);
}

TEST(Indexing, AnIndexTensorChoosesSlices) {
  const Session session;
  const Tensor x = ramp({3, 2});
  EXPECT_EQ(x[ids({2, 0, -1})].values(), (Doubles{4, 5, 0, 1, 4, 5}));
  EXPECT_EQ(x[ids({2, 0}, DType::i32)].values(), (Doubles{4, 5, 0, 1}));
  EXPECT_EQ((x[{slice(), tensor({{1, 0}, {0, 0}}, DType::i64)}].shape()), (Shape{3, 2, 2}));
  EXPECT_EQ((x[{slice(), tensor(1, DType::i64)}].values()), (Doubles{1, 3, 5}));
  EXPECT_EQ(x[zeros({0}, DType::i64)].shape(), (Shape{0, 2}));
}

TEST(Indexing, IndexTensorsBroadcastTogether) {
  const Session session;
  const Tensor x = ramp({3, 4});
  EXPECT_EQ((x[{ids({0, 1, 2}), ids({1, 2, -1})}].values()), (Doubles{1, 6, 11}));
  const Tensor rows = reshape(ids({0, 2}), {2, 1});
  const Tensor grid = x[{rows, ids({0, 3})}];
  EXPECT_EQ(grid.shape(), (Shape{2, 2}));
  EXPECT_EQ(grid.values(), (Doubles{0, 3, 8, 11}));
}

TEST(Indexing, IndexTensorsThatStandApartPutTheirShapeFirst) {
  const Session session;
  const Tensor x = ramp({2, 3, 4});
  const Tensor apart = x[{ids({0, 1}), slice(), ids({1, 3})}];
  EXPECT_EQ(apart.shape(), (Shape{2, 3}));
  EXPECT_EQ(apart.values(), (Doubles{1, 5, 9, 15, 19, 23}));
  const Tensor together = x[{slice(), ids({0, 2}), ids({1, 3})}];
  EXPECT_EQ(together.shape(), (Shape{2, 2}));
  EXPECT_EQ(together.values(), (Doubles{1, 11, 13, 23}));
  EXPECT_EQ((x[{0, slice(), ids({1, 3})}].values()), (Doubles{1, 3, 5, 7, 9, 11}));
}

TEST(Indexing, AMaskChoosesWhatIsTrue) {
  const Session session;
  const Tensor x = tensor({{1, -2, 3}, {-4, 5, -6}});
  EXPECT_EQ(x[x > 0].values(), (Doubles{1, 3, 5}));
  EXPECT_EQ(x[x > 100].shape(), (Shape{0}));
  EXPECT_EQ(x[tensor({0, 1}, DType::bool_)].values(), (Doubles{-4, 5, -6}));
  EXPECT_EQ((x[{slice(), tensor({1, 0, 1}, DType::bool_)}].values()), (Doubles{1, 3, -4, -6}));
  EXPECT_EQ(masked_select(x, tensor({1, 0, 1}, DType::bool_)).values(), (Doubles{1, 3, -4, -6}));
  EXPECT_EQ(masked_select(tensor(3), tensor(1, DType::bool_)).values(), (Doubles{3}));
  EXPECT_THROW((void)x[tensor({1, 0, 1}, DType::bool_)], IndexError);
  EXPECT_THROW((void)masked_select(x, x), DTypeError);
}

TEST(Indexing, NonzeroListsPlaces) {
  const Session session;
  const Tensor x = tensor({{0, 2}, {3, 0}});
  const Tensor places = nonzero(x);
  EXPECT_EQ(places.dtype(), DType::i64);
  EXPECT_EQ(places.shape(), (Shape{2, 2}));
  EXPECT_EQ(places.values(), (Doubles{0, 1, 1, 0}));
  EXPECT_EQ(nonzero(zeros({3, 0})).shape(), (Shape{0, 2}));
  EXPECT_EQ(nonzero(tensor(5)).shape(), (Shape{1, 0}));
  EXPECT_THROW((void)nonzero(empty({2}, DType::f32, kMeta)), DeviceError);
}

TEST(Indexing, ErrorsNameIndexAndTensor) {
  const Session session;
  const Tensor x = ramp({3, 4});
  EXPECT_THROW((void)(x[{0, 1, 2}]), IndexError);
  EXPECT_THROW((void)(x[{0, 4}]), IndexError);
  EXPECT_THROW((void)x[tensor({1, 2})], DTypeError);
  EXPECT_THROW((void)(x[{ids({0, 1}), ids({0, 1, 2})}]), ShapeError);
  try {
    (void)(x[{ids({0, 1}), ids({1, 4})}]);
    FAIL() << "expected IndexError";
  } catch (const IndexError& e) {
    EXPECT_STREQ(e.what(),
                 "[index] index 4 at position 1 of i64[2] is out of range for dim 1 of f32[3, 4]: "
                 "expected -4 to 3");
  }
}

TEST(Indexing, GradientsAddUpWhereAnElementIsReadTwice) {
  const Session session;
  Tensor x = ramp({3, 2}).set_requires_grad();
  backward(sum(x[{ids({0, 0, 2}), ids({1, 1, 0})}]) + sum(x[{1, slice()}]));
  EXPECT_EQ(x.grad().values(), (Doubles{0, 2, 1, 1, 1, 0}));
}

TEST(IndexPut, WritesNumbersAndTensorsInPlace) {
  const Session session;
  const Tensor x = zeros({3, 4});
  index_put_(x, {0, slice(1, 3)}, 5);
  index_put_(x, {slice(), 0}, tensor({1, 2, 3}));
  index_put_(x, {ids({1, 2}), ids({-1, 1})}, tensor({7, 8}));
  EXPECT_EQ(x.values(), (Doubles{1, 5, 5, 0, 2, 0, 0, 7, 3, 8, 0, 0}));
}

TEST(IndexPut, TheLastOfEqualPlacesWins) {
  const Session session;
  const Tensor x = zeros({4, 2});
  index_put_(x, {ids({1, 1, 3})}, tensor({{1, 2}, {3, 4}, {5, 6}}));
  EXPECT_EQ(x.values(), (Doubles{0, 0, 3, 4, 0, 0, 5, 6}));
}

TEST(IndexPut, AccumulateAddsAllOfThem) {
  const Session session;
  const Tensor x = ones({4, 2});
  index_put_(x, {ids({1, 1, 3})}, tensor({{1, 2}, {3, 4}, {5, 6}}), true);
  EXPECT_EQ(x.values(), (Doubles{1, 1, 5, 7, 1, 1, 6, 7}));
  index_put_(x, {0}, 2, true);
  EXPECT_EQ(x.values(), (Doubles{3, 3, 5, 7, 1, 1, 6, 7}));
}

TEST(IndexPut, WritesStridedViewsAndDimsInTheMiddle) {
  const Session session;
  const Tensor x = zeros({2, 3, 2});
  index_put_(transpose(x, 0, 2), {slice(), ids({0, 2})}, tensor({1, 2}));  // values (2) broadcast
  EXPECT_EQ(x.values(), (Doubles{1, 1, 0, 0, 1, 1, 2, 2, 0, 0, 2, 2}));
  index_put_(x, {ids({0, 1}), slice(), ids({1, 0})}, tensor({{7, 8, 9}, {4, 5, 6}}));
  EXPECT_EQ(x.values(), (Doubles{1, 7, 0, 8, 1, 9, 4, 2, 5, 0, 6, 2}));
}

TEST(IndexPut, AMaskNamesThePlaces) {
  const Session session;
  const Tensor x = tensor({{1, -2}, {-3, 4}});
  index_put_(x, {x < 0}, 0);
  EXPECT_EQ(x.values(), (Doubles{1, 0, 0, 4}));
}

TEST(IndexPut, RefusesBeforeItWrites) {
  const Session session;
  const Tensor x = zeros({3});
  EXPECT_THROW(index_put_(x, {ids({0, 3})}, 1), IndexError);
  EXPECT_THROW(index_put_(x, {ids({0, 1})}, tensor({1, 2, 3})), ShapeError);
  EXPECT_THROW(index_put_(x, {0}, tensor(1, DType::f64)), DTypeError);
  EXPECT_THROW(index_put_(zeros({3}, DType::i64), {0}, 0.5), DTypeError);
  EXPECT_EQ(test::error_of<UsageError>([&] {
              call(op::IndexPut{}, {x, x});
            }),
            "[index_put_] needs x, values and indices: given 2 inputs");
  EXPECT_EQ(x.values(), (Doubles{0, 0, 0}));
}

TEST(IndexPut, IsNotRecorded) {
  const Session session;
  Tensor x = zeros({3}).set_requires_grad();
  EXPECT_THROW(index_put_(x, {0}, 1), InPlaceError);
  EXPECT_THROW(index_put_(zeros({3}), {ids({0})}, x[{slice(0, 1)}]), InPlaceError);
  const NoGrad guard;
  index_put_(x, {0}, 1);
  EXPECT_EQ(x.values(), (Doubles{1, 0, 0}));
}

// Values that are the written tensor are read before it is.
TEST(IndexPut, OfItselfReadsWhatWasThere) {
  const Session session;
  for (const bool accumulate : {false, true}) {
    std::vector<double> values(100), order(100), expected(100);
    for (size_t i = 0; i < 100; ++i) {
      values[i] = static_cast<double>(i), order[i] = static_cast<double>(99 - i);
      expected[99 - i] = values[i] + (accumulate ? 99 - static_cast<double>(i) : 0);
    }
    const Tensor x = from_values(values, {100});
    const Index entries[] = {from_values(order, {100}, DType::i64)};
    index_put_(x, entries, x, accumulate);
    EXPECT_EQ(x.values(), expected);
  }
}

}  // namespace
}  // namespace tessera
