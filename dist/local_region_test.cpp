// SPDX-License-Identifier: Apache-2.0
// Regions: every conversion of the table, forward and backward, against its definition; types that
// are missing or wrong are refused.
#include "tessera/dist/local_region.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using test::error_of;
using test::on_ranks;
constexpr AxisType R = AxisType::replicate, I = AxisType::invariant, V = AxisType::varying,
                   P = AxisType::partial;

Tensor ramp(const Shape& shape, double first = 0) {
  std::vector<double> values;
  for (int64_t i = 0; i < shape.numel(); ++i) values.push_back(first + static_cast<double>(i));
  return from_values(values, shape, DType::f64);
}

// The value that ranks with these local values stand for.
std::vector<double> meaning(const Tensor& mine, AxisType type, Mesh mesh) {
  const Layout layout = Layout::of(mesh, {type == V   ? Shard(0)
                                          : type == P ? Partial()
                                                      : Replicate()});
  return full_tensor(from_local(mine.detach(), layout)).values();
}

TEST(LocalRegion, ConversionsKeepTheValueAndReturnTheGradient) {
  on_ranks(3, [](World& world) {
    const Mesh mesh = Mesh::make({{"tp", 3}});
    struct Row {
      AxisType from, to;
      const char *sends, *sends_back;  // forward and backward, by the table
    };
    for (const Row& row : std::vector<Row>{{R, I, "", ""},
                                           {R, V, "", ""},
                                           {R, P, "", ""},
                                           {I, R, "", "all_reduce"},
                                           {I, V, "", "all_gather"},
                                           {V, R, "all_gather", "reduce_scatter"},
                                           {V, I, "all_gather", ""},
                                           {V, P, "", ""},
                                           {P, R, "all_reduce", "all_reduce"},
                                           {P, I, "all_reduce", ""},
                                           {P, V, "reduce_scatter", "all_gather"}}) {
      const bool varies = row.from == V;
      // Rows of 5 are cut as 2, 2, 1.
      const int64_t rows = varies ? (world.rank() == 2 ? 1 : 2) : 5;
      Tensor x = row.from == P ? ramp({rows, 2}, world.rank())
                               : ramp({rows, 2}, varies ? 4 * world.rank() : 0);
      x.set_requires_grad();
      const CommTrace trace;
      const Tensor y = convert(x, mesh, "tp", row.from, row.to, {.whole = varies ? 5 : -1});
      const std::string which = concat(row.from, " to ", row.to);
      EXPECT_EQ(trace.count(), *row.sends ? 1 : 0) << which;
      EXPECT_EQ(*row.sends ? trace.count(row.sends) : 1, 1) << which;
      EXPECT_EQ(meaning(y, row.to, mesh), meaning(x, row.from, mesh)) << which;
      // A gradient of y's gradient type, whose meaning x's gradient must have.
      const AxisType given = gradient_type(row.to);
      const Tensor g = given == P   ? ramp(y.shape(), 3 * world.rank())
                       : given == V ? ramp(y.shape(), 10 * world.rank())
                                    : ramp(y.shape(), 7);
      const auto before = trace.count();
      backward(y, {.gradient = g});
      EXPECT_EQ(trace.count() - before, *row.sends_back ? 1 : 0) << which;
      EXPECT_EQ(meaning(x.grad(), gradient_type(row.from), mesh), meaning(g, given, mesh)) << which;
    }
  });
}

TEST(LocalRegion, VaryingToVaryingExchangesCuts) {
  on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"tp", 2}});
    Tensor x = ramp({2, 6}, 12 * world.rank());  // rows cut
    x.set_requires_grad();
    const Tensor y = convert(x, mesh, "tp", V, V, {.dim = 0, .to_dim = 1});
    EXPECT_EQ(y.shape(), (Shape{4, 3}));
    EXPECT_EQ(full_tensor(from_local(y.detach(), Layout::of(mesh, {Shard(1)}))).values(),
              ramp({4, 6}).values());
    backward(sum(y * y));
    EXPECT_EQ(x.grad().values(), (x.detach() * 2.0).values());
  });
}

