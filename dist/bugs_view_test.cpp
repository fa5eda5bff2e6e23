// SPDX-License-Identifier: Apache-2.0
// Bugs that others had in views of cut dims, and in saying one thing and holding another, each as a
// test of what it broke. The numbers are issues of PyTorch unless another project is named.
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/all_layouts.h"
#include "tessera/tests/support/trials.h"

#include <iostream>

namespace tessera {
namespace {

using namespace trial;
using test::on_ranks;

const Placement R = Replicate(), S0 = Shard(0), S1 = Shard(1), P = Partial();

// All shapes of up to three dims with this many elements.
std::vector<Shape> shapes_of(int64_t n) {
  std::vector<Shape> all{{n}};
  for (int64_t a = 1; a <= n; ++a) {
    if (n % a) continue;
    all.push_back({a, n / a});
    for (int64_t b = 1; b <= n / a; ++b) {
      if (n / a % b == 0) all.push_back({a, b, n / a / b});
    }
  }
  return all;
}

// #179502, #179509: a view of a dim that is cut, but not the first of its group, was wrong in
// silence: (12, 8) cut on dim 1 as (16, 6).
TEST(ViewBugs, ReshapesAreRightOrRefused) {
  for (const auto& axes : std::vector<std::vector<MeshAxis>>{
           {{"a", 2}}, {{"a", 3}}, {{"a", 2}, {"b", 2}}, {{"a", 2}, {"b", 3}}}) {
    int ranks = 1;
    for (const MeshAxis& a : axes) ranks *= a.size;
    on_ranks(ranks, [&](World& world) {
      const Mesh m = Mesh::make(axes);
      int right = 0, refused = 0;
      for (const int64_t n :
           axes.size() > 1 ? std::vector<int64_t>{12} : std::vector<int64_t>{12, 18}) {
        const auto shapes = shapes_of(n);
        for (const Shape& from : shapes) {
          const Tensor whole = numbers(from);
          for (const AxisStates& states : all_layouts(m, from.rank(), {})) {
            const Tensor x = distribute(whole, Layout::intern(m, states));
            for (const Shape& to : shapes) {
              Tensor y;
              try {
                y = reshape(x, to);
              } catch (const LayoutError&) {
                ++refused;
                continue;
              }
              ++right;
              ASSERT_EQ(local(y).shape(), layout_of(y).local_shape(to));
              expect_same(y, reshape(whole, to), 0);
            }
          }
        }
      }
      EXPECT_GT(right, 0);
      EXPECT_GT(refused, 0);
      if (world.rank() == 0) {
        std::cout << "reshapes on " << world.size() << " ranks: " << right << " right, " << refused
                  << " refused\n";
      }
    });
  }
}

// #186282: with two axes on one dim, unflatten(flatten(x)) was not x, and gradients were wrong.
TEST(ViewBugs, UnflattenOfFlattenIsTheSameTensor) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"a", 2}, {"b", 2}});
    const Tensor values = numbers({4, 2, 3}), weights = numbers({8, 3}, 0.5);
    Tensor plain = variable(values);
    const Tensor want = reshape(mul(reshape(plain, {8, 3}), weights), {4, 2, 3});
    backward(sum(mul(want, want)));
    for (const auto& order : {std::vector<std::string>{"a", "b"}, {"b", "a"}}) {
      const Layout layout = Layout::ordered(m, std::vector{S0, S0}, {order});
      Tensor x = variable(values, layout);
      const Tensor flat = reshape(x, {8, 3});
      EXPECT_EQ(layout_of(flat), layout);
      const Tensor y = reshape(mul(flat, distribute(weights, layout)), {4, 2, 3});
      EXPECT_EQ(layout_of(y), layout);
      expect_same(y, want);
      backward(sum(mul(y, y)));
      EXPECT_EQ(layout_of(x.grad()), layout);
      expect_same(x.grad(), plain.grad());
    }
  });
}

