// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/dropout/dropout.h"

#include "tessera/core/context.h"
#include "tessera/core/draws.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/sampling/sampling.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera {
namespace {

TEST(Dropout, DropsItsShareAndScalesTheRest) {
  Context context;
  const int64_t n = 200000;
  for (const double p : {0.1, 0.5, 0.9}) {
    double zeros = 0, sum = 0;
    for (const double v : dropout(ones({n}), p, RngKey{1, 2}).values()) {
      zeros += v == 0;
      sum += v;
      ASSERT_TRUE(v == 0 || std::abs(v - 1 / (1 - p)) < 1e-5);
    }
    EXPECT_NEAR(zeros / n, p, 0.005);
    EXPECT_NEAR(sum / n, 1, 0.03);
  }
}

// The loops make what the counter of each element says, wherever a run starts and whatever its
// length.
TEST(Dropout, LoopsKeepToTheDefinition) {
  Context context;
  const RngKey key{0x123456789abcdef0ull, 0xfedcba9876543210ull};
  const Tensor whole = dropout(ones({5, 333}), 0.3, key);
  const auto threshold = static_cast<uint32_t>(0.3 * 0x1p32);
  const auto values = whole.values();
  for (uint64_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i] != 0, rng::philox(key, i / 4).v[i % 4] >= threshold) << i;
  Tensor seed = empty({}, DType::i64), stream = empty({}, DType::i64);
  const Tensor row = zeros({}, DType::i64);
  *seed.data<int64_t>() = static_cast<int64_t>(key.seed);
  *stream.data<int64_t>() = static_cast<int64_t>(key.stream);
  for (const auto& [start, shape] :
       {std::pair<Shape, Shape>{{2, 3}, {2, 201}}, {{4, 331}, {1, 2}}}) {
    const Tensor piece = call(op::Dropout{0.3, {5, 333}, start}, {ones(shape), seed, stream, row});
    const Tensor expected =
        slice(slice(whole, 0, {start[0], start[0] + shape[0]}), 1, {start[1], start[1] + shape[1]});
    EXPECT_EQ(piece.values(), expected.values());
  }
}

TEST(Dropout, DrawsItsKeyByModuleAndCall) {
  Context context;
  const Tensor x = ones({1000});
  const auto run = [&](const char* module) {
    const ModuleScope scope(module);
    return dropout(x, 0.5).values();
  };
  context.call_keys.set_seed(3);
  const auto first = run("a"), second = run("a"), other = run("b");
  EXPECT_NE(first, second);
  EXPECT_NE(first, other);
  context.call_keys.set_step(0);
  EXPECT_EQ(run("b"), other);  // draws of one module do not move another's
  EXPECT_EQ(run("a"), first);
  context.call_keys.set_step(1);
  EXPECT_NE(run("a"), first);
}

// However a batch is cut into micro-batches, its rows get the masks of the whole.
TEST(Dropout, MasksFollowTheRowsOfTheGlobalBatch) {
  Context context;
  const ModuleScope scope("a");
  const auto rows = [&](int64_t first, int64_t count) {
    begin_micro_batch(3, first);
    const Tensor x = ones({count, 3, 7});
    std::vector<double> all;
    for (const Tensor& y : {dropout(x, 0.5), rand_like(x), bernoulli(x * 0.3),
                            cast(randint(0, 1000, x.shape()), DType::f32), randn({count, 21}),
                            cast(multinomial(ones({count, 21}), 21), DType::f32)}) {
      const auto values = y.values();
      EXPECT_EQ(values.size(), static_cast<size_t>(count * 21));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const auto whole = rows(0, 8);
  for (const int64_t count : {1, 2, 4}) {
    for (int64_t first = 0; first < 8; first += count) {
      const auto part = rows(first, count);
      const auto n = static_cast<ptrdiff_t>(count * 21);
      for (ptrdiff_t draw = 0; draw < 6; ++draw) {
        const auto from = whole.begin() + draw * 8 * 21 + first * 21;
        EXPECT_EQ(std::vector<double>(part.begin() + draw * n, part.begin() + (draw + 1) * n),
                  std::vector<double>(from, from + n))
            << draw << ", rows from " << first;
      }
    }
  }
  EXPECT_NE(rows(1, 1), rows(2, 1));
  begin_micro_batch(0, 5);
  EXPECT_EQ(dropout(ones({}), 0.5).numel(), 1);  // no rows to count
  EXPECT_THROW(begin_micro_batch(0, -1), ValueError);
}

TEST(Dropout, Edges) {
  Context context;
  const Tensor x = tensor({1, std::nan("")});
  EXPECT_EQ(dropout(x, 0.5, false).handle(), x.handle());
  EXPECT_EQ(dropout(x, 0).handle(), x.handle());
  EXPECT_EQ(dropout(zeros({0, 3}), 0.5).shape(), (Shape{0, 3}));
  // What is dropped is 0 also where it was infinite.
  for (const double v :
       dropout(full({1000}, std::numeric_limits<double>::infinity()), 0.5).values())
    ASSERT_TRUE(v == 0 || std::isinf(v));
  EXPECT_THROW((void)dropout(x, 1), ValueError);
  EXPECT_THROW((void)dropout(x, -0.5, false), ValueError);
  EXPECT_THROW((void)dropout(x, std::nan("")), ValueError);
  EXPECT_THROW((void)dropout(zeros({2}, DType::i64), 0.5), DTypeError);
}

}  // namespace
}  // namespace tessera
