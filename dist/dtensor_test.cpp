// SPDX-License-Identifier: Apache-2.0
// Making and reading distributed tensors: what fits, what is refused and on which ranks, what
// aliases.
#include "tessera/dist/dtensor.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using test::error_of;
using test::on_ranks;

Tensor ramp(const Shape& shape, DType dtype = DType::f32) {
  std::vector<double> values;
  for (int64_t i = 0; i < shape.numel(); ++i) values.push_back(static_cast<double>(i));
  return from_values(values, shape, dtype);
}

TEST(DTensor, ChunkRuleGivesCeilAndLess) {
  const Piece::Range whole{0, 5, 5};
  const int64_t sizes[] = {2, 2, 1, 0};
  int64_t begin = 0;
  for (int i = 0; i < 4; ++i) {
    const Piece::Range r = chunk(whole, 4, i);
    EXPECT_EQ(r.size, sizes[i]);
    EXPECT_EQ(r.begin, begin);
    begin += r.size;
  }
  for (int64_t n = 0; n < 40; ++n) {
    for (int parts = 1; parts < 9; ++parts) {
      int64_t total = 0;
      for (int i = 0; i < parts; ++i) {
        const Piece::Range r = chunk({0, n, n}, parts, i);
        EXPECT_EQ(r.begin, total);
        total += r.size;
      }
      EXPECT_EQ(total, n);
    }
  }
}

TEST(DTensor, DistributeCutsAndFullGathers) {
  on_ranks(4, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    for (const Shape& shape : {Shape{5, 3}, Shape{1, 7}, Shape{0, 4}, Shape{8, 8}}) {
      const Tensor whole = ramp(shape);
      for (const auto& p : std::vector<std::vector<Placement>>{
               {Shard(0), Shard(0)}, {Shard(1), Shard(0)}, {Replicate(), Shard(1)}}) {
        const Tensor x = distribute(whole, Layout::of(mesh, p));
        EXPECT_EQ(x.shape(), shape);
        EXPECT_EQ(full_tensor(x).values(), whole.values());
      }
      const Layout tp_first =
          Layout::ordered(mesh, std::vector<Placement>{Shard(0), Shard(0)}, {{"tp", "dp"}});
      EXPECT_NE(tp_first, Layout::of(mesh, {Shard(0), Shard(0)}));
      EXPECT_EQ(full_tensor(distribute(whole, tp_first)).values(), whole.values());
      EXPECT_EQ(
          full_tensor(redistribute(distribute(whole, tp_first), {Shard(0), Shard(0)})).values(),
          whole.values());
    }
  });
}

TEST(DTensor, DistributeTakesTheValuesOfOneRank) {
  on_ranks(3, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 3}});
    const Tensor mine = ramp({4}) + static_cast<double>(100 * world.rank());
    const Tensor x = distribute(mine, Layout::of(mesh, {Shard(0)}), 2);
    EXPECT_EQ(full_tensor(x).values(), (ramp({4}) + 200.0).values());
    EXPECT_EQ(mine.values()[0], 100.0 * world.rank());
  });
}

TEST(DTensor, LocalAliasesAndIsDetached) {
  on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Tensor x = distribute(ramp({4}), Layout::of(mesh, {Shard(0)}));
    x.set_requires_grad();
    Tensor part = local(x);
    EXPECT_FALSE(part.requires_grad());
    EXPECT_EQ(part.shape(), (Shape{2}));
    part.data<float>()[0] = 50;
    EXPECT_EQ(full_tensor(x).values(), (std::vector<double>{50, 1, 50, 3}));
    (void)world;
  });
}

TEST(DTensor, FromLocalChecksEveryRanksPart) {
  on_ranks(4, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 4}});
    const Layout rows = Layout::of(mesh, {Shard(0)});
    const int64_t sizes[] = {2, 2, 1, 0};  // of 5 rows
    const Tensor good = ramp({sizes[world.rank()], 3});
    EXPECT_EQ(from_local(good, rows).shape(), (Shape{5, 3}));
    EXPECT_EQ(from_local(good, rows, {5, 3}).shape(), (Shape{5, 3}));
    // Any other split of 5 rows is refused, on every rank, with the rank that is wrong.
    const int64_t other[] = {2, 1, 2, 0};
    const std::string text = error_of<LayoutError>([&] {
      (void)from_local(ramp({other[world.rank()], 3}), rows);
    });
    EXPECT_NE(text.find("the part of rank 1 is [1, 3]"), text.npos) << text;
    EXPECT_NE(text.find("gives it [2, 3]"), text.npos) << text;
    EXPECT_NE(error_of<LayoutError>([&] {
                (void)from_local(good, rows, {6, 3});
              }).find("rank 2"),
              std::string::npos);
    const DType mixed = world.rank() == 3 ? DType::f64 : DType::f32;
    EXPECT_NE(error_of<LayoutError>([&] {
                (void)from_local(ramp({2, 2}, mixed), rows);
              }).find("disagree"),
              std::string::npos);
    Tensor wants = ramp({2, 2});
    wants.set_requires_grad();
    EXPECT_NE(error_of<LayoutError>([&] { (void)from_local(wants, rows); }).find("local_region"),
              std::string::npos);
  });
}

