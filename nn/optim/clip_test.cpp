// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/optim/clip.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/sgd.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

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

TEST_F(ClipTest, OfANormThatIsNotFiniteTheFactorIsOne) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {infinity, std::numeric_limits<double>::quiet_NaN()}) {
    const GradNorm bad = grad_norm({with_grad(from_values({1, value}, {2}))}, 1);
    EXPECT_FALSE(std::isfinite(bad.norm.item()));
    EXPECT_EQ(bad.factor.item(), 1);
  }
  EXPECT_EQ(grad_norm({with_grad(tensor({3}))}, 10).factor.item(), 1);
  EXPECT_EQ(grad_norm({}, 1).norm.item(), 0);
  EXPECT_THROW((void)grad_norm({}, 0), ValueError);
}

// As on one rank, whichever rank has which parameter: nothing is rounded before the sum.
TEST(OtherRanks, GiveTheNormOfOneRank) {
  test::on_ranks(2, [](World& world) {
    for (uint64_t i = 0; i < 20; ++i) {
      std::vector<Tensor> all;
      for (const uint64_t stream : {2 * i, 2 * i + 1}) {
        all.push_back(zeros({300}).set_requires_grad());
        all.back().set_grad(normal({300}, {1, stream}));
      }
      const GradNorm whole = grad_norm(all, 1);
      const GradNorm mine =
          grad_norm({all[static_cast<size_t>(world.rank())]}, 1, {&world.group(), kCpu});
      EXPECT_EQ(mine.norm.item(), whole.norm.item());
      EXPECT_EQ(mine.factor.item(), whole.factor.item());
    }
  });
}

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor>&)>;

// Parameters and norms after three steps, of which the last is not clipped.
std::vector<std::vector<double>> trained(const MakeOptimizer& make, DType dtype, bool in_step) {
  const auto drawn = [&](const Shape& shape, uint64_t stream, double size) {
    return cast(normal(shape, {1, stream}, 0, size, DType::f64), dtype);
  };
  std::vector<Tensor> parameters;
  for (const Shape& shape : {Shape{300}, Shape{7, 5}})
    parameters.push_back(drawn(shape, parameters.size(), 1).set_requires_grad());
  const auto optimizer = make(parameters);
  std::vector<std::vector<double>> all;
  for (uint64_t step = 1; step <= 3; ++step) {
    std::vector<std::vector<double>> before;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].set_grad(drawn(parameters[i].shape(), 10 * step + i, step == 3 ? 1e-4 : 1));
      before.push_back(parameters[i].grad().values());
    }
    if (in_step) {
      const GradNorm grads = grad_norm(parameters, 0.7);
      EXPECT_EQ(grads.factor.item() == 1, step == 3);
      optimizer->step({}, grads.factor);
      all.push_back(grads.norm.values());
      for (size_t i = 0; i < before.size(); ++i)
        EXPECT_EQ(parameters[i].grad().values(), before[i]);
    } else {
      all.push_back(clip_grad_norm_(parameters, 0.7).values());
      optimizer->step();
    }
    for (const Tensor& p : parameters) all.push_back(p.values());
  }
  return all;
}

TEST_F(ClipTest, AStepWithTheFactorHasTheBitsOfClippedGradients) {
  const auto adamw = [](const AdamWOptions& options) -> MakeOptimizer {
    return [=](const auto& parameters) { return std::make_unique<AdamW>(parameters, options); };
  };
  const auto sgd = [](const SGDOptions& options) -> MakeOptimizer {
    return [=](const auto& parameters) { return std::make_unique<SGD>(parameters, options); };
  };
  for (const auto& make :
       {adamw({.lr = 0.1}), adamw({.lr = 0.1, .state_dtype = DType::bf16, .seed = 3}),
        adamw({.lr = 0.1, .capturable = true}), sgd({.lr = 0.1, .weight_decay = 0.1}),
        sgd({.lr = 0.1, .momentum = 0.9, .nesterov = true})}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      EXPECT_EQ(trained(make, dtype, true), trained(make, dtype, false)) << dtype;
  }
}

// One factor for parameters on two meshes; the parts of bf16 are rounded as the whole is.
TEST(ClipRanks, AStepWithTheFactorIsTheSameOnShards) {
  test::on_ranks(4, [](World&) {
    const Mesh line = Mesh::make({{"x", 4}});
    const Mesh square = Mesh::make({{"x", 2}, {"y", 2}});
    const auto stepped = [&](const std::vector<Layout>& layouts) {
      std::vector<Tensor> parameters;
      for (uint64_t i = 0; i < layouts.size(); ++i) {
        const auto laid = [&](const Tensor& x) {
          return layouts[i] ? distribute(x, layouts[i]) : x;
        };
        Tensor p = laid(cast(normal({3, 5}, {1, i}), DType::bf16)).set_requires_grad();
        p.set_grad(laid(cast(normal({3, 5}, {2, i}), DType::bf16)));
        parameters.push_back(p);
      }
      AdamW optimizer(parameters, {.lr = 0.1, .state_dtype = DType::bf16, .seed = 3});
      optimizer.step({}, grad_norm(parameters, 0.5).factor);
      std::vector<std::vector<double>> all;
      for (const Tensor& p : parameters)
        all.push_back((p.is_distributed() ? full_tensor(p.detach()) : p).values());
      return all;
    };
    EXPECT_EQ(stepped({Layout::of(line, {Shard(0)}), Layout::of(square, {Shard(0), Shard(1)})}),
              stepped({Layout(), Layout()}));
  });
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
