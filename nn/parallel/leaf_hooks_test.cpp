// SPDX-License-Identifier: Apache-2.0
// Hooks of parameters under fully_shard and replicate, in steps of several micro-batches: they see
// what they see of a plain parameter on one rank, cut as the parameter is, and may replace it.
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/parallel/fully_shard.h"
#include "tessera/nn/parallel/replicate.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace tessera::nn {
namespace {

constexpr int kBatches = 3;
constexpr int64_t kRows = 4, kIn = 3, kOut = 5;

using Values = std::vector<double>;

// What the hooks of one parameter see in a step, and its gradient at the end.
struct Seen {
  std::vector<Values> gradients;  // of register_hook
  std::vector<Values> sums;       // grad() in register_post_accumulate_hook
  Values grad, other;             // of the weight, and of the bias, which has no hook
};

void expect_near(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12) << what << ' ' << i;
}

void expect_near(const Seen& got, const Seen& want, const std::string& what) {
  ASSERT_EQ(got.gradients.size(), want.gradients.size()) << what;
  ASSERT_EQ(got.sums.size(), want.sums.size()) << what;
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    expect_near(got.gradients[i], want.gradients[i], what + " hook " + std::to_string(i));
    expect_near(got.sums[i], want.sums[i], what + " post " + std::to_string(i));
  }
  expect_near(got.grad, want.grad, what + " grad");
  expect_near(got.other, want.other, what + " bias");
}

enum class How { plain, shard, replicate };

// A step of several micro-batches.
Seen step(Mesh mesh, How how, Accumulation accumulation, bool halves) {
  Linear net(kIn, kOut, Init::normal(1), DType::f64, true);
  if (how == How::shard) fully_shard(net, mesh, {{"dp"}, {}}, {.accumulation = accumulation});
  if (how == How::replicate) replicate(net, mesh, "dp", {.accumulation = accumulation});
  initialize(net, 3, laid_out(net, mesh));
  Seen seen;
  const auto whole = [](const Tensor& t) { return full_tensor(t).values(); };
  register_hook(net.weight, [&](const Tensor& g) {
    seen.gradients.push_back(whole(g));
    return halves ? g * 0.5 : Tensor();
  });
  register_post_accumulate_hook(net.weight,
                                [&](const Tensor& w) { seen.sums.push_back(whole(w.grad())); });
  for (int b = 0; b < kBatches; ++b) {
    const Tensor x =
        distribute(normal({kRows, kIn}, RngKey{5, static_cast<uint64_t>(b)}, 0, 1, DType::f64),
                   Layout::of(mesh, {Shard(0)}));
    const MicroBatch micro(b + 1 == kBatches);
    const Tensor y = net(x);
    backward(sum(y * y));
  }
  seen.grad = whole(net.weight.grad());
  seen.other = whole(net.bias.grad());
  return seen;
}

Seen alone(bool halves) {
  Seen seen;
  test::on_ranks(1, [&](World&) {
    seen = step(Mesh::make({{"dp", 1}}), How::plain, Accumulation::shards, halves);
  });
  return seen;
}

TEST(LeafHooks, SeeEachMicroBatchWhereItIsReducedAtOnce) {
  for (const bool halves : {false, true}) {
    const Seen want = alone(halves);
    ASSERT_EQ(want.gradients.size(), 3U);
    for (const How how : {How::shard, How::replicate}) {
      for (const int ranks : {1, 2}) {
        test::on_ranks(ranks, [&](World&) {
          const Seen got = step(Mesh::make({{"dp", ranks}}), how, Accumulation::shards, halves);
          expect_near(got, want, how == How::shard ? "shard" : "replicate");
        });
      }
    }
  }
}

// Before, there is no gradient of the parameter: it lies on the ranks in parts that differ.
TEST(LeafHooks, SeeTheSumWhereTheLastMicroBatchReduces) {
  for (const bool halves : {false, true}) {
    const Seen each = alone(halves);
    Seen want = alone(halves);
    want.gradients = {Values(each.gradients[0].size(), 0.0)};
    for (const Values& g : each.gradients)
      for (size_t i = 0; i < g.size(); ++i) want.gradients[0][i] += g[i];
    want.sums = {each.sums.back()};
    test::on_ranks(2, [&](World&) {
      const Mesh mesh = Mesh::make({{"dp", 2}});
      expect_near(step(mesh, How::shard, Accumulation::whole, halves), want, "whole");
    });
  }
}

}  // namespace
}  // namespace tessera::nn