TEST(LocalRegion, ConversionsOutsideTheTableAreRefused) {
  on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"tp", 2}});
    for (const auto& [from, to] :
         std::vector<std::pair<AxisType, AxisType>>{{I, P}, {R, R}, {I, I}, {P, P}})
      EXPECT_THROW((void)convert(ramp({4}), mesh, "tp", from, to), LayoutError) << from << to;
    EXPECT_THROW((void)convert(ramp({4}), mesh, "nowhere", P, R), LayoutError);
  });
}

TEST(LocalRegion, PartsOfOtherSizesThanTheChunkRuleGivesAreRefused) {
  on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"tp", 2}});
    const Tensor x = distribute(ramp({4}), Layout::of(mesh, {Shard(0)}));
    const auto error = [&](const Tensor& part, int64_t whole) {
      return error_of([&] { (void)convert(part, mesh, "tp", V, I, {.whole = whole}); });
    };
    EXPECT_EQ(error(ramp({world.rank() == 0 ? 1 : 3}), -1),
              "[convert] the part of rank 0 has 1 of the 4 elements of dim 0, the chunk rule gives "
              "it 2");
    EXPECT_EQ(error(ramp({3}), 4),
              "[convert] this rank's part f64[3] of dim 0 with 4 in all should have 2 by the chunk "
              "rule");
    EXPECT_EQ(error(x, -1),
              "[convert] f64[4] is distributed; inside a region values are local parts");
    EXPECT_EQ(error_of([&] {
                (void)local_region([&](const auto&) { return std::vector<Tensor>{x}; }, {{x, {V}}},
                                   {{layout_of(x), {4}, {V}}});
              }),
              "[local_region] output 0 is distributed; fn must return local tensors");
  });
}

// Row-parallel matmul by hand inside a region is the planner's own.
TEST(LocalRegion, MatmulByHandEqualsThePlanners) {
  on_ranks(4, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    const auto leaf = [&](const Shape& s, Placement dp, Placement tp) {
      Tensor t = distribute(ramp(s), Layout::of(mesh, {dp, tp}));
      t.set_requires_grad();
      return t;
    };
    Tensor x = leaf({5, 6}, Shard(0), Shard(1)), w = leaf({6, 3}, Replicate(), Shard(0));
    Tensor x2 = leaf({5, 6}, Shard(0), Shard(1)), w2 = leaf({6, 3}, Replicate(), Shard(0));
    const Layout out = Layout::of(mesh, {Shard(0), Replicate()});
    const Tensor y = local_region(
        [&](const std::vector<Tensor>& in) {
          return std::vector<Tensor>{convert(matmul(in[0], in[1]), mesh, "tp", P, I)};
        },
        {{x, {V, V}}, {w, {R, V}}}, {{out, {5, 3}, {V, I}}})[0];
    const Tensor z = redistribute(matmul(x2, w2), out);
    EXPECT_EQ(full_tensor(y).values(), full_tensor(z).values());
    backward(sum(y * y));
    backward(sum(z * z));
    EXPECT_EQ(full_tensor(x.grad()).values(), full_tensor(x2.grad()).values());
    EXPECT_EQ(full_tensor(w.grad()).values(), full_tensor(w2.grad()).values());
    EXPECT_EQ(layout_of(w.grad()).placement("dp"), Partial());
  });
}

TEST(LocalRegion, TypesMustBeStatedAndFit) {
  on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"tp", 2}});
    const Tensor x = distribute(ramp({4}), Layout::of(mesh, {Replicate()}));
    const auto same = [](const std::vector<Tensor>& in) { return in; };
    const Layout lies = layout_of(x);
    EXPECT_THROW((void)local_region(same, {{x, {}}}, {{lies, {4}, {I}}}), LayoutError);
    EXPECT_THROW((void)local_region(same, {{x, {V}}}, {{lies, {4}, {I}}}), LayoutError);
    EXPECT_THROW((void)local_region(same, {{x, {I}}}, {{lies, {4}, {}}}), LayoutError);
    EXPECT_THROW((void)local_region(same, {{ramp({4}), {I}}}, {{lies, {4}, {I}}}), LayoutError);
    EXPECT_THROW((void)local_region(same, {{x, {I}}}, {{lies, {5}, {I}}}), LayoutError);
    EXPECT_THROW((void)local_region(same, {{x, {I}}}, {}), LayoutError);
    EXPECT_EQ(full_tensor(local_region(same, {{x, {I}}}, {{lies, {4}, {I}}})[0]).values(),
              ramp({4}).values());
  });
}

}  // namespace
}  // namespace tessera
