// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/reduce/reduce.h"

#include "tessera/autograd/autograd.h"
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

TEST(Reduce, MinMirrorsMax) {
  Context context;
  for (const DType t : {DType::f32, DType::bf16, DType::i64}) {
    const Tensor x = tensor({{3, -1, 4, -1}, {5, 9, 2, 6}}, t);
    const auto [values, indices] = min(x, 1);
    EXPECT_EQ(values.values(), (std::vector<double>{-1, 2}));
    EXPECT_EQ(indices.values(), (std::vector<double>{1, 2}));
    EXPECT_EQ(argmax(x, 1).values(), (std::vector<double>{2, 1}));
    EXPECT_EQ(argmin(x, 0, true).shape(), (Shape{1, 4}));
    EXPECT_EQ(amax(x).item(), 9);
    EXPECT_EQ(amin(x, {0}).values(), (std::vector<double>{3, -1, 2, -1}));
  }
  EXPECT_EQ(min(tensor({1, kNan, -kInf}), 0)[1].item(), 1);
  EXPECT_TRUE(std::isnan(amax(tensor({1, kNan, kInf})).item()));
  EXPECT_TRUE(std::isnan(amin(tensor({kNan, 1})).item()));
  EXPECT_EQ(amax(tensor({-kInf, -kInf})).item(), -kInf);
}

TEST(Reduce, TruthOfBools) {
  Context context;
  const Tensor x = tensor({{1, 0}, {1, 1}, {0, 0}}, DType::bool_);
  EXPECT_EQ(any(x, {1}).values(), (std::vector<double>{1, 1, 0}));
  EXPECT_EQ(all(x, {1}).values(), (std::vector<double>{0, 1, 0}));
  EXPECT_EQ(any(x).dtype(), DType::bool_);
  EXPECT_EQ(any(empty({0, 2}, DType::bool_), {0}).values(), (std::vector<double>{0, 0}));
  EXPECT_EQ(all(empty({0, 2}, DType::bool_), {0}).values(), (std::vector<double>{1, 1}));
  EXPECT_THROW((void)any(zeros({2})), DTypeError);
  const Tensor many = zeros({100001}, DType::bool_);
  many.data<bool>()[100000] = true;
  EXPECT_EQ(any(many).item(), 1);
  EXPECT_EQ(all(many).item(), 0);
}

