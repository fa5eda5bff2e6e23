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

}  // namespace
}  // namespace tessera
