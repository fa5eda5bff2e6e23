// SPDX-License-Identifier: Apache-2.0
// Meshes, layouts and distributed tensors that outlive their world: destroying them is safe, what
// core knows of a tensor (shape, dtype) can be read, and any other use is an error that says so,
// without a Context, in one without a world, and in another world whose data may lie where theirs
// did.
#include "tessera/autograd/autograd.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/local_region.h"
#include "tessera/dist/visualize.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

#include <sstream>
#include <type_traits>
#include <unordered_set>

namespace tessera {
namespace {

using trial::error_of;

struct Kept {
  Mesh mesh;
  Layout layout;
  Tensor x, loss, leaf;  // the loss has a graph; leaf lies otherwise than x
};

Kept made_here() {
  Kept k;
  k.mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
  k.layout = Layout::of(k.mesh, {Shard(0), Replicate()});
  k.x = distribute(ones({4, 6}), k.layout);
  const Tensor w = trial::variable(ones({6, 3}), Layout::replicated(k.mesh));
  k.loss = sum(matmul(k.x, w));
  k.leaf = trial::variable(ones({4, 6}), Layout::replicated(k.mesh));
  return k;
}

Kept of_an_ended_world() {
  Kept k;
  run_fake(4, 0, [&](World&) { k = made_here(); });
  return k;
}

void expect_ended(const std::function<void()>& use, const char* what) {
  const std::string error = error_of<UsageError>(use);
  EXPECT_NE(error.find("the world it was made in has ended"), std::string::npos)
      << what << ": " << error;
}
#define EXPECT_ENDED(use) expect_ended([&] { (void)(use); }, #use)

void use_mesh_and_layout(const Kept& k) {
  EXPECT_ENDED(k.mesh.axes());
  EXPECT_ENDED(k.mesh.axis(0));
  EXPECT_ENDED(k.mesh.size());
  EXPECT_ENDED(k.mesh.size(0));
  EXPECT_ENDED(k.mesh.size("tp"));
  EXPECT_ENDED(k.mesh.ranks());
  EXPECT_ENDED(k.mesh.index("dp"));
  EXPECT_ENDED(k.mesh.has("dp"));
  EXPECT_ENDED(k.mesh.coordinate(1));
  EXPECT_ENDED(k.mesh.coordinate_at(3, 1));
  EXPECT_ENDED(k.mesh.group(0));
  EXPECT_ENDED(k.mesh["tp"]);
  EXPECT_ENDED(k.mesh.flatten({"dp", "tp"}, "all"));
  EXPECT_ENDED(k.mesh.unflatten("tp", {{"a", 2}, {"b", 1}}));
  EXPECT_ENDED(k.mesh.represent({{"ep", 4}}));
  EXPECT_ENDED(k.mesh.text());
  EXPECT_ENDED(Layout::replicated(k.mesh));
  EXPECT_ENDED(Layout::of(k.mesh, {Shard(0), Replicate()}));
  EXPECT_ENDED(k.layout.mesh());
  EXPECT_ENDED(k.layout.placement("dp"));
  EXPECT_ENDED(k.layout.placements());
  EXPECT_ENDED(k.layout.with("tp", Shard(1)));
  EXPECT_ENDED(k.layout.without_partials());
  EXPECT_ENDED(k.layout.is_replicated());
  EXPECT_ENDED(k.layout.local_shape({4, 6}));
  EXPECT_ENDED(k.layout.text());
  EXPECT_ENDED(visualize_sharding({4, 6}, k.layout));
}

void use_tensor(const Kept& k) {
  EXPECT_EQ(k.x.shape(), (Shape{4, 6}));
  EXPECT_TRUE(k.x.is_distributed());
  EXPECT_TRUE(k.x.detach().is_distributed());
  std::ostringstream text;
  text << k.x;
  EXPECT_TRUE(text.str().starts_with("DTensor(local=[[1., 1., ")) << text.str();
  EXPECT_ENDED(layout_of(k.x));
  EXPECT_ENDED(local(k.x));
  EXPECT_ENDED(full_tensor(k.x));
  EXPECT_ENDED(redistribute(k.x, {Replicate(), Replicate()}));
  EXPECT_ENDED(describe(k.x));
  EXPECT_ENDED(visualize_sharding(k.x));
  EXPECT_ENDED(k.x + k.x);
  EXPECT_ENDED(k.x * 2.0);
  EXPECT_ENDED(transpose(k.x, 0, 1));
  EXPECT_ENDED(sum(k.x));
  EXPECT_ENDED(zeros_like(k.x));
  EXPECT_ENDED(assign_(k.x, k.x.detach()));
}

TEST(EndedWorld, WithoutAContext) {
  const Kept k = of_an_ended_world();
  use_mesh_and_layout(k);
  use_tensor(k);
}

TEST(EndedWorld, InASessionWithoutAWorld) {
  const Kept k = of_an_ended_world();
  const Session session;
  use_mesh_and_layout(k);
  use_tensor(k);
  EXPECT_ENDED(distribute(ones({4, 6}), k.layout));
  EXPECT_ENDED((backward(k.loss), 0));
  EXPECT_ENDED((backward(k.leaf, {.gradient = k.x}), 0));
}

TEST(EndedWorld, InAnotherWorld) {
  Kept k = of_an_ended_world();
  for (int round = 0; round < 20; ++round) {
    run_fake(4, 0, [&](World&) {
      const Kept fresh = made_here();
      EXPECT_FALSE(k.mesh == fresh.mesh);
      EXPECT_FALSE(k.layout == fresh.layout);
      (void)(fresh.x + fresh.x);  // its plan is kept
      use_mesh_and_layout(k);
      use_tensor(k);
      EXPECT_ENDED(k.x + fresh.x);
      EXPECT_ENDED(fresh.x + k.x);
      EXPECT_ENDED(distribute(ones({4, 6}), k.layout));
      EXPECT_ENDED(from_local(ones({2, 6}), k.layout));
      EXPECT_ENDED(full({4, 6}, 1, DType::f32, k.layout));
      EXPECT_ENDED(redistribute(fresh.x, k.layout));
      EXPECT_ENDED(convert(ones({2}), k.mesh, "dp", AxisType::varying, AxisType::replicate));
      EXPECT_ENDED(local_region([](const std::vector<Tensor>& in) { return in; },
                                {{k.x, {AxisType::varying, AxisType::invariant}}}, {}));
      EXPECT_ENDED((backward(k.loss), 0));
      EXPECT_ENDED((backward(k.leaf, {.gradient = k.x}), 0));
      k = fresh;
    });
  }
}

TEST(EndedWorld, WhatAnotherRankMadeIsNotOurs) {
  Kept first;
  run_ranks(2, [&](World& world) {
    const Tensor token = zeros({1});
    if (world.rank() == 0) {
      first.mesh = Mesh::make({{"dp", 2}}, {0, 1});
      first.layout = Layout::of(first.mesh, {Shard(0)});
    } else {
      (void)Mesh::make({{"dp", 2}}, {0, 1});
    }
    world.group().all_reduce(token)->wait();
    if (world.rank() == 1) {
      EXPECT_ENDED(first.mesh.coordinates());
      EXPECT_ENDED(first.layout.range({4}, 0));
    }
    world.group().all_reduce(token)->wait();
  });
}

TEST(EndedWorld, AContextInsideDoesNotEndIt) {
  run_fake(4, 0, [](World&) {
    const Kept k = made_here();
    Layout made_inside;
    {
      const Session inner;
      EXPECT_EQ(k.mesh.size(), 4);
      EXPECT_EQ(layout_of(k.x), k.layout);
      EXPECT_EQ(local(k.x).shape(), (Shape{2, 6}));
      made_inside = Layout::of(k.mesh["tp"], {Shard(1)});
    }
    EXPECT_EQ(made_inside, Layout::of(k.mesh["tp"], {Shard(1)}));
    EXPECT_EQ(made_inside.placement("tp"), Shard(1));
  });
}

TEST(Handles, AreSmallValues) {
  static_assert(std::is_trivially_copyable_v<Mesh> && sizeof(Mesh) <= 16);
  static_assert(std::is_trivially_copyable_v<Layout> && sizeof(Layout) <= 16);
  EXPECT_FALSE(Mesh());
  EXPECT_FALSE(Layout());
  EXPECT_NE(error_of<UsageError>([] { (void)Mesh().size(); }).find("an empty mesh"),
            std::string::npos);
  EXPECT_NE(error_of<UsageError>([] { (void)Layout().text(); }).find("an empty layout"),
            std::string::npos);
  run_fake(4, 0, [](World&) {
    const Kept k = made_here();
    EXPECT_TRUE(k.mesh && k.layout);
    EXPECT_EQ(k.mesh.size("tp"), 2);
    EXPECT_EQ(k.mesh["tp"], k.mesh.slice({"tp"}));
    const std::unordered_set<Mesh> meshes{k.mesh, Mesh::make({{"dp", 2}, {"tp", 2}}), k.mesh["tp"]};
    EXPECT_EQ(meshes.size(), 2U);
    const std::unordered_set<Layout> layouts{k.layout, layout_of(k.x), Layout::replicated(k.mesh)};
    EXPECT_EQ(layouts.size(), 2U);
    std::ostringstream text;
    text << k.mesh << ' ' << k.layout;
    EXPECT_EQ(text.str(), k.mesh.text() + ' ' + k.layout.text());
  });
}

}  // namespace
}  // namespace tessera
