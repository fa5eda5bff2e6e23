// SPDX-License-Identifier: Apache-2.0
// The search for a strategy: how many it prices for large calls on many axes, and what the costs of
// the axes decide.
#include "tessera/dist/planner/strategy.h"

#include "tessera/dist/dtensor.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/adamw/adamw.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using test::on_ranks;

// One op and the layouts of its inputs.
struct Case {
  std::vector<TensorMeta> metas;
  std::vector<AxisStates> states;
  std::vector<bool> written;

  void add(const Shape& shape, Layout layout, bool writes = false, DType dtype = DType::f32) {
    metas.push_back({shape, dtype, kCpu});
    states.push_back(layout.states());
    written.push_back(writes);
  }
  // Of AdamW: learning rate, step, whether to skip it, factor of the gradients.
  void add_scalars(Mesh mesh) {
    for (const DType dtype : {DType::f64, DType::f64, DType::bool_, DType::f64})
      add({}, Layout::replicated(mesh), false, dtype);
  }
  template <class Op>
  Strategy choose(const Op& op, Mesh mesh, bool in_place, const MeshCosts& costs = {}) const {
    std::vector<const TensorMeta*> pointers;
    std::vector<StrategyInput> inputs;
    for (size_t i = 0; i < metas.size(); ++i) {
      pointers.push_back(&metas[i]);
      inputs.push_back({&metas[i], states[i], written[i]});
    }
    const Metas in(pointers.data(), pointers.size());
    const MetaList made = op.meta(in);
    const std::vector<TensorMeta> outputs(made.begin(), made.end());
    const ShardingRule rule = op.sharding(in);
    const Strategy s = choose_strategy(Op::name, rule, mesh, inputs, outputs, in_place, costs);
    EXPECT_LE(s.priced, rule.operands() * mesh.axes() * 4) << Op::name;
    EXPECT_GT(s.priced, 0);
    return s;
  }
};

Mesh six_axes() { return Mesh::make({{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}, {"e", 2}, {"f", 2}}); }

// A layout made of `seed` alone; `sums`: partial on some axes.
Layout some_layout(Mesh mesh, int rank, uint32_t seed, bool sums) {
  std::vector<Placement> placements;
  for (int a = 0; a < mesh.axes(); ++a) {
    seed = seed * 1664525u + 1013904223u;
    const auto pick = static_cast<int>(seed >> 16) % (rank + 2);
    placements.push_back(pick < rank ? Shard(pick) : sums && pick > rank ? Partial() : Replicate());
  }
  return Layout::of(mesh, placements);
}

TEST(Strategy, ManyTensorsOfManyLayoutsArePricedInLinearTime) {
  run_fake(64, 5, [](World&) {
    const Mesh mesh = six_axes();
    constexpr int kTensors = 300;
    Case c;
    c.add_scalars(mesh);
    const auto shape = [](int i) { return Shape{64 + i % 3, 32}; };
    // Gradients lie otherwise than their parameters, and are partial.
    for (int role = 0; role < 4; ++role) {
      for (int i = 0; i < kTensors; ++i) {
        const bool gradient = role == 1;
        const auto seed = static_cast<uint32_t>(gradient ? 7919 + i : i);
        c.add(shape(i), some_layout(mesh, 2, seed, gradient), !gradient);
      }
    }
    const Strategy s = c.choose(op::AdamW{}, mesh, true);
    for (size_t i = 4; i < c.metas.size(); ++i) {
      EXPECT_EQ(s.operands[i], c.states[4 + (i - 4) % kTensors]) << i;
      if (HasFailure()) return;
    }
    EXPECT_TRUE(s.asks);
  });
}

TEST(Strategy, WhatCannotRunInPlaceIsRefusedInLinearTime) {
  run_fake(64, 0, [](World&) {
    const Mesh mesh = six_axes();
    // The moments lie otherwise than the parameter, and all are written.
    Case c;
    c.add_scalars(mesh);
    for (int role = 0; role < 4; ++role) {
      for (int i = 0; i < 200; ++i)
        c.add({64, 32}, some_layout(mesh, 2, static_cast<uint32_t>(i + role), false), role != 1);
    }
    EXPECT_THROW((void)c.choose(op::AdamW{}, mesh, true), LayoutError);
  });
}

TEST(Strategy, AttentionBackwardOnSixAxes) {
  run_fake(64, 9, [](World&) {
    const Mesh mesh = six_axes();
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const int64_t batch = 8, heads = 8, kv = 4, length = 64, dim = 16;
      Case c;
      uint32_t at = seed * 100;
      const auto add = [&](const Shape& s, bool sums) {
        c.add(s, some_layout(mesh, s.rank(), ++at, sums));
      };
      add({batch, heads, length, dim}, false);  // q
      add({batch, kv, length, dim}, false);     // k
      add({batch, kv, length, dim}, false);     // v
      add({batch, heads, length, dim}, false);  // o
      add({batch, heads, length}, false);       // lse
      add({batch, heads, length, dim}, true);   // dout
      const Strategy s =
          c.choose(op::AttentionBackward{.mask = AttentionMask::causal()}, mesh, false);
      EXPECT_TRUE(s.asks);
    }
  });
}