TEST(DTensor, WrapLocalChecksThisRanksPartAndSendsNothing) {
  on_ranks(3, [](World& world) {
    const Mesh m = Mesh::make({{"a", 3}});
    const Layout rows = Layout::of(m, {Shard(0)});
    const uint64_t before = world.group().recorder().count();
    const int64_t mine = world.rank() == 2 ? 1 : 2;
    const Tensor part = full({mine, 2}, world.rank(), DType::f32);
    const Tensor x = wrap_local(part, rows, {5, 2});
    EXPECT_EQ(x.shape(), (Shape{5, 2}));
    EXPECT_EQ(layout_of(x), rows);
    EXPECT_EQ(&local(x).storage(), &part.storage());
    const std::string error = error_of<LayoutError>([&] { (void)wrap_local(part, rows, {9, 2}); });
    EXPECT_NE(error.find("of [9, 2] gives it [3, 2]"), error.npos) << error;
    EXPECT_THROW((void)wrap_local(x, rows, {5, 2}), LayoutError);
    EXPECT_THROW((void)wrap_local(part, Layout::of(m, {Shard(2)}), {5, 2}), LayoutError);
    EXPECT_EQ(world.group().recorder().count(), before);
    EXPECT_EQ(full_tensor(x).values(), (std::vector<double>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2}));
  });
}

TEST(DTensor, NamedPlacementsReplicateTheOtherAxes) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp_replicate", 1}, {"dp_shard", 2}, {"tp", 2}});
    EXPECT_EQ(Layout::of(m, {{"dp_shard", Shard(0)}}),
              Layout::of(m, {Replicate(), Shard(0), Replicate()}));
    EXPECT_EQ(Layout::of(m, {{"tp", Shard(1)}, {"dp_shard", Partial()}}),
              Layout::of(m, {Replicate(), Partial(), Shard(1)}));
    EXPECT_NE(error_of<LayoutError>([&] {
                (void)Layout::of(m, {{"cp", Shard(0)}});
              }).find("no axis cp"),
              std::string::npos);
    EXPECT_NE(error_of<LayoutError>([&] {
                (void)Layout::of(m, {{"tp", Shard(0)}, {"tp", Shard(1)}});
              }).find("named twice"),
              std::string::npos);
  });
}

TEST(DTensor, LayoutsThatDoNotFitAreRefused) {
  on_ranks(4, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    EXPECT_THROW((void)Layout::of(mesh, {Shard(0)}), LayoutError);
    EXPECT_THROW((void)Layout::of(mesh, {Shard(-1), Replicate()}), LayoutError);
    EXPECT_THROW((void)Layout::of(mesh, {Partial(), Partial(ReduceOp::max)}), LayoutError);
    EXPECT_THROW(
        (void)Layout::ordered(mesh, std::vector<Placement>{Shard(0), Shard(1)}, {{"tp", "dp"}}),
        LayoutError);
    EXPECT_THROW((void)distribute(ramp({4}), Layout::of(mesh, {Shard(1), Replicate()})),
                 LayoutError);
    EXPECT_THROW((void)distribute(ramp({4}), Layout::of(mesh, {Partial(), Replicate()})),
                 LayoutError);
    EXPECT_EQ(error_of([&] {
                (void)Layout::ordered(mesh, std::vector<Placement>{Shard(0), Shard(0)},
                                      {{"dp", "tp", "dp"}});
              }),
              "[layout] axis \"dp\" occurs twice in the order of axes");
    EXPECT_THROW((void)local(ramp({4})), LayoutError);
    EXPECT_THROW((void)full_tensor(ramp({4})), LayoutError);
    EXPECT_THROW((void)layout_of(ramp({4})), LayoutError);
  });
}

