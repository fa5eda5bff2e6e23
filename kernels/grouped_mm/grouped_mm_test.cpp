// SPDX-License-Identifier: Apache-2.0
// What the laws cannot say: the public function, many unlike groups against a loop over them, and
// the edges.
#include "tessera/kernels/grouped_mm/grouped_mm.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/context.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/own_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

namespace tessera {
namespace {

double furthest(const Tensor& x, const Tensor& y) {
  const auto a = x.values(), b = y.values();
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

Tensor ends_of(const std::vector<int64_t>& counts) {
  std::vector<double> ends;
  double end = 0;
  for (const int64_t count : counts) ends.push_back(end += static_cast<double>(count));
  return from_values(ends, {static_cast<int64_t>(ends.size())}, DType::i64);
}

// Every route of the products: of one row, of few, of no whole block and of several panels.
TEST(GroupedMM, IsTheLoopOverGroups) {
  const Session session;
  const uint64_t first = std::random_device{}();
  SCOPED_TRACE(concat("seed ", first));
  std::mt19937_64 random(first);
  struct Case {
    int64_t groups, most, n, k;
    int threads;
  };
  for (const Case& c : {Case{5, 3, 96, 129, 2}, Case{4, 70, 35, 33, 1}, Case{3, 30, 50, 900, 3},
                        Case{7, 120, 66, 70, 2}, Case{2, 600, 40, 800, 2}, Case{1, 9, 1, 1, 2},
                        Case{6, 1, 128, 256, 2}}) {
    Context::current().options.threads = c.threads;
    std::vector<int64_t> counts;
    int64_t rows = static_cast<int64_t>(random() % 4);  // beyond the last group
    for (int64_t e = 0; e < c.groups; ++e) {
      counts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(c.most + 1)));
      rows += counts.back();
    }
    const Tensor offsets = ends_of(counts);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      const std::string what =
          concat(c.groups, " groups of at most ", c.most, " rows, (", c.n, ", ", c.k, ") ", dtype);
      const uint64_t seed = random();
      const Tensor x = cast(normal({rows, c.k}, {seed, 1}), dtype).set_requires_grad(),
                   w = cast(normal({c.groups, c.n, c.k}, {seed, 2}), dtype).set_requires_grad(),
                   dy = cast(normal({rows, c.n}, {seed, 3}), dtype);
      const Tensor y = grouped_mm(x, w, offsets);
      const auto g = grad({y}, {x, w}, {.grad_outputs = {dy}});
      // Of the same numbers in f64.
      const Tensor wide_x = cast(x.detach(), DType::f64).set_requires_grad(),
                   wide_w = cast(w.detach(), DType::f64).set_requires_grad();
      std::vector<Tensor> parts;
      int64_t begin = 0;
      for (int64_t e = 0; e < c.groups; ++e) {
        const int64_t end = begin + counts[static_cast<size_t>(e)];
        parts.push_back(linear(slice(wide_x, 0, {begin, end}), select(wide_w, 0, e)));
        begin = end;
      }
      parts.push_back(zeros({rows - begin, c.n}, DType::f64));
      const Tensor want = cat(parts, 0);
      const auto want_g = grad({want}, {wide_x, wide_w}, {.grad_outputs = {cast(dy, DType::f64)}});
      const double unit = dtype == DType::f64   ? 1e-15
                          : dtype == DType::f32 ? 1e-6
                          : dtype == DType::f16 ? 1e-3
                                                : 8e-3;
      EXPECT_LE(furthest(y, want), unit * 5 * std::sqrt(c.k)) << what;
      EXPECT_LE(furthest(g[0], want_g[0]), unit * 5 * std::sqrt(c.n)) << what;
      EXPECT_LE(furthest(g[1], want_g[1]), unit * 5 * std::sqrt(c.most)) << what;
    }
  }
}

TEST(GroupedMM, BitsDoNotDependOnThreads) {
  const Session session;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    // Sums of oneDNN or Eigen may depend on the number of threads.
    if (dtype != DType::f64 && !test::own_products(dtype)) continue;
    const Tensor x = cast(normal({301, 900}, {1, 1}), dtype),
                 w = cast(normal({4, 70, 900}, {1, 2}), dtype),
                 offsets = ends_of({1, 250, 0, 49});  // and a row beyond
    Context::current().options.threads = 1;
    const auto one = grouped_mm(x, w, offsets).values();
    for (const int threads : {2, 3, 5}) {
      Context::current().options.threads = threads;
      EXPECT_EQ(grouped_mm(x, w, offsets).values(), one) << dtype << ", " << threads;
    }
  }
}

TEST(GroupedMM, BiasIsOfTheGroupAndRowsBeyondHaveNone) {
  const Session session;
  const Tensor x = tensor({{1, 2}, {3, 4}, {5, 6}, {7, 8}}),
               w = from_values({1, 0, 0, 1, 2, 0, 0, 2}, {2, 2, 2}, DType::f32),
               bias = tensor({{10, 20}, {30, 40}}).set_requires_grad(),
               offsets = tensor({1, 3}, DType::i32);
  const Tensor y = grouped_mm(x, w, offsets, bias);
  EXPECT_EQ(y.values(), (std::vector<double>{11, 22, 36, 48, 40, 52, 0, 0}));
  const Tensor dy = tensor({{1, 2}, {3, 4}, {5, 6}, {7, 8}});
  EXPECT_EQ(grad({y}, {bias}, {.grad_outputs = {dy}})[0].values(),
            (std::vector<double>{1, 2, 8, 10}));
}

TEST(GroupedMM, OffsetsAreAList) {
  const Session session;
  EXPECT_EQ(test::error_of<ShapeError>([] {
              (void)grouped_mm(ones({2, 3}), ones({1, 4, 3}), zeros({1, 1}, DType::i64));
            }),
            "[grouped_mm] offsets must be (E), the end of each group's rows: given i64[1, 1]");
}

TEST(GroupedMM, NothingInNothingOut) {
  const Session session;
  const Tensor w = ones({3, 4, 2}).set_requires_grad(), offsets = zeros({3}, DType::i64);
  const Tensor x = zeros({0, 2}).set_requires_grad();
  const Tensor y = grouped_mm(x, w, offsets);
  EXPECT_EQ(y.shape(), (Shape{0, 4}));
  const auto g = grad({y}, {x, w}, {.grad_outputs = {zeros({0, 4})}});
  EXPECT_EQ(g[0].shape(), (Shape{0, 2}));
  EXPECT_EQ(g[1].values(), std::vector<double>(24, 0));
  // Without groups all rows are beyond them; without k every sum is empty.
  EXPECT_EQ(grouped_mm(ones({2, 2}), zeros({0, 3, 2}), zeros({0}, DType::i64)).values(),
            std::vector<double>(6, 0));
  EXPECT_EQ(grouped_mm(zeros({2, 0}), zeros({1, 3, 0}), tensor({2}, DType::i64)).values(),
            std::vector<double>(6, 0));
}

}  // namespace
}  // namespace tessera
