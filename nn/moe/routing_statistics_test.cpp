// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/moe/routing_statistics.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::nn {
namespace {

TEST(RoutingStatistics, AreByHand) {
  const Session session;
  // Even; one expert has all and computes a quarter; uneven; no tokens.
  const Tensor load = from_values({5, 5, 5, 5, 5, 5, 5, 5,  //
                                   0, 8, 0, 0, 0, 2, 0, 0,  //
                                   2, 1, 1, 0, 2, 1, 0, 0,  //
                                   0, 0, 0, 0, 0, 0, 0, 0},
                                  {4, 2, 4}, DType::i64);
  const Tensor s = routing_statistics(load);
  EXPECT_EQ(s.shape(), (Shape{4, 3}));
  EXPECT_EQ(s.dtype(), DType::f64);
  const std::vector<double> want{1, 1, 0, 4, 0, 0.75, 2, 0.75, 0.25, 0, 0, 0};
  const auto got = s.values();
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-15) << i;
}

TEST(RoutingStatistics, OfOneExpertAndOfNoLayers) {
  const Session session;
  EXPECT_EQ(routing_statistics(full({1, 2, 1}, 7, DType::i64)).values(),
            (std::vector<double>{1, 0, 0}));
  EXPECT_EQ(routing_statistics(zeros({0, 2, 4}, DType::i64)).shape(), (Shape{0, 3}));
}

TEST(RoutingStatistics, NamesAreOfLayers) {
  EXPECT_EQ(routing_statistic_name(3, 0), "moe/layer_3/load_max_over_mean");
  EXPECT_EQ(routing_statistic_name(0, 2), "moe/layer_0/dropped");
}

TEST(RoutingStatistics, AFaultNamesItsLayers) {
  const Session session;
  const std::vector<int64_t> layers{1, 3, 5};
  EXPECT_EQ(routing_fault(zeros({3}), layers), "");
  EXPECT_EQ(routing_fault(tensor({0, 1, 40}), layers),
            "scores of routers are not finite: layers.3 (1 token), layers.5 (40 tokens)");
}

}  // namespace
}  // namespace tessera::nn
