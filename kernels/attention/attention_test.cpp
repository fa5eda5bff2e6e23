// SPDX-License-Identifier: Apache-2.0
// Attention against the plain formula at sizes beyond one block, and what rows that see nothing
// give.
#include "tessera/kernels/attention/attention.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(Attention, AgreesWithThePlainFormulaAcrossBlocks) {
  const Session session;
  const int64_t t = 150, s = 201, d = 20;
  const Tensor q = normal({1, 2, t, d}, {1, 1}), k = normal({1, 1, s, d}, {1, 2}),
               v = normal({1, 1, s, d}, {1, 3});
  const auto [o, lse] =
      scaled_dot_product_attention_with_lse(q, k, v, {.causal = true, .offset = s - t});
  const auto qv = q.values(), kv = k.values(), vv = v.values(), ov = o.values(), lv = lse.values();
  const auto at = [d](const std::vector<double>& x, int64_t row, int64_t i) {
    return x[static_cast<size_t>(row * d + i)];
  };
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = 0; i < t; ++i) {
      std::vector<double> out(static_cast<size_t>(d));
      double sum = 0;
      for (int64_t j = 0; j <= i + s - t; ++j) {
        double score = 0;
        for (int64_t c = 0; c < d; ++c) score += at(qv, h * t + i, c) * at(kv, j, c);
        const double p = std::exp(score / std::sqrt(static_cast<double>(d)));
        sum += p;
        for (int64_t c = 0; c < d; ++c) out[static_cast<size_t>(c)] += p * at(vv, j, c);
      }
      EXPECT_NEAR(lv[static_cast<size_t>(h * t + i)], std::log(sum), 1e-5);
      for (int64_t c = 0; c < d; ++c)
        EXPECT_NEAR(at(ov, h * t + i, c), out[static_cast<size_t>(c)] / sum, 1e-5);
    }
  }
}

TEST(Attention, LargeScoresStayFinite) {
  const Session session;
  Tensor q = normal({1, 1, 70, 8}, {1, 1}, 0, 100).set_requires_grad(),
         k = normal({1, 1, 70, 8}, {1, 2}, 0, 100);
  const Tensor v = normal({1, 1, 70, 8}, {1, 3});
  const Tensor o = scaled_dot_product_attention(q, k, v, {.causal = true});
  backward(o, {.gradient = ones({1, 1, 70, 8})});
  for (double x : o.values()) EXPECT_TRUE(std::isfinite(x));
  for (double x : q.grad().values()) EXPECT_TRUE(std::isfinite(x));
}

TEST(Attention, ARowThatSeesNothingIsZero) {
  const Session session;
  const Tensor x = normal({1, 1, 3, 4}, {1, 1});
  const auto [o, lse] =
      scaled_dot_product_attention_with_lse(x, x, x, {.causal = true, .offset = -1});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(o.values()[static_cast<size_t>(i)], 0);
  EXPECT_EQ(lse.values()[0], -INFINITY);
}

TEST(Attention, BothOrdersOfDimsAgree) {
  const Session session;
  const Tensor q = normal({2, 9, 4, 8}, {1, 1}), k = normal({2, 9, 2, 8}, {1, 2}),
               v = normal({2, 9, 2, 8}, {1, 3});
  const Tensor inner = scaled_dot_product_attention(q, k, v, {.causal = true, .heads_inner = true});
  const Tensor outer = scaled_dot_product_attention(transpose(q, 1, 2), transpose(k, 1, 2),
                                                    transpose(v, 1, 2), {.causal = true});
  EXPECT_EQ(inner.values(), transpose(outer, 1, 2).values());
}

}  // namespace
}  // namespace tessera
