// SPDX-License-Identifier: Apache-2.0
// Redistribution with data, forward and backward, against a brute-force oracle: whole values are
// small integers, so that every sum is exact and results compare bit for bit.
#include "tessera/dist/dtensor.h"
#include "tessera/tests/support/all_layouts.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>

namespace tessera {
namespace {

using test::on_ranks;

using trial::all_layouts;
using Kind = Placement::Kind;

// Element (i, j) of the whole.
double truth(int64_t i, int64_t j) { return static_cast<double>((i * 7 + j * 13) % 29 - 11); }

// This rank's part of the whole under a layout, made without any collective. Summands of a partial
// differ by rank and add up; maxima and minima lie on one rank each.
Tensor part_of(Layout layout, const Shape& shape) {
  const Shape size = layout.local_shape(shape);
  const auto [members, own, op, averaged] = trial::PartialTerm(layout);
  std::vector<double> values;
  for (int64_t i = 0; i < size[0]; ++i) {
    for (int64_t j = 0; j < size[1]; ++j) {
      const int64_t gi = layout.range(shape, 0).begin + i, gj = layout.range(shape, 1).begin + j;
      const double v = truth(gi, gj);
      const int winner = static_cast<int>((gi + gj) % members);
      if (op == ReduceOp::max) values.push_back(own == winner ? v : v - 1 - own);
      else if (op == ReduceOp::min) values.push_back(own == winner ? v : v + 1 + own);
      else values.push_back((own == winner ? v - 3 * (members - 1) : 3) * averaged);
    }
  }
  return from_values(values, size, DType::f64);
}

bool same_values(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.values() == b.values();
}

// Whether x's part is that of the whole: exactly where no axis is partial, else after a reduction.
bool holds(const Tensor& x, const Shape& shape) {
  const Layout layout = layout_of(x);
  if (!(local(x).shape() == layout.local_shape(shape))) return false;
  const Tensor y = redistribute(x, layout.without_partials());
  return same_values(local(y), part_of(layout_of(y), shape));
}

// One case, forward and backward. The gradient given is the truth again, so it must arrive as such.
bool one_case(Layout from, Layout to, const Shape& shape) {
  Tensor x = make_distributed(part_of(from, shape), shape, from);
  x.set_requires_grad();
  const Tensor y = redistribute(x, to);
  if (layout_of(y) != to || !holds(y.detach(), shape)) return false;
  const Layout arriving = to.without_partials();
  backward(y, {.gradient = make_distributed(part_of(arriving, shape), shape, arriving)});
  if (from == to) return true;
  const Layout back = layout_of(x.grad());
  for (int a = 0; a < from.mesh().axes(); ++a) {
    const Placement expected =
        from.placement(a).kind == Kind::shard ? from.placement(a) : Replicate();
    if (!(back.placement(a) == expected)) return false;
  }
  return holds(x.grad(), shape);
}

void every_pair(const std::vector<MeshAxis>& axes, const Shape& shape) {
  int ranks = 1;
  for (const MeshAxis& a : axes) ranks *= a.size;
  std::atomic<int64_t> wrong{0}, pairs{0};
  on_ranks(ranks, [&](World& world) {
    const Mesh mesh = Mesh::make(axes);
    const auto layouts = all_layouts(mesh, 2, {ReduceOp::sum});
    for (const AxisStates& f : layouts) {
      for (const AxisStates& t : layouts) {
        const Layout from = Layout::intern(mesh, f), to = Layout::intern(mesh, t);
        if (world.rank() == 0) ++pairs;
        if (one_case(from, to, shape)) continue;
        if (wrong++ == 0)
          ADD_FAILURE() << from.text() << " -> " << to.placements_text() << " of " << shape;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
  if (pairs > 0) std::cout << pairs << " pairs forward and backward, " << wrong << " wrong\n";
}

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
