// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/scatter/scatter.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera {
namespace {

using R = ScatterReduction;
using Values = std::vector<double>;

Tensor places(std::initializer_list<Scalar> values) { return tensor(values, DType::i64); }

TEST(Scatter, PutsValuesWhereTheIndexPoints) {
  Context context;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  const Tensor at = tensor({{2, 0}, {1, 1}}, DType::i64), src = tensor({{7, 8}, {9, 10}});
  EXPECT_EQ(scatter(x, 1, at, src).values(), (Values{8, 2, 7, 4, 10, 6}));
  EXPECT_EQ(scatter(x, -1, at, 0.5).values(), (Values{0.5, 2, 0.5, 4, 0.5, 6}));
  EXPECT_EQ(scatter(transpose(x, 0, 1), 0, transpose(at, 0, 1), transpose(src, 0, 1)).values(),
            (Values{8, 4, 2, 10, 7, 6}));
  EXPECT_EQ(x.values()[0], 1);
}

TEST(Scatter, TakesASmallerIndexAndALargerSource) {
  Context context;
  const Tensor x = zeros({3, 3}), src = tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(scatter(x, 0, from_values({2, 1}, {1, 2}, DType::i32), src).values(),
            (Values{0, 0, 0, 0, 2, 0, 1, 0, 0}));
  EXPECT_EQ(scatter(x, 0, zeros({0, 3}, DType::i64), src).values(), Values(9, 0));
  EXPECT_EQ(scatter(tensor(1), 0, zeros({}, DType::i64), tensor(5)).item(), 5);
  EXPECT_EQ(scatter(tensor({0, 1}, DType::bool_), 0, places({0}), 1).values(), (Values{1, 1}));
}

TEST(Scatter, TheLastOfSeveralValuesStaysAndHasTheGradient) {
  const Session session;
  Tensor x = tensor({1, 2, 3}), src = tensor({4, 5, 6});
  x.set_requires_grad();
  src.set_requires_grad();
  const Tensor y = scatter(x, 0, places({1, 0, 1}), src);
  EXPECT_EQ(y.values(), (Values{5, 6, 3}));
  backward(sum(mul(y, tensor({10, 20, 30}))));
  EXPECT_EQ(x.grad().values(), (Values{0, 0, 30}));
  EXPECT_EQ(src.grad().values(), (Values{0, 10, 20}));
}

TEST(ScatterReduce, JoinsValuesWithTheInputsOwn) {
  Context context;
  const Tensor x = tensor({1, 2, 3, 4}), at = places({2, 0, 2}), src = tensor({7, 5, 2});
  EXPECT_EQ(scatter_reduce(x, 0, at, src, R::sum).values(), (Values{6, 2, 12, 4}));
  EXPECT_EQ(scatter_reduce(x, 0, at, src, R::prod).values(), (Values{5, 2, 42, 4}));
  EXPECT_EQ(scatter_reduce(x, 0, at, src, R::mean).values(), (Values{3, 2, 4, 4}));
  EXPECT_EQ(scatter_reduce(x, 0, at, src, R::amax).values(), (Values{5, 2, 7, 4}));
  EXPECT_EQ(scatter_reduce(x, 0, at, src, R::amin).values(), (Values{1, 2, 2, 4}));
}

TEST(ScatterReduce, OrWithoutThem) {
  Context context;
  for (const DType t : {DType::f32, DType::bf16, DType::i64, DType::i32}) {
    const Tensor x = tensor({1, 2, 3, 4}, t), at = places({2, 0, 2}), src = tensor({8, 5, 2}, t);
    const auto y = [&](R reduce) { return scatter_reduce(x, 0, at, src, reduce, false).values(); };
    EXPECT_EQ(y(R::sum), (Values{5, 2, 10, 4})) << t;
    EXPECT_EQ(y(R::prod), (Values{5, 2, 16, 4})) << t;
    EXPECT_EQ(y(R::amax), (Values{5, 2, 8, 4})) << t;
    EXPECT_EQ(y(R::amin), (Values{5, 2, 2, 4})) << t;
    if (is_floating(t)) EXPECT_EQ(y(R::mean), (Values{5, 2, 5, 4})) << t;
    else EXPECT_THROW((void)y(R::mean), DTypeError) << t;
  }
}

TEST(ScatterReduce, NanIsLargestAndSmallest) {
  Context context;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = tensor({1, nan}), at = places({0, 1}), src = tensor({nan, 2});
  for (const R reduce : {R::amax, R::amin}) {
    const Values v = scatter_reduce(x, 0, at, src, reduce).values();
    EXPECT_TRUE(std::isnan(v[0]) && std::isnan(v[1]));
  }
}

TEST(ScatterReduce, TiesShareTheGradient) {
  const Session session;
  Tensor x = tensor({4, 1}), src = tensor({4, 4, 3});
  x.set_requires_grad();
  src.set_requires_grad();
  backward(sum(scatter_reduce(x, 0, places({0, 0, 0}), mul(src, ones({3})), R::amax)));
  EXPECT_FLOAT_EQ(static_cast<float>(x.grad().values()[0]), 1.0F / 3);
  EXPECT_EQ(x.grad().values()[1], 1);
  EXPECT_FLOAT_EQ(static_cast<float>(src.grad().values()[1]), 1.0F / 3);
  EXPECT_EQ(src.grad().values()[2], 0);
}

TEST(ScatterReduce, NamesTheIndexThatIsOutside) {
  Context context;
  EXPECT_THROW((void)scatter_reduce(zeros({2}), 0, places({2}), ones({1}), R::amax), IndexError);
  EXPECT_THROW((void)scatter(zeros({2}), 0, places({-1}), ones({1})), IndexError);
  EXPECT_THROW((void)scatter(zeros({2}), 0, places({0, 1}), ones({1})), ShapeError);
}

}  // namespace
}  // namespace tessera
