// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/optim/clip.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <limits>

namespace tessera::optim {
namespace {

class ClipTest : public testing::Test {
 protected:
  static Tensor with_grad(const Tensor& g) {
    Tensor p = zeros_like(g).set_requires_grad();
    p.set_grad(g);
    return p;
  }
  Session session_;
};

TEST_F(ClipTest, OnlyShrinksAndPassesOverWhatHasNoGradient) {
  const Tensor a = with_grad(tensor({3})), b = with_grad(tensor({4})),
               none = tensor({1}).set_requires_grad();
  EXPECT_EQ(grads_of({a, none, b}).size(), 2u);
  EXPECT_EQ(clip_grad_norm_({a, none, b}, 10).item(), 5);
  EXPECT_EQ(a.grad().item(), 3);
  EXPECT_EQ(clip_grad_norm_({a, none, b}, 1).item(), 5);
  EXPECT_NEAR(norm(grads_of({a, b})).item(), 1, 1e-6);
  EXPECT_EQ(a.item(), 0);
  EXPECT_EQ(clip_grad_norm_({none}, 1).item(), 0);
  EXPECT_EQ(clip_grad_norm_({}, 1).item(), 0);
}

TEST_F(ClipTest, InfinityPassesThrough) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor bad = with_grad(from_values({1, infinity}, {2}));
  EXPECT_EQ(clip_grad_norm_({bad}, 1).item(), infinity);
  EXPECT_EQ(bad.grad().values()[0], 1);
  EXPECT_THROW((void)clip_grad_norm_({bad}, 0), ValueError);
  EXPECT_THROW((void)clip_grad_norm_({bad}, std::numeric_limits<double>::quiet_NaN()), ValueError);
}

// The ops are the same whatever the values are, so none of them was read.
TEST_F(ClipTest, NothingIsReadOnTheHost) {
  const Tensor a = with_grad(tensor({30, 40}));
  std::vector<std::string> ops;
  Context::current().op_hook = [&](const OpRow& row, const void*, Tensors, Tensors) {
    ops.emplace_back(row.name);
  };
  for (const double max_norm : {1.0, 1e9, std::numeric_limits<double>::infinity()})
    (void)clip_grad_norm_({a}, max_norm);
  Context::current().op_hook = {};
  ASSERT_EQ(ops.size() % 3, 0u);
  const size_t n = ops.size() / 3;
  for (size_t i = 0; i < n; ++i) {
    EXPECT_EQ(ops[i], ops[n + i]);
    EXPECT_EQ(ops[i], ops[2 * n + i]);
  }
  EXPECT_NEAR(a.grad().values()[0], 0.6, 1e-6);
}

TEST(ClipRanks, EachElementCountsOnceOverLayoutsAndMeshes) {
  test::on_ranks(4, [](World&) {
    const Mesh line = Mesh::make({{"x", 4}});
    const Mesh square = Mesh::make({{"x", 2}, {"y", 2}});
    const Tensor whole = normal({3, 5}, {.seed = 1});
    const auto on = [&](Layout layout) {
      Tensor g = layout ? distribute(whole, layout) : copy(whole);
      Tensor p = zeros_like(g).set_requires_grad();
      p.set_grad(g);
      return p;
    };
    const std::vector<Tensor> cut{on(Layout::of(line, {Shard(0)})),
                                  on(Layout::of(square, {Shard(0), Shard(1)}))},
        plain{on({}), on({})};
    EXPECT_EQ(clip_grad_norm_(cut, 0.5).item(), clip_grad_norm_(plain, 0.5).item());
    for (size_t i = 0; i < 2; ++i)
      EXPECT_EQ(full_tensor(cut[i].grad()).values(), plain[i].grad().values());
    EXPECT_THROW((void)clip_grad_norm_({cut[0], plain[0]}, 0.5), LayoutError);
    Tensor p = on(Layout::replicated(line));
    p.set_grad(from_local(whole, Layout::of(line, {Partial()})));
    EXPECT_THROW((void)clip_grad_norm_({p}, 0.1), LayoutError);
  });
}

}  // namespace
}  // namespace tessera::optim