TEST(DTensor, WhatCannotBeDistributedIsRefusedAndNothingIsSent) {
  on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    const Layout rows = Layout::of(mesh, {Shard(0)});
    const Tensor whole = ramp({4}), x = distribute(whole, rows);
    Tensor wants = ramp({4});
    wants.set_requires_grad();
    const uint64_t before = world.group().recorder().count();
    EXPECT_EQ(error_of([&] { (void)distribute(x, rows); }),
              "[distribute] f32[4] is distributed already: use redistribute");
    EXPECT_EQ(error_of([&] { (void)distribute(wants, rows); }),
              "[distribute] f32[4] requires grad, which would end here: distribute its detach(), "
              "or compute on distributed tensors from the start");
    EXPECT_EQ(error_of([&] { (void)distribute(whole, rows, 2); }),
              "[distribute] source 2 is not a position of mesh(dp=2)");
    EXPECT_EQ(world.group().recorder().count(), before);
  });
}

TEST(DTensor, RanksThatGiveDifferentLayoutsAreTold) {
  on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    const Layout mine = Layout::of(mesh, {world.rank() == 0 ? Shard(0) : Replicate()});
    EXPECT_EQ(error_of([&] { (void)from_local(ramp({4}), mine); }),
              concat("[from_local] ranks disagree on the layout: rank ", 1 - world.rank(),
                     " gives another than this rank, whose is ", mine.text()));
  });
}

TEST(DTensor, EqualLayoutsAreOneObject) {
  on_ranks(4, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Layout a = Layout::of(mesh, {Shard(0), Replicate()});
    EXPECT_EQ(a, Layout::of(Mesh::make({{"dp", 2}, {"tp", 2}}), {Shard(0), Replicate()}));
    EXPECT_EQ(a.with("tp", Shard(1)).with("tp", Replicate()), a);
    EXPECT_EQ(a.with("tp", Shard(0)), Layout::of(mesh, {Shard(0), Shard(0)}));
    // Taking the outer cut away leaves the inner one first.
    EXPECT_EQ(Layout::of(mesh, {Shard(0), Shard(0)}).with("dp", Replicate()),
              Layout::of(mesh, {Replicate(), Shard(0)}));
  });
}

// torchtitan #1355: whatever happens to a tensor, the dtype it reports is that of its bytes.
TEST(DTensor, ReportedDTypeIsThatOfTheBytes) {
  on_ranks(4, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    const auto check = [](const Tensor& x, DType expected) {
      EXPECT_EQ(x.dtype(), expected);
      EXPECT_EQ(local(x).dtype(), expected);
      EXPECT_EQ(x.storage().bytes() % item_size(expected), 0);
    };
    Tensor w = distribute(ramp({4, 8, 6}), Layout::of(mesh, {Shard(1), Shard(2)}));
    w.set_requires_grad();
    const Tensor half = cast(w, DType::bf16);
    check(half, DType::bf16);
    const Tensor gathered = redistribute(half, {Replicate(), Shard(2)});
    check(gathered, DType::bf16);
    const Tensor x =
        distribute(ramp({4, 5, 8}, DType::bf16), Layout::of(mesh, {Replicate(), Replicate()}));
    const Tensor y = matmul(x, gathered);  // batched, as of grouped experts
    check(y, DType::bf16);
    backward(sum(cast(y, DType::f32)));
    check(w.grad(), DType::f32);
    check(redistribute(w.grad(), layout_of(w)), DType::f32);
    check(cast(y, DType::f64), DType::f64);
  });
}

TEST(DTensor, RandomFillsAreTheSameBitsOnAnyLayout) {
  on_ranks(4, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Tensor whole = normal({7, 9}, {3, 4}, 0.5, 2.0);
    for (const auto& p : std::vector<std::vector<Placement>>{{Replicate(), Replicate()},
                                                             {Shard(0), Shard(1)},
                                                             {Shard(1), Shard(1)},
                                                             {Shard(1), Replicate()}})
      EXPECT_EQ(
          full_tensor(normal({7, 9}, {3, 4}, 0.5, 2.0, DType::f32, Layout::of(mesh, p))).values(),
          whole.values());
  });
}

TEST(DTensor, OperatorsWithNumbersKeepTheLayout) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Layout cut = Layout::of(m, {Shard(0), Shard(1)});
    const Tensor whole = ramp({5, 3}), x = distribute(whole, cut);
    const auto same = [&](const Tensor& y, const Tensor& expected) {
      EXPECT_EQ(layout_of(y), cut);
      EXPECT_EQ(full_tensor(y).values(), expected.values());
    };
    same(x > 4, whole > 4);
    same(7 == x, whole == 7);
    same(~(x <= 3), whole > 3);
    same(1 - x, 1 - whole);
    same(30 / (x + 1), 30 / (whole + 1));
    same(where(x > 4, x, 0), where(whole > 4, whole, 0));
    same(randn_like(x) * 0, zeros({5, 3}));
    x += 1;
    same(x, whole + 1);
  });
}

}  // namespace
}  // namespace tessera
