// SPDX-License-Identifier: Apache-2.0
// What people read: pictures of layouts, descriptions of tensors, tables of what was sent.
#include "tessera/dist/visualize.h"

#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using test::on_ranks;

// Texts are compared on one rank: what another rank fails to draw throws there.
void expect_on_first(World& world, const std::string& got, const std::string& want) {
  EXPECT_EQ(world.rank() == 0 ? got : want, want);
}

TEST(Visualize, DrawsTheGridOfATwoDimTensor) {
  on_ranks(4, [](World& world) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    expect_on_first(world, visualize_sharding({5, 6}, Layout::of(m, {Shard(0), Shard(1)})),
                    "[5, 6] on mesh(dp=2, tp=2) {dp: Shard(0), tp: Shard(1)}\n"
                    "  rank | 0:3 | 3:6\n"
                    "  0:3  | 0   | 1\n"
                    "  3:5  | 2   | 3\n");
    expect_on_first(world, visualize_sharding({5, 6}, Layout::of(m, {Shard(0), Replicate()})),
                    "[5, 6] on mesh(dp=2, tp=2) {dp: Shard(0), tp: Replicate()}\n"
                    "  rank | 0:6\n"
                    "  0:3  | 0, 1\n"
                    "  3:5  | 2, 3\n");
  });
}

TEST(Visualize, SaysWhoHoldsNothingAndWhatIsStillToBeReduced) {
  on_ranks(4, [](World& world) {
    const Mesh m = Mesh::make({{"dp", 4}, {"tp", 1}});
    expect_on_first(world, visualize_sharding({5}, Layout::of(m, {Shard(0), Partial()})),
                    "[5] on mesh(dp=4, tp=1) {dp: Shard(0), tp: Partial()}\n"
                    "  rank | 0:2 | 2:4 | 4:5\n"
                    "       | 0   | 1   | 2\n"
                    "  empty on 3\n"
                    "  to be reduced (sum) over tp\n");
    expect_on_first(world, visualize_sharding({0}, Layout::of(m, {Shard(0), Replicate()})),
                    "[0] on mesh(dp=4, tp=1) {dp: Shard(0), tp: Replicate()}\n"
                    "  empty on 0-3\n");
    EXPECT_THROW((void)visualize_sharding({5}, Layout::of(m, {Shard(1), Replicate()})),
                 LayoutError);
  });
}

TEST(Visualize, ListsPartsOfOtherRanks) {
  on_ranks(4, [](World& world) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    expect_on_first(world, visualize_sharding({2, 3, 4}, Layout::of(m, {Shard(2), Replicate()})),
                    "[2, 3, 4] on mesh(dp=2, tp=2) {dp: Shard(2), tp: Replicate()}\n"
                    "  [0:2, 0:3, 0:2]  ranks 0, 1\n"
                    "  [0:2, 0:3, 2:4]  ranks 2, 3\n");
    expect_on_first(world, visualize_sharding({}, Layout::replicated(m)),
                    "[] on mesh(dp=2, tp=2) {dp: Replicate(), tp: Replicate()}\n"
                    "  []  ranks 0-3\n");
    expect_on_first(world, visualize_sharding(zeros({2})),
                    "[2] plain: this rank holds the whole\n");
  });
}

TEST(Visualize, DescribesTensors) {
  on_ranks(2, [](World& world) {
    const Mesh m = Mesh::make({{"dp", 2}});
    Tensor x = distribute(zeros({5, 2}, DType::bf16), Layout::of(m, {Shard(0)}));
    x.set_requires_grad();
    const std::string text = describe(x);
    EXPECT_EQ(text, concat("bf16[5, 2] on mesh(dp=2) {dp: Shard(0)}; rank ", world.rank(), " (dp ",
                           world.rank(), ") holds bf16[", world.rank() ? 2 : 3, ", 2], ",
                           world.rank() ? 8 : 12, " bytes; requires_grad"));
    EXPECT_EQ(describe(zeros({3})), "f32[3], plain, 12 bytes");
    EXPECT_EQ(describe(Tensor()), "undefined tensor");
  });
}