// #139735: writing a slice of a cut dim had no effect, because the slice was a copy.
TEST(ViewBugs, SlicesAliasOrThrow) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"a", 2}});
    const Tensor whole = numbers({4, 6}), x = distribute(whole, Layout::of(m, {S0}));
    EXPECT_THROW((void)slice(x, 0, {0, 2}), LayoutError);
    EXPECT_THROW((void)select(x, 0, 1), LayoutError);
    scale_({slice(x, 1, {1, 3})}, 2);
    const Tensor scaled = copy(whole);
    scale_({slice(scaled, 1, {1, 3})}, 2);
    expect_same(x, scaled, 0);
    {  // Even where the planner may move data, a slice that is no view is refused or a value of its
       // own.
      const AutoRedistribute wish;
      try {
        const Tensor top = slice(x, 0, {0, 2});
        expect_same(top, slice(scaled, 0, {0, 2}), 0);
      } catch (const LayoutError&) {
      }
    }
  });
}

// autoparallel #517: a tensor said Partial and held the whole on every rank.
TEST(ViewBugs, WhatALayoutSaysIsWhatRanksHold) {
  on_ranks(4, [](World& world) {
    const Mesh m = Mesh::make({{"a", 2}, {"b", 2}});
    const Tensor whole = numbers({4, 6});
    for (const AxisStates& states : all_layouts(m, 2, {ReduceOp::sum})) {
      const Layout layout = Layout::intern(m, states);
      const Tensor x = redistribute(distribute(whole, Layout::replicated(m)), layout);
      ASSERT_EQ(layout_of(x), layout);
      // Brute force from the parts alone: all of them, each at its place, are the whole.
      const Tensor field = zeros({4, 6}, DType::f64);
      const Tensor part = local(x);
      const Piece::Range rows = layout.range(whole.shape(), 0),
                         columns = layout.range(whole.shape(), 1);
      ASSERT_EQ(part.shape(), (Shape{rows.size, columns.size}));
      const auto v = part.values();
      int copies = 1;  // ranks that hold the same
      for (int a = 0; a < 2; ++a) copies *= layout.placement(a) == R ? 2 : 1;
      for (int64_t i = 0; i < rows.size; ++i) {
        for (int64_t j = 0; j < columns.size; ++j)
          field.data<double>()[(rows.begin + i) * 6 + columns.begin + j] =
              v[static_cast<size_t>(i * columns.size + j)] / copies;
      }
      world.group().all_reduce(field)->wait();
      expect_same(field, whole);
    }
  });
}

// #177669: planner and cost model disagreed, and another collective ran than was priced.
TEST(ViewBugs, WhatThePlannerSendsIsPinned) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"a", 4}});
    const auto on = [&](const Shape& s, Placement p) {
      return distribute(numbers(s), Layout::of(m, {p}));
    };
    const AutoRedistribute wish;
    const auto sent = [&](const std::function<Tensor()>& f) {
      const CommTrace trace;
      const Tensor y = f();
      std::string text;
      for (const CommEntry& e : trace.entries()) text += e.op + " ";
      return text + "-> " + placements(y);
    };
    EXPECT_EQ(sent([&] { return matmul(on({8, 8}, S0), on({8, 8}, R)); }), "-> {a: Shard(0)}");
    EXPECT_EQ(sent([&] { return matmul(on({8, 8}, S1), on({8, 8}, S0)); }), "-> {a: Partial()}");
    // The smaller operand moves.
    EXPECT_EQ(sent([&] {
                return matmul(on({64, 8}, S0), on({8, 8}, S0));
              }),
              "all_gather -> {a: Shard(0)}");
    EXPECT_EQ(sent([&] { return add(on({8, 8}, S0), on({8, 8}, S0)); }), "-> {a: Shard(0)}");
    EXPECT_EQ(sent([&] {
                return add(on({8, 8}, S0), on({8, 8}, S1));
              }),
              "all_to_all -> {a: Shard(0)}");
    EXPECT_EQ(sent([&] { return softmax(on({8, 8}, S1), 1); }), "all_to_all -> {a: Shard(0)}");
    EXPECT_EQ(sent([&] { return sum(on({8, 8}, S1), {1}); }), "-> {a: Partial()}");
    EXPECT_EQ(sent([&] {
                return exp(redistribute(on({8, 8}, R), {P}));
              }).substr(0, 14),
              "reduce_scatter");
  });
}

}  // namespace
}  // namespace tessera
