// SPDX-License-Identifier: Apache-2.0
// What rooms and functions over them promise on a mesh beyond the laws: bits of random numbers,
// plans that are kept, products that send nothing.
#include "tessera/autograd/autograd.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/dropout/dropout.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/grouped_mm/grouped_mm.h"
#include "tessera/kernels/matmul/einsum.h"
#include "tessera/kernels/permutation/permutation.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/all_layouts.h"
#include "tessera/tests/support/trials.h"

namespace tessera {
namespace {

using namespace trial;
using test::on_ranks;

const std::vector<std::vector<MeshAxis>> kMeshes{
    {{"a", 1}}, {{"a", 2}, {"b", 2}}, {{"a", 3}, {"b", 2}}};

void on_meshes(const std::function<void(Mesh)>& f) {
  for (const auto& axes : kMeshes) {
    int ranks = 1;
    for (const MeshAxis& a : axes) ranks *= a.size;
    on_ranks(ranks, [&](World&) { f(Mesh::make(axes)); });
  }
}

TEST(RoomsOnMeshes, DropoutHasTheBitsOfOneRankBothWays) {
  on_meshes([](Mesh m) {
    for (const Shape& shape : {Shape{5, 9}, Shape{1, 3}, Shape{64, 65}}) {
      const RngKey key{11, 13};
      const auto run = [&](Tensor x, const Tensor& dy) {
        x.set_requires_grad();
        const Tensor y = dropout(x, 0.3, key);
        backward(y, {.gradient = dy});
        return std::array<Tensor, 2>{y, x.grad()};
      };
      const Tensor x = normal(shape, {1, 2}), dy = normal(shape, {3, 4});
      const auto [y, dx] = run(x.detach(), dy);
      for (const AxisStates& states : all_layouts(m, 2, {})) {
        const Layout layout = Layout::intern(m, states);
        const auto [got, gradient] = run(distribute(x, layout).detach(), distribute(dy, layout));
        expect_same(got, y, 0);
        expect_same(gradient, dx, 0);
      }
    }
  });
}

TEST(RoomsOnMeshes, DropoutKeepsItsPlanFromKeyToKey) {
  on_ranks(2, [](World& world) {
    const Mesh m = Mesh::make({{"a", 2}});
    const Tensor x = distribute(ones({6, 50}), Layout::of(m, {Shard(0)}));
    (void)dropout(x, 0.5);
    const Planner& planner = world.planner();
    const auto before = planner.counts();
    const auto first = full_tensor(dropout(x, 0.5)).values();
    const auto second = full_tensor(dropout(x, 0.5)).values();
    EXPECT_NE(first, second);
    EXPECT_EQ(planner.counts().misses, before.misses);
  });
}

TEST(RoomsOnMeshes, NumbersAndOrdersAreThoseOfOneRank) {
  on_meshes([](Mesh m) {
    const op::Permutation order{23, {5, 6}, 0, 23, kCpu};
    const op::Arange steps{0.5, 0.1, 23, 0, DType::f32, kCpu};
    for (const AxisStates& states : all_layouts(m, 1, {})) {
      const Layout layout = Layout::intern(m, states);
      expect_same(call_on(order, layout), call(order, {}), 0);
      expect_same(call_on(steps, layout), call(steps, {}), 0);
    }
  });
}

// Batch, sequence and heads may be cut: no product of a model merges them with what is not.
TEST(RoomsOnMeshes, EinsumSendsNothing) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"a", 2}, {"b", 2}});
    const Placement R = Replicate();
    struct Case {
      const char* equation;
      Shape a, b;
      std::vector<Placement> on_a, on_b;
    };
    for (const Case& c : {
             Case{"bsd,dhk->bshk", {4, 6, 8}, {8, 4, 2}, {Shard(0), Shard(1)}, {R, R}},
             Case{"bsd,dhk->bshk", {4, 6, 8}, {8, 4, 2}, {Shard(1), R}, {R, Shard(1)}},
             Case{"bshk,hkd->bsd", {4, 6, 4, 2}, {4, 2, 8}, {Shard(1), Shard(2)}, {R, Shard(0)}},
             Case{"bqhd,bkhd->bhqk",
                  {4, 6, 4, 2},
                  {4, 5, 4, 2},
                  {Shard(0), Shard(2)},
                  {Shard(0), Shard(2)}},
             Case{"bsd,bse->de", {4, 6, 8}, {4, 6, 5}, {Shard(0), Shard(1)}, {Shard(0), Shard(1)}},
             Case{"ecd,edf->ecf", {4, 6, 8}, {4, 8, 5}, {Shard(0), Shard(1)}, {Shard(0), R}},
         }) {
      const Tensor a = normal(c.a, {1, 2}, 0, 1, DType::f64),
                   b = normal(c.b, {3, 4}, 0, 1, DType::f64);
      const Tensor x = distribute(a, Layout::of(m, c.on_a)),
                   w = distribute(b, Layout::of(m, c.on_b));
      const CommTrace trace;
      const Tensor y = einsum(c.equation, {x, w});
      EXPECT_EQ(trace.count(), 0) << c.equation << trace.table();
      expect_same(y, einsum(c.equation, {a, b}), 1e-12);
    }
  });
}

