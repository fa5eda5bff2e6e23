// SPDX-License-Identifier: Apache-2.0
// Redistribution with data: every pair of layouts on meshes of several shapes, and random cases.
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/redistribution.h"

#include <random>

namespace tessera {
namespace {

using test::on_ranks;

using trial::all_layouts;
using trial::every_pair;
using trial::holds;
using trial::part_of;

TEST(Redistribute, EveryPairWithDataOn2x2x2) { every_pair({{"a", 2}, {"b", 2}, {"c", 2}}, {5, 3}); }
TEST(Redistribute, EveryPairWithDataOn2x4) { every_pair({{"a", 2}, {"b", 4}}, {9, 5}); }
TEST(Redistribute, EveryPairWithDataOn3x2) { every_pair({{"a", 3}, {"b", 2}}, {8, 7}); }
TEST(Redistribute, EveryPairWithDataOnUnitAxes) {
  every_pair({{"a", 1}, {"b", 3}, {"c", 1}}, {5, 4});
}

TEST(Redistribute, RandomCases) {
  constexpr int kCases = 50000;
  const std::vector<std::vector<MeshAxis>> meshes{
      {{"a", 2}, {"b", 2}, {"c", 2}}, {{"a", 2}, {"b", 4}}, {{"a", 3}, {"b", 2}},
      {{"a", 2}, {"b", 1}, {"c", 3}}, {{"a", 2}, {"b", 2}}, {{"a", 4}},
      {{"a", 1}, {"b", 3}},           {{"a", 1}, {"b", 1}}};
  const int per_mesh = kCases / static_cast<int>(meshes.size());
  for (const auto& axes : meshes) {
    int ranks = 1;
    for (const MeshAxis& a : axes) ranks *= a.size;
    on_ranks(ranks, [&](World& world) {
      const Mesh mesh = Mesh::make(axes);
      const unsigned seed = test::shared_seed(world);
      std::mt19937 random(seed);
      const auto sums = all_layouts(mesh, 2, {ReduceOp::sum, ReduceOp::avg});
      const auto bounds = all_layouts(mesh, 2, {ReduceOp::max, ReduceOp::min});
      int wrong = 0;
      for (int i = 0; i < per_mesh; ++i) {
        const auto& layouts = random() % 3 == 0 ? bounds : sums;
        const Layout from = Layout::intern(mesh, layouts[random() % layouts.size()]);
        const Layout to = Layout::intern(mesh, layouts[random() % layouts.size()]);
        const Shape shape{static_cast<int64_t>(random() % 11), static_cast<int64_t>(random() % 6)};
        Tensor x = make_distributed(part_of(from, shape), shape, from);
        const Tensor y = redistribute(x, to);
        if (layout_of(y) == to && holds(y, shape)) continue;
        if (wrong++ == 0)
          ADD_FAILURE() << from.text() << " -> " << to.placements_text() << " of " << shape
                        << ", seed " << seed;
      }
      if (world.rank() == 0)
        std::cout << mesh.text() << ": " << per_mesh << " random cases, " << wrong
                  << " wrong, seed " << seed << '\n';
    });
  }
}

TEST(Redistribute, NeverAliasesItsSource) {
  on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"a", 2}});
    const Tensor x = full({4, 2}, 1, DType::f32, Layout::of(mesh, {Replicate()}));
    for (const Placement& p : {Shard(0), Shard(1), Partial(), Partial(ReduceOp::max)}) {
      const Tensor y = redistribute(x, {p});
      EXPECT_NE(&y.storage(), &x.storage()) << p;
      EXPECT_TRUE(local(y).is_contiguous()) << p;
    }
    EXPECT_EQ(redistribute(x, layout_of(x)).handle(), x.handle());
  });
}

TEST(Redistribute, APlainGradientOfADistributedTensorIsRefused) {
  on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"a", 2}});
    const Function plain{"plain",
                         [](FunctionContext&, Tensors in) { return TensorList{in[0] * 2}; },
                         [](FunctionContext&, const Grads&) { return Grads{ones({4})}; }};
    const Tensor x = full({4}, 1, DType::f32, Layout::of(mesh, {Shard(0)})).set_requires_grad();
    const Tensor y = apply(plain, {redistribute(x, {Replicate()})})[0];
    EXPECT_EQ(test::error_of([&] { backward(sum(y)); }),
              "[backward] the gradient f32[4] is plain, but its tensor is on mesh(a=2): "
              "distribute() it");
  });
}

TEST(Redistribute, RefusesWhatDoesNotFit) {
  on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"a", 2}});
    const Mesh other = Mesh::make({{"b", 2}});
    const Tensor x = full({4}, 1, DType::f32, Layout::of(mesh, {Shard(0)}));
    EXPECT_THROW((void)redistribute(x, {Shard(1)}), LayoutError);
    EXPECT_THROW((void)redistribute(x, {Replicate(), Replicate()}), LayoutError);
    EXPECT_THROW((void)redistribute(x, Layout::of(other, {Shard(0)})), LayoutError);
    EXPECT_THROW((void)redistribute(tensor({1, 2}), Layout::of(mesh, {Shard(0)})), LayoutError);
    EXPECT_THROW((void)redistribute(full({4}, 1, DType::i64, Layout::of(mesh, {Replicate()})),
                                    {Partial(ReduceOp::avg)}),
                 DTypeError);
  });
}

}  // namespace
}  // namespace tessera
