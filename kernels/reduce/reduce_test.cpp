// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/reduce/reduce.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

TEST(Reduce, KnownNumbers) {
  Context context;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(sum(x).item(), 21);
  EXPECT_EQ(sum(x, {0}).values(), (std::vector<double>{5, 7, 9}));
  EXPECT_EQ(sum(x, {-1}, true).shape(), (Shape{2, 1}));
  EXPECT_EQ(mean(x, {1}).values(), (std::vector<double>{2, 5}));
  EXPECT_NEAR(logsumexp(tensor({0, 0}), {0}).item(), std::log(2.0), 1e-6);
  const auto [values, indices] = max(x, 0);
  EXPECT_EQ(values.values(), (std::vector<double>{4, 5, 6}));
  EXPECT_EQ(indices.values(), (std::vector<double>{1, 1, 1}));
}

TEST(Reduce, NothingSumsToZero) {
  Context context;
  EXPECT_EQ(sum(zeros({0, 3}), {0}).values(), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(logsumexp(zeros({2, 0}), {1}).values(), (std::vector<double>{-kInf, -kInf}));
  EXPECT_EQ(mean(zeros({0, 3}), {1}).numel(), 0);
  EXPECT_THROW((void)mean(zeros({0, 3})), ShapeError);
}

TEST(Reduce, InfinityAndNan) {
  Context context;
  const Tensor x = from_values({-kInf, -kInf, 1, kInf, 2, kNan}, {3, 2});
  const auto lse = logsumexp(x, {1}).values();
  EXPECT_EQ(lse[0], -kInf);
  EXPECT_EQ(lse[1], kInf);
  EXPECT_TRUE(std::isnan(lse[2]));
  EXPECT_TRUE(std::isnan(sum(x).item()));
}

TEST(Reduce, MaxTakesNanAndTheFirstOfEquals) {
  Context context;
  for (const int64_t n : {5, 100}) {
    Tensor x = zeros({n, 2});
    float* p = x.data<float>();
    p[2 * 2] = p[2 * 4] = 7;
    p[2 * 1 + 1] = p[2 * 3 + 1] = std::nanf("");
    for (const Tensor& t : {x, contiguous(transpose(x, 0, 1))}) {  // columns, rows
      const auto [values, indices] = max(t, t.shape()[0] == n ? 0 : 1);
      EXPECT_EQ(values.values()[0], 7);
      EXPECT_TRUE(std::isnan(values.values()[1]));
      EXPECT_EQ(indices.values(), (std::vector<double>{2, 1}));
    }
  }
}

// Long reductions are cut into chunks; every layout and thread count must see every element once.
TEST(Reduce, LongAndStrided) {
  for (const int threads : {1, 2}) {
    Context context({.threads = threads});
    const Tensor x = uniform({3, 50000}, {1, 2}, 0, 1, DType::f64);
    const auto rows = sum(x, {1}).values();
    const auto columns = sum(contiguous(transpose(x, 0, 1)), {0}).values();
    const auto strided =
        sum(slice(x, 1, {0, 50000, 2}), {1}) + sum(slice(x, 1, {1, 50000, 2}), {1});
    double all = 0;
    for (int r = 0; r < 3; ++r) {
      double expected = 0;
      for (const double v : x[r].values()) expected += v;
      EXPECT_NEAR(rows[static_cast<size_t>(r)], expected, 1e-8);
      EXPECT_NEAR(columns[static_cast<size_t>(r)], expected, 1e-8);
      EXPECT_NEAR(strided.values()[static_cast<size_t>(r)], expected, 1e-8);
      all += expected;
    }
    EXPECT_NEAR(sum(x).item(), all, 1e-8);
    EXPECT_NEAR(sum(expand(sum(x), {40000})).item(), all * 40000, all * 40000 * 1e-12);
  }
}

TEST(Reduce, NarrowSumsAreExact) {
  Context context;
  EXPECT_EQ(sum(ones({4096}, DType::bf16)).item(), 4096);
  EXPECT_EQ(sum(ones({16, 4096}, DType::f16), {0}).values()[5], 16);
  EXPECT_EQ(sum(full({3}, 2147483647, DType::i32)).item(), 2147483645);  // wraps around
}

TEST(Reduce, SumToUndoesBroadcasting) {
  Context context;
  const Tensor g = ones({4, 2, 3});
  EXPECT_EQ(sum_to(g, {2, 3}).values()[0], 4);
  EXPECT_EQ(sum_to(g, {2, 1}).shape(), (Shape{2, 1}));
  EXPECT_EQ(sum_to(g, {1, 2, 1}).values()[0], 12);
  EXPECT_EQ(sum_to(g, {}).item(), 24);
}

TEST(Reduce, Errors) {
  Context context;
  EXPECT_THROW((void)sum(zeros({2}), {1}), IndexError);
  EXPECT_THROW((void)sum(zeros({2, 2}), {0, -2}), ShapeError);
}

}  // namespace
}  // namespace tessera