TEST(RoomsOnMeshes, GroupedProductsWithABiasSendNothing) {
  struct Cut {
    const char* what;
    Placement x, w, bias;
  };
  on_ranks(3, [](World&) {
    const Tensor whole_x = numbers({9, 5}, 1), whole_w = numbers({4, 6, 5}, 2),
                 whole_bias = numbers({4, 6}, 3), whole_dy = numbers({9, 6}, 4),
                 ends = from_values({3, 3, 6, 8}, {4}, DType::i64);  // a row beyond
    const Mesh m = Mesh::make({{"a", 3}});
    for (const Cut& cut : {Cut{"rows", Shard(0), Replicate(), Replicate()},
                           Cut{"columns of x", Shard(1), Shard(2), Replicate()},
                           Cut{"columns of w", Replicate(), Shard(1), Shard(1)},
                           Cut{"groups", Replicate(), Shard(0), Shard(0)}}) {
      SCOPED_TRACE(cut.what);
      const auto run = [](const Tensor& x, const Tensor& w, const Tensor& bias,
                          const Tensor& offsets, const Tensor& dy) {
        const Tensor y = grouped_mm(x, w, offsets, bias);
        TensorList all{y};
        for (const Tensor& g : grad({y}, {x, w, bias}, {.grad_outputs = {dy}})) all.push_back(g);
        return all;
      };
      const Tensor x = variable(whole_x, Layout::of(m, {cut.x})),
                   w = variable(whole_w, Layout::of(m, {cut.w})),
                   bias = variable(whole_bias, Layout::of(m, {cut.bias})),
                   offsets = distribute(ends, Layout::replicated(m));
      const Placement rows = cut.x == Shard(0) ? Shard(0) : Replicate(),
                      out = cut.w == Shard(1) ? Shard(1) : rows;
      const CommTrace trace;
      const auto got = run(x, w, bias, offsets, distribute(whole_dy, Layout::of(m, {out})));
      EXPECT_EQ(trace.count(), 0) << trace;
      const auto want =
          run(variable(whole_x), variable(whole_w), variable(whole_bias), ends, whole_dy);
      for (size_t i = 0; i < want.size(); ++i) expect_same(got[i], want[i]);
    }
  });
}

TEST(RoomsOnMeshes, ViewsKeepTheirCuts) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"a", 2}});
    const Tensor whole = normal({4, 6, 6}, {1, 2});
    const Tensor x = distribute(whole, Layout::of(m, {Shard(0)}));
    const CommTrace trace;
    const auto same = [](const Tensor& got, const Tensor& want) {
      EXPECT_EQ(layout_of(got).placements_text(), "{a: Shard(0)}");
      EXPECT_EQ(got.shape(), want.shape());
    };
    same(unsqueeze(x, 1), unsqueeze(whole, 1));
    same(squeeze(unsqueeze(x, 1), 1), whole);
    same(flatten(x, 1, 2), flatten(whole, 1, 2));
    same(flatten(x, 0, 1), flatten(whole, 0, 1));
    same(unflatten(x, 0, {2, 2}), unflatten(whole, 0, {2, 2}));
    same(diagonal(x, 1, 1, 2), diagonal(whole, 1, 1, 2));
    for (const Tensor& part : chunk(x, 4, 1)) same(part, chunk(whole, 4, 1)[0]);
    same(stack({x, x}, -1), stack({whole, whole}, -1));
    EXPECT_EQ(trace.count(), 0) << trace.table();
    EXPECT_THROW((void)chunk(x, 2, 0), LayoutError);
    expect_same(diagonal(x, 1, 1, 2), diagonal(whole, 1, 1, 2), 0);
  });
}

}  // namespace
}  // namespace tessera