TEST(Print, ADistributedTensorPrintsThisRanksPartAndItsLayout) {
  on_ranks(2, [](World& world) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 1}});
    const Layout layout = Layout::of(m, {Shard(0), Replicate()});
    Tensor x = distribute(tensor({{1, 2}, {3, 4}, {5, 6}}), layout);
    expect_on_first(world, concat(x.set_requires_grad()),
                    "DTensor(local=[[1., 2.],\n"
                    "               [3., 4.]], size=(3, 2),\n"
                    "              layout=mesh(dp=2, tp=1) {dp: Shard(0), tp: Replicate()},\n"
                    "              requires_grad=True)");
    const Tensor ids = distribute(tensor({7}, DType::i64), layout);
    EXPECT_EQ(concat(ids), concat("DTensor(local=[", world.rank() ? "" : "7", "], size=(1,),",
                                  world.rank() ? " dtype=i64," : "",
                                  "\n              layout=mesh(dp=2, tp=1) {dp: Shard(0), tp: "
                                  "Replicate()})"));
  });
}

TEST(Print, ADistributedTensorOutlivesItsWorld) {
  Tensor x;
  run_ranks(1, [&x](World&) {
    x = distribute(tensor({7}), Layout::of(Mesh::make({{"dp", 1}}), {Shard(0)}));
  });
  EXPECT_EQ(concat(x), "DTensor(local=[7.], size=(1,), layout=unknown to this thread)");
}

Tensor bytes(int64_t n) { return zeros({n}, DType::u8); }

TEST(CommTrace, SeesWhatIsSentWhileItLives) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 1}});
    const int both[] = {0, 1};
    record_collective(CollectiveKind::all_reduce, m, {both, 1}, bytes(1));  // nobody listens
    const CommTrace outer;
    EXPECT_EQ(outer.count(), 0);
    EXPECT_NE(outer.table().find("no communication"), std::string::npos);
    {
      const ModuleScope layers("layers.3"), attention("attention");
      const CommTrace inner;
      record_collective(CollectiveKind::all_gather, m, both, bytes(64));
      record_collective(CollectiveKind::reduce_scatter, m, {both, 1}, bytes(32), "grad");
      EXPECT_EQ(inner.count(), 2);
    }
    record_collective(CollectiveKind::all_gather, m, {both, 1}, bytes(100));
    ASSERT_EQ(outer.count(), 3);
    EXPECT_EQ(outer.count("all_gather"), 2);
    EXPECT_EQ(outer.count("all_gather", "grad"), 0);
    EXPECT_EQ(outer.count({}, "grad"), 1);
    EXPECT_EQ(outer.bytes("all_gather"), 164);
    EXPECT_EQ(outer.bytes(), 196);
    const CommEntry& first = outer.entries()[0];
    EXPECT_EQ(first.op, "all_gather");
    EXPECT_EQ(first.axes, "dp,tp");
    EXPECT_EQ(first.path, "layers.3.attention");
    EXPECT_EQ(first.tag, "forward");
    EXPECT_EQ(outer.entries()[2].path, "");
    const std::string table = outer.table();
    EXPECT_NE(table.find("layers.3.attention"), std::string::npos) << table;
    EXPECT_NE(table.find("all_gather: 2 of 164 bytes"), std::string::npos) << table;
  });
}

TEST(CommTrace, OfRedistributions) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Tensor x = distribute(zeros({4, 4}, DType::f64), Layout::of(m, {Replicate(), Shard(1)}));
    const CommTrace trace;
    const ModuleScope scope("norm");
    (void)redistribute(x, {Replicate(), Replicate()});
    ASSERT_EQ(trace.count(), 1) << trace;
    EXPECT_EQ(trace.entries()[0].op, "all_gather");
    EXPECT_EQ(trace.entries()[0].axes, "tp");
    EXPECT_EQ(trace.entries()[0].path, "norm");
    EXPECT_EQ(trace.entries()[0].bytes, 4 * 4 * 8);
    (void)redistribute(x, {Shard(0), Shard(1)});  // a slice sends nothing
    EXPECT_EQ(trace.count(), 1) << trace;
  });
}

}  // namespace
}  // namespace tessera
