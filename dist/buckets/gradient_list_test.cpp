// SPDX-License-Identifier: Apache-2.0
// Lists of gradients beside redistribute, one tensor at a time: the same bits from one collective
// for each set of axes.
#include "tessera/dist/buckets/gradient_list.h"

#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/tests/support/ranks.h"

namespace tessera {
namespace {

// A gradient whose local values are this rank's own.
Tensor given(World& w, const Shape& shape, Layout layout, uint64_t number, DType dtype) {
  const RngKey key{7, 10 * number + static_cast<uint64_t>(w.rank())};
  return make_distributed(cast(normal(layout.local_shape(shape), key), dtype), shape, layout);
}

TEST(GradientList, OneSumForAllThatLackIt) {
  test::on_ranks(4, [](World& w) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Layout whole = Layout::of(mesh, {Partial(), Replicate()}),
                 cut = Layout::of(mesh, {Partial(), Shard(0)}),
                 both = Layout::of(mesh, {Partial(), Partial()}),
                 none = Layout::of(mesh, {Replicate(), Replicate()});
    const std::vector<Shape> shapes{{5, 3}, {7}, {}, {0, 2}, {1}, {2, 2}};
    const std::vector<Layout> from{cut, both, both, both, none, whole},
        to{cut, whole, whole, whole, whole, whole};
    for (const DType dtype : {DType::f32, DType::f64}) {
      std::vector<Tensor> gradients;
      for (size_t i = 0; i < shapes.size(); ++i)
        gradients.push_back(given(w, shapes[i], from[i], i, dtype));
      gradients.emplace_back();
      std::vector<Layout> layouts = to;
      layouts.push_back(whole);
      const CommTrace trace;
      const std::vector<Tensor> parts = bring_gradients(gradients, layouts, dtype);
      ASSERT_EQ(trace.entries().size(), 1u);
      EXPECT_EQ(trace.entries()[0].op, "all_reduce");
      EXPECT_EQ(trace.entries()[0].axes, "tp");
      EXPECT_EQ(trace.entries()[0].bytes, 8 * item_size(dtype));
      EXPECT_FALSE(parts.back().defined());
      for (size_t i = 0; i < shapes.size(); ++i) {
        const Tensor expected = local(redistribute(gradients[i], to[i]));
        EXPECT_EQ(parts[i].shape(), expected.shape());
        EXPECT_EQ(parts[i].values(), expected.values()) << i;
      }
    }
  });
}

TEST(GradientList, SumsHaveTheirOwnDType) {
  test::on_ranks(2, [](World& w) {
    const Mesh mesh = Mesh::make({{"tp", 2}});
    const Layout partial = Layout::of(mesh, {Partial()}), whole = Layout::replicated(mesh);
    const std::vector<Tensor> gradients{given(w, {33}, partial, 1, DType::bf16)};
    const Tensor wide = cast(gradients[0], DType::f32);
    const std::vector<Tensor> parts = bring_gradients(gradients, {&whole, 1}, DType::f32);
    EXPECT_EQ(parts[0].dtype(), DType::f32);
    EXPECT_EQ(parts[0].values(), local(redistribute(wide, whole)).values());
    // It was only read.
    EXPECT_EQ(local(cast(gradients[0], DType::f32)).values(), local(wide).values());
  });
}

TEST(GradientList, EachSetOfAxesHasItsOwnSum) {
  test::on_ranks(4, [](World& w) {
    const Mesh mesh = Mesh::make({{"a", 2}, {"b", 2}});
    const Layout whole = Layout::replicated(mesh);
    const std::vector<Layout> from{Layout::of(mesh, {Partial(), Replicate()}),
                                   Layout::of(mesh, {Partial(), Partial()}),
                                   Layout::of(mesh, {Partial(), Replicate()})},
        to(3, whole);
    std::vector<Tensor> gradients;
    for (size_t i = 0; i < from.size(); ++i)
      gradients.push_back(given(w, {3}, from[i], i, DType::f64));
    const CommTrace trace;
    const std::vector<Tensor> parts = bring_gradients(gradients, to, DType::f64);
    ASSERT_EQ(trace.entries().size(), 2u);
    EXPECT_EQ(trace.entries()[0].axes, "a");
    EXPECT_EQ(trace.entries()[1].axes, "a,b");
    for (size_t i = 0; i < from.size(); ++i)
      EXPECT_EQ(parts[i].values(), local(redistribute(gradients[i], whole)).values()) << i;
  });
}

}  // namespace
}  // namespace tessera