TEST(Strategy, PartialOutputsCostTheirReduction) {
  run_fake(8, 0, [](World&) {
    const Mesh mesh = Mesh::make({{"tp", 8}});
    // Bringing x to w's shard sends less than gathering w, but leaves a sum 16 times w's size.
    Case c;
    c.add({4096, 256}, Layout::of(mesh, {Shard(0)}));
    c.add({256, 4096}, Layout::of(mesh, {Shard(0)}));
    const Strategy s = c.choose(op::MatMul{}, mesh, false);
    EXPECT_EQ(s.operands[0][0].placement, Shard(0));
    EXPECT_EQ(s.operands[1][0].placement, Replicate());
    EXPECT_EQ(s.operands[2][0].placement, Shard(0));
    // A small product of large factors is the other way round.
    Case small;
    small.add({64, 65536}, Layout::of(mesh, {Shard(0)}));
    small.add({65536, 64}, Layout::of(mesh, {Shard(0)}));
    const Strategy sum = small.choose(op::MatMul{}, mesh, false);
    EXPECT_EQ(sum.operands[0][0].placement, Shard(1));
    EXPECT_EQ(sum.operands[2][0].placement, Partial());
  });
}

TEST(Strategy, WhatNeedsNoPermissionComesFirst) {
  run_fake(8, 0, [](World&) {
    const Mesh mesh = Mesh::make({{"tp", 8}});
    // Gathering the small w would be far cheaper than reducing the result, but nobody allowed it.
    Case c;
    c.add({4096, 8}, Layout::replicated(mesh));
    c.add({8, 4096}, Layout::of(mesh, {Shard(0)}));
    const Strategy s = c.choose(op::MatMul{}, mesh, false);
    EXPECT_FALSE(s.asks);
    EXPECT_EQ(s.operands[2][0].placement, Partial());
  });
}

TEST(Strategy, WrittenOperandsDecideTheOrderOfAxes) {
  run_fake(4, 0, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Layout ours = Layout::ordered(mesh, std::array{Shard(0), Shard(0)}, {{"tp", "dp"}});
    Case c;
    c.add_scalars(mesh);
    for (int role = 0; role < 4; ++role)
      c.add({8, 8}, role == 1 ? Layout::of(mesh, {Shard(0), Shard(0)}) : ours, role != 1);
    const Strategy s = c.choose(op::AdamW{}, mesh, true);
    for (size_t i = 4; i < 8; ++i) EXPECT_EQ(s.operands[i], ours.states()) << i;
  });
}

TEST(Strategy, CostsOfTheAxesDecide) {
  run_fake(16, 0, [](World&) {
    const Mesh mesh = Mesh::make({{"far", 4}, {"near", 4}});
    // Norms over a dim sharded on both axes: rows are gathered, or other dims sharded instead.
    Case c;
    c.add({64, 1 << 14}, Layout::of(mesh, {Shard(0), Shard(0)}));
    c.add({1 << 14, 64}, Layout::of(mesh, {Shard(0), Shard(1)}));
    MeshCosts slow;
    slow.axes[0] = {1e-3, 1e6};
    const Strategy even = c.choose(op::MatMul{}, mesh, false);
    const Strategy uneven = c.choose(op::MatMul{}, mesh, false, slow);
    EXPECT_GT(uneven.cost, even.cost);
    EXPECT_LT(even.cost, Picoseconds{1'000'000'000}) << "a millisecond";
  });
}

TEST(Costs, AreSumsOfLatencyAndBytes) {
  run_fake(8, 0, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 4}, {"one", 1}});
    MeshCosts costs;
    costs.axes[0] = {1e-5, 1e9};
    costs.axes[1] = {2e-6, 1e10};
    const auto cost = [&](std::initializer_list<Placement> from,
                          std::initializer_list<Placement> to, double bytes) {
      return plan_cost(
          costs, mesh,
          plan_redistribute(mesh, Layout::of(mesh, from).states(), Layout::of(mesh, to).states()),
          bytes);
    };
    const Placement R = Replicate(), S0 = Shard(0), P = Partial();
    EXPECT_EQ(cost({R, S0, R}, {R, R, R}, 1e6), 2'000'000 + 75'000'000);     // 3/4 MB received
    EXPECT_EQ(cost({P, R, R}, {R, R, R}, 1e6), 10'000'000 + 1'000'000'000);  // 2 x 1/2 MB
    EXPECT_EQ(cost({P, R, R}, {S0, R, R}, 1e6), 10'000'000 + 500'000'000);
    EXPECT_EQ(cost({R, R, S0}, {R, R, R}, 1e6), 0);
    // One collective over both axes, by the slower.
    EXPECT_EQ(cost({S0, S0, R}, {R, R, R}, 8e6), 10'000'000 + 7'000'000'000);
  });
}

TEST(Costs, MeasuredOnesAreEqualOnAllRanksAndDropPlans) {
  on_ranks(4, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    EXPECT_EQ(world.planner().costs(mesh), MeshCosts{});
    const MeshCosts costs = measure_costs(mesh);
    const Tensor mine = empty({4}, DType::f64), all = empty({16}, DType::f64);
    for (size_t a = 0; a < 2; ++a) {
      EXPECT_GT(costs.axes[a].latency, 0);
      EXPECT_GT(costs.axes[a].bandwidth, 0);
      mine.data<double>()[2 * a] = costs.axes[a].latency;
      mine.data<double>()[2 * a + 1] = costs.axes[a].bandwidth;
    }
    world.group().all_gather(mine, all)->wait();
    for (int i = 0; i < 16; ++i) EXPECT_EQ(all.data<double>()[i], mine.data<double>()[i % 4]);
    const Tensor x = normal({8, 8}, {.seed = 1}, 0, 1, DType::f32, Layout::replicated(mesh));
    (void)matmul(x, x);
    EXPECT_GT(world.planner().counts().plans, 0u);
    world.planner().set_costs(mesh, costs);
    EXPECT_EQ(world.planner().counts().plans, 0u);
    EXPECT_EQ(world.planner().costs(mesh), costs);
    EXPECT_NE(costs.text(mesh).find("dp: "), std::string::npos) << costs.text(mesh);
  });
}

}  // namespace
}  // namespace tessera
