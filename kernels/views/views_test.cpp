// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/views/views.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

Tensor count_up(const Shape& shape) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  return from_values(values, shape);
}

TEST(Views, AliasTheirInput) {
  Context context;
  const Tensor x = count_up({4, 6});
  for (const Tensor& v : {reshape(x, {8, 3}), transpose(x, 0, 1), slice(x, 1, {1, 5, 2}), x[2],
                          expand(x[0], {5, 6})}) {
    EXPECT_EQ(&v.storage(), &x.storage());
  }
  x.data<float>()[6 * 2] = -1;
  EXPECT_EQ(x[2].values()[0], -1);
}

TEST(Views, ReshapeCopiesOnlyWhereItMust) {
  Context context;
  const Tensor x = count_up({4, 6});
  const Tensor t = transpose(x, 0, 1);
  EXPECT_EQ(reshape(t, {-1}).values()[1], 6);
  EXPECT_NE(&reshape(t, {24}).storage(), &x.storage());
  EXPECT_EQ(&reshape(t, {2, 3, 4}).storage(), &x.storage());  // splits only
  EXPECT_EQ(reshape(t, {2, 3, 4}).values(), contiguous(t).values());
  EXPECT_EQ(&reshape(slice(x, 1, {0, 3}), {2, 2, 3}).storage(), &x.storage());
  EXPECT_EQ(reshape(x, {4, 6}).handle(), x.handle());
  EXPECT_EQ(reshape(zeros({0, 3}), {5, 0}).shape(), (Shape{5, 0}));
  EXPECT_EQ(reshape(count_up({1, 1}), {}).rank(), 0);
  EXPECT_THROW((void)call(op::Reshape{{24}}, {t}), ShapeError);
}

TEST(Views, SliceCutsAsPython) {
  Context context;
  const Tensor x = count_up({10});
  EXPECT_EQ(x[slice(2, 5)].values(), (std::vector<double>{2, 3, 4}));
  EXPECT_EQ(x[slice(-3)].values(), (std::vector<double>{7, 8, 9}));
  EXPECT_EQ(x[slice(7, 100, 2)].values(), (std::vector<double>{7, 9}));
  EXPECT_EQ(x[slice(-100, -8)].values(), (std::vector<double>{0, 1}));
  EXPECT_EQ(x[slice(5, 2)].numel(), 0);
  EXPECT_EQ(x[-1].item(), 9);
  EXPECT_THROW((void)x[10], IndexError);
  EXPECT_THROW((void)x[slice(0, 5, 0)], ValueError);
}

TEST(Views, SlicePadIsTheTranspose) {
  Context context;
  const Tensor y = call(op::SlicePad{0, 1, 2, 6}, {tensor({1, 2})});
  EXPECT_EQ(y.values(), (std::vector<double>{0, 1, 0, 2, 0, 0}));
}

TEST(Views, ReshapeRuleCutsLeadingDims) {
  Context context;
  const TensorMeta x{{8, 15, 7}, DType::f32, kCpu};
  const TensorMeta* in[] = {&x};
  const ShardingRule r = op::Reshape{{12, 10, 7}}.sharding(Metas(in, 1));
  ASSERT_EQ(r.factors().size(), 2u);
  EXPECT_EQ(r.factors()[0].size, 4);
  EXPECT_EQ(r.dims(0)[0].scale, 2);
  EXPECT_EQ(r.dims(1)[0].scale, 3);
  EXPECT_EQ(r.dims(0)[1].factor, -1);
  EXPECT_EQ(r.dims(1)[2].factor, r.dims(0)[2].factor);
}

TEST(Views, Errors) {
  Context context;
  const Tensor x = count_up({4, 6});
  try {
    (void)reshape(x, {5, 5});
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(),
                 "[reshape] given [4, 6] of 24 elements, expected as many as [5, 5] holds (25)");
  }
  EXPECT_THROW((void)reshape(x, {-1, 5}), ShapeError);
  EXPECT_THROW((void)reshape(x, {-1, -1}), ShapeError);
  EXPECT_THROW((void)expand(x, {4, 7}), ShapeError);
  EXPECT_THROW((void)permute(x, {0, 0}), ShapeError);
  EXPECT_THROW((void)transpose(x, 0, 2), IndexError);
}

