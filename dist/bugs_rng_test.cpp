// SPDX-License-Identifier: Apache-2.0
// Bugs that others had in random numbers of distributed tensors, each as a test of what it broke.
// The numbers are issues of PyTorch. The mesh's (#169381, ranks that disagree) are in
// mesh_test.cpp.
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/all_layouts.h"
#include "tessera/tests/support/trials.h"

#include <set>

namespace tessera {
namespace {

using namespace trial;
using test::on_ranks;

// #168058: the numbers depended on how a tensor was cut.
TEST(RngBugs, NumbersAreThoseOfOneRankUnderAnyLayout) {
  for (const auto& axes : std::vector<std::vector<MeshAxis>>{
           {{"a", 1}}, {{"a", 2}, {"b", 2}}, {{"a", 3}, {"b", 2}}, {{"a", 7}}}) {
    int ranks = 1;
    for (const MeshAxis& a : axes) ranks *= a.size;
    on_ranks(ranks, [&](World&) {
      const Mesh m = Mesh::make(axes);
      for (const Shape& shape : {Shape{5, 9}, Shape{1, 3}, Shape{0, 4}, Shape{64, 65}}) {
        for (const op::Distribution d : {op::Distribution::uniform, op::Distribution::normal,
                                         op::Distribution::truncated_normal}) {
          for (const DType t : {DType::f32, DType::bf16}) {
            op::Random random{shape, t, kCpu, d, 0.5, 2, -1, 1, {7, 11}, {}, {}};
            const Tensor whole = call(random, {});
            for (const AxisStates& states : all_layouts(m, 2, {})) {
              const Tensor x = call_on(random, Layout::intern(m, states));
              ASSERT_EQ(x.dtype(), t);
              expect_same(x, whole, 0);
            }
          }
        }
      }
    });
  }
}

// #196562: the generator was reset for each shard, so that shards were alike, and truncated normals
// were drawn anew for ever.
TEST(RngBugs, ShardsAreUnlikeAndTruncationEnds) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"a", 4}});
    const Layout cut = Layout::of(m, {Shard(0)});
    // Hardly ever inside: drawn many times, then cut to the range.
    const op::Random rare{
        {8, 6}, DType::f32, kCpu, op::Distribution::truncated_normal, 0, 1, 4, 4.5, {3, 1}, {}, {}};
    for (const double v : full_tensor(call_on(rare, cut)).values()) {
      EXPECT_GE(v, 4);
      EXPECT_LE(v, 4.5);
    }
    const auto v = full_tensor(normal({8, 6}, {3, 1}, 0, 1, DType::f32, cut)).values();
    EXPECT_EQ(std::set<double>(v.begin(), v.end()).size(), v.size());
  });
}

// #146767: distributing a tensor needed a GPU, only to seed it.
TEST(RngBugs, DistributingTouchesNoGenerator) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"a", 2}});
    const Layout cut = Layout::of(m, {Shard(0)});
    const Tensor before = normal({4, 2}, {1, 2}, 0, 1, DType::f32, cut);
    const Tensor x = distribute(numbers({4, 2}), cut);
    EXPECT_TRUE(local(x).device().is_cpu());
    expect_same(normal({4, 2}, {1, 2}, 0, 1, DType::f32, cut), before, 0);
  });
}

}  // namespace
}  // namespace tessera