TEST(Reduce, ProductsAndTheirGradients) {
  const Session session;
  EXPECT_EQ(prod(tensor({2, 3, 4}, DType::i64)).item(), 24);
  EXPECT_EQ(prod(zeros({0})).item(), 1);
  const auto gradient = [](Tensor x) {
    x = x.detach().set_requires_grad();
    backward(sum(prod(x, {1})));
    return x.grad().values();
  };
  EXPECT_EQ(gradient(tensor({{2, 3, 4}})), (std::vector<double>{12, 8, 6}));
  EXPECT_EQ(gradient(tensor({{2, 0, 4}})), (std::vector<double>{0, 8, 0}));
  EXPECT_EQ(gradient(tensor({{2, 0, 0}})), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(gradient(zeros({2, 0})).size(), 0U);
}

TEST(Reduce, VarianceOfALargeMean) {
  Context context;
  const Tensor x = tensor({10001, 10002, 10003, 10004});
  EXPECT_NEAR(var(x).item(), 5.0 / 3, 1e-5);
  EXPECT_NEAR(var(x, {0}, 0).item(), 1.25, 1e-5);
  EXPECT_NEAR(stddev(x).item(), std::sqrt(5.0 / 3), 1e-5);
  EXPECT_TRUE(std::isnan(var(tensor({1, kNan})).item()));
  EXPECT_EQ(var(zeros({0, 3}), {1}).numel(), 0);
  EXPECT_THROW((void)var(tensor({1})), ShapeError);
  EXPECT_EQ(var(tensor({1}), {}, 0).item(), 0);
}

TEST(Reduce, NormsAtTheirEdges) {
  Context context;
  const Tensor x = tensor({3, 0, -4});
  EXPECT_EQ(vector_norm(x).item(), 5);
  EXPECT_EQ(vector_norm(x, 1).item(), 7);
  EXPECT_EQ(vector_norm(x, 0).item(), 2);
  EXPECT_EQ(vector_norm(x, kInf).item(), 4);
  EXPECT_EQ(vector_norm(x, -kInf).item(), 0);
  EXPECT_NEAR(vector_norm(x, 3).item(), std::cbrt(91), 1e-5);
  EXPECT_EQ(vector_norm(x, -1).item(), 0);
  EXPECT_EQ(vector_norm(tensor({1, -kInf}), 3).item(), kInf);
  EXPECT_TRUE(std::isnan(vector_norm(tensor({1, kNan}), 3).item()));
  EXPECT_TRUE(std::isnan(vector_norm(tensor({1, kNan}), kInf).item()));
  EXPECT_EQ(vector_norm(zeros({0, 2}), 2, {0}).values(), (std::vector<double>{0, 0}));
  EXPECT_THROW((void)vector_norm(zeros({0}), kInf), ShapeError);
}

TEST(Reduce, ManyTiesInF16) {
  const Session session;
  const double p = kInf;
  for (const bool norm : {false, true}) {
    Tensor x = ones({70000}, DType::f16).set_requires_grad();
    backward(cast(affine(norm ? vector_norm(x, p) : amax(x), 4096, 0), DType::f32));
    EXPECT_NEAR(x.grad().values()[0], 4096 / 70000.0, 1e-4);
  }
}

TEST(Reduce, ARowOfMinusInfinityHasNoGradient) {
  const Session session;
  Tensor x = tensor({{-kInf, -kInf}, {0, -kInf}}).set_requires_grad();
  backward(sum(logsumexp(x, {1})));
  EXPECT_EQ(x.grad().values(), (std::vector<double>{0, 0, 1, 0}));
}

TEST(Reduce, NothingToChooseFrom) {
  Context context;
  EXPECT_THROW((void)amax(zeros({2, 0}), {1}), ShapeError);
  EXPECT_THROW((void)min(zeros({2, 0}), 1), ShapeError);
  EXPECT_EQ(amax(zeros({0, 2}), {1}).numel(), 0);
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

TEST(Reduce, DimsAreANumberAListASpanOrAVector) {
  const Session session;
  const Tensor x = tensor({{1, 2}, {3, 4}});
  const std::vector<double> rows{3, 7};
  const std::vector<int> one{1};
  EXPECT_EQ(sum(x, 1).values(), rows);
  EXPECT_EQ(sum(x, {1}).values(), rows);
  EXPECT_EQ(sum(x, one).values(), rows);
  EXPECT_EQ(sum(x, std::span<const int>(one)).values(), rows);
  EXPECT_EQ(sum(x, -1, true).shape(), (Shape{2, 1}));
  EXPECT_EQ(sum(x, {0, 1}).item(), 10);
  EXPECT_EQ(sum(x).item(), 10);
  EXPECT_EQ(var(x, 1).values(), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(vector_norm(x, 1, 0).values(), (std::vector<double>{4, 6}));
}

TEST(Reduce, CountsAreExact) {
  const Session session;
  const Tensor x = tensor({{0, -0.0, 2}, {NAN, 1e-40, -1}});
  EXPECT_EQ(count_nonzero(x).item(), 4);
  EXPECT_EQ(count_nonzero(x, 1).values(), (std::vector<double>{1, 3}));
  EXPECT_EQ(count_nonzero(x, 0).dtype(), DType::i64);
  for (const DType t : {DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8})
    EXPECT_EQ(count_nonzero(tensor({{0, 3}, {1, 0}, {2, 2}}, t), 0).values(),
              (std::vector<double>{2, 2}))
        << t;
  EXPECT_EQ(count_nonzero(tensor({-2147483648.0, 0}, DType::i32)).item(), 1);
  EXPECT_EQ(count_nonzero(zeros({0, 3}), 0).values(), (std::vector<double>{0, 0, 0}));
}

TEST(Reduce, TheMeanOfBoolIsAShare) {
  const Session session;
  const Tensor x = tensor({{1, 0, 1}, {0, 0, 1}}, DType::bool_);
  EXPECT_EQ(mean(x).item(), 0.5);
  EXPECT_EQ(mean(x).dtype(), DType::f32);
  EXPECT_EQ(mean(x, 0).values(), (std::vector<double>{0.5, 0, 1}));
  EXPECT_EQ(mean(x, 1, true).shape(), (Shape{2, 1}));
  const int64_t n = (1 << 25) + 3;  // beyond what f32 counts
  EXPECT_EQ(mean(ones({n}, DType::bool_)).item(), 1);
  EXPECT_THROW((void)mean(zeros({0}, DType::bool_)), ShapeError);
  EXPECT_THROW((void)mean(ones({2}, DType::i64)), DTypeError);
}

TEST(Reduce, VarianceWithItsMean) {
  const Session session;
  const Tensor x = tensor({{1, 3}, {2, 6}});
  const auto [spread, center] = var_mean(x, 1);
  EXPECT_EQ(spread.values(), (std::vector<double>{2, 8}));
  EXPECT_EQ(center.values(), (std::vector<double>{2, 4}));
  EXPECT_EQ(std_mean(x, 1, 0, true)[0].values(), (std::vector<double>{1, 2}));
  EXPECT_EQ(std_mean(x, 1, 0, true)[1].shape(), (Shape{2, 1}));
}

TEST(Reduce, ArgmaxOfAllElements) {
  const Session session;
  const Tensor x = tensor({{1, 7}, {7, -2}});
  EXPECT_EQ(argmax(x).item(), 1);
  EXPECT_EQ(argmin(transpose(x, 0, 1)).item(), 3);
  EXPECT_EQ(argmax(tensor(3)).item(), 0);
}

}  // namespace
}  // namespace tessera