template <class F> std::string message_of(F&& f) {
  try {
    (void)f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Views, SqueezeFlattenAndBack) {
  Context context;
  const Tensor x = count_up({2, 1, 3, 1});
  EXPECT_EQ(squeeze(x).shape(), (Shape{2, 3}));
  EXPECT_EQ(squeeze(x, -1).shape(), (Shape{2, 1, 3}));
  EXPECT_EQ(unsqueeze(x, -1).shape(), (Shape{2, 1, 3, 1, 1}));
  EXPECT_EQ(unsqueeze(tensor(1), 0).shape(), (Shape{1}));
  EXPECT_EQ(flatten(x, 1, 2).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(flatten(x).shape(), (Shape{6}));
  EXPECT_EQ(flatten(tensor(1)).shape(), (Shape{1}));
  EXPECT_EQ(flatten(zeros({2, 0, 3}), 1).shape(), (Shape{2, 0}));
  EXPECT_EQ(unflatten(flatten(x), -1, {-1, 3}).shape(), (Shape{2, 3}));
  EXPECT_EQ(unflatten(zeros({0, 4}), 0, {0, 5}).shape(), (Shape{0, 5, 4}));
  for (const Tensor& v : {squeeze(x), unsqueeze(x, 0), flatten(x), unflatten(x, 2, {3, 1})})
    EXPECT_EQ(&v.storage(), &x.storage());
  EXPECT_EQ(
      message_of([&] { return squeeze(x, 2); }),
      "[squeeze] dim 2 must have size 1: given f32[2, 1, 3, 1]; select one of its elements, or "
      "flatten it into its neighbour");
  EXPECT_EQ(message_of([&] { return flatten(x, 2, 1); }),
            "[flatten] the first dim must not come after the last: given 2 and 1 for "
            "f32[2, 1, 3, 1]");
  EXPECT_EQ(message_of([&] {
              return unflatten(x, 2, {2, -1});
            }),
            "[unflatten] sizes [2, -1] must multiply to dim 2 (3), with -1 once at most: given "
            "f32[2, 1, 3, 1]");
  EXPECT_THROW((void)unflatten(x, 2, {-3, -1}), ShapeError);
  EXPECT_THROW((void)unflatten(x, 0, {}), ShapeError);
  EXPECT_THROW((void)squeeze(tensor(1), 0), ShapeError);
  EXPECT_THROW((void)unsqueeze(x, 5), IndexError);
  EXPECT_THROW((void)squeeze(x, 4), IndexError);
}

TEST(Views, MovedimAndNarrow) {
  Context context;
  const Tensor x = count_up({2, 3, 4});
  EXPECT_EQ(movedim(x, 0, -1).shape(), (Shape{3, 4, 2}));
  EXPECT_EQ(movedim(x, 2, 0).shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(movedim(x, 1, 1).handle(), x.handle());
  EXPECT_EQ(narrow(x, 2, 1, 2)[1][2].values(), (std::vector<double>{21, 22}));
  EXPECT_EQ(narrow(x, 2, -1, 1)[0][0].values(), (std::vector<double>{3}));
  EXPECT_EQ(narrow(x, 2, 4, 0).numel(), 0);
  EXPECT_EQ(message_of([&] { return narrow(x, 2, 3, 2); }),
            "[narrow] 2 elements from 3 would not lie inside dim 2 of f32[2, 3, 4]");
  EXPECT_THROW((void)narrow(x, 0, 0, -1), IndexError);
}

TEST(Views, SplitAndChunk) {
  Context context;
  const Tensor x = count_up({5, 2});
  const auto sizes = [](const std::vector<Tensor>& parts) {
    std::vector<int64_t> all;
    for (const Tensor& p : parts) all.push_back(p.shape()[0]);
    return all;
  };
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(sizes(split(x, 2)), (Sizes{2, 2, 1}));
  EXPECT_EQ(sizes(split(x, 9)), (Sizes{5}));
  EXPECT_EQ(sizes(split(x, {1, 0, 4})), (Sizes{1, 0, 4}));
  EXPECT_EQ(split(x, {1, 0, 4})[2].values()[0], 2);
  EXPECT_EQ(sizes(chunk(x, 4)), (Sizes{2, 2, 1}));  // as torch: a chunk fewer
  EXPECT_EQ(sizes(chunk(x, 7)), (Sizes{1, 1, 1, 1, 1}));
  EXPECT_EQ(sizes(split(zeros({0, 2}), 3)), (Sizes{0}));
  EXPECT_EQ(sizes(chunk(zeros({0, 2}), 3)), (Sizes{0, 0, 0}));
  EXPECT_EQ(&split(x, 2)[1].storage(), &x.storage());
  EXPECT_EQ(message_of([&] {
              return split(x, {1, 2}).size();
            }),
            "[split] sizes must add up to dim 0 (5): they make 3 for f32[5, 2]");
  EXPECT_THROW((void)split(x, {6, -1}), ShapeError);
  EXPECT_THROW((void)split(x, 0), ValueError);
  EXPECT_THROW((void)chunk(x, 0), ValueError);
  EXPECT_THROW((void)chunk(x, 2, 2), IndexError);
}

TEST(Views, DiagonalIsAView) {
  Context context;
  const Tensor x = count_up({3, 4});
  EXPECT_EQ(diagonal(x).values(), (std::vector<double>{0, 5, 10}));
  EXPECT_EQ(diagonal(x, 2).values(), (std::vector<double>{2, 7}));
  EXPECT_EQ(diagonal(x, -1).values(), (std::vector<double>{4, 9}));
  EXPECT_EQ(diagonal(x, 4).numel(), 0);
  EXPECT_EQ(diagonal(transpose(x, 0, 1), 1, -1, 0).values(), (std::vector<double>{1, 6, 11}));
  EXPECT_EQ(&diagonal(x).storage(), &x.storage());
  EXPECT_EQ(diagonal(zeros({2, 3, 4}), 0, 0, 2).shape(), (Shape{3, 2}));
  EXPECT_EQ(diag_embed(tensor({1, 2}), -1).values(),
            (std::vector<double>{0, 0, 0, 1, 0, 0, 0, 2, 0}));
  EXPECT_EQ(diag_embed(zeros({5, 0})).shape(), (Shape{5, 0, 0}));
  EXPECT_EQ(message_of([&] { return diagonal(x, 0, 1, -1); }),
            "[diagonal] the two dims must differ: given 1 and -1 for shape [3, 4]");
  EXPECT_THROW((void)diagonal(tensor({1, 2})), ShapeError);
  EXPECT_THROW((void)diag_embed(tensor(1)), ShapeError);
}

TEST(Views, ExpandKeepsASizeOfMinusOne) {
  Context context;
  const Tensor x = from_values({1, 2}, {2, 1});
  EXPECT_EQ(expand(x, {-1, 3}).values(), (std::vector<double>{1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(expand(x, {2, -1, -1}).shape(), (Shape{2, 2, 1}));
  EXPECT_EQ(expand(zeros({0, 1}), {-1, 4}).shape(), (Shape{0, 4}));
  EXPECT_THROW((void)expand(x, {-1, 2, 1}), ShapeError);  // a new dim has no size to keep
}

TEST(Views, SqueezeTakesSeveralDims) {
  Context context;
  const Tensor x = count_up({1, 3, 1, 2, 1});
  EXPECT_EQ(squeeze(x, {0, -1}).shape(), (Shape{3, 1, 2}));
  EXPECT_EQ(squeeze(x, {2, 0, 4}).shape(), (Shape{3, 2}));
  EXPECT_EQ(squeeze(x, Dims{}).shape(), x.shape());
  EXPECT_THROW((void)squeeze(x, {0, 1}), ShapeError);
  EXPECT_THROW((void)squeeze(x, {0, 5}), IndexError);
}

TEST(Views, RepeatLaysCopiesSideBySide) {
  Context context;
  const Tensor x = tensor({{1, 2}, {3, 4}});
  EXPECT_EQ(repeat(x, {2, 1}).values(), (std::vector<double>{1, 2, 3, 4, 1, 2, 3, 4}));
  EXPECT_EQ(repeat(x, {1, 2}).values(), (std::vector<double>{1, 2, 1, 2, 3, 4, 3, 4}));
  EXPECT_EQ(repeat(tensor({1, 2}), {2, 2}).values(), (std::vector<double>{1, 2, 1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(repeat(full({1, 1}, 7), {2, 3}).values(), (std::vector<double>(6, 7)));
  EXPECT_EQ(repeat(tensor(5), {3}).values(), (std::vector<double>{5, 5, 5}));
  EXPECT_EQ(repeat(x, {0, 2}).shape(), (Shape{0, 4}));
  EXPECT_EQ(tile(x, {2}).values(), repeat(x, {1, 2}).values());
  EXPECT_THROW((void)repeat(x, {2}), ShapeError);
  EXPECT_THROW((void)repeat(x, {1, -1}), ShapeError);
}

TEST(Views, RepeatGivesACopy) {
  Context context;
  const Tensor x = ones({1, 2});
  EXPECT_NE(&repeat(x, {1, 1}).storage(), &x.storage());
  EXPECT_NE(&repeat(x, {3, 1}).storage(), &x.storage());
}

TEST(Views, RepeatInterleaveRepeatsEachElement) {
  Context context;
  const Tensor x = tensor({{1, 2}, {3, 4}});
  EXPECT_EQ(repeat_interleave(x, 2).values(), (std::vector<double>{1, 1, 2, 2, 3, 3, 4, 4}));
  EXPECT_EQ(repeat_interleave(x, 2, 0).values(), (std::vector<double>{1, 2, 1, 2, 3, 4, 3, 4}));
  EXPECT_EQ(repeat_interleave(x, 3, -1).shape(), (Shape{2, 6}));
  EXPECT_EQ(repeat_interleave(x, 0, 1).shape(), (Shape{2, 0}));
  EXPECT_THROW((void)repeat_interleave(x, -1, 0), ShapeError);
  EXPECT_THROW((void)repeat_interleave(x, 2, 2), IndexError);
}

TEST(Views, EyeHasOnesOnTheDiagonal) {
  Context context;
  EXPECT_EQ(eye(2).values(), (std::vector<double>{1, 0, 0, 1}));
  EXPECT_EQ(eye(2, 3).values(), (std::vector<double>{1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(eye(3, 1, DType::i64).values(), (std::vector<double>{1, 0, 0}));
  EXPECT_EQ(eye(0).shape(), (Shape{0, 0}));
  EXPECT_THROW((void)eye(-1), ShapeError);
}

}  // namespace
}  // namespace tessera
