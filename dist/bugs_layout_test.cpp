// SPDX-License-Identifier: Apache-2.0
// Bugs that others had in layouts and redistribution, each as a test of what it broke. The numbers
// are issues of PyTorch unless another project is named.
#include "tessera/dist/local_region.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/tests/support/all_layouts.h"
#include "tessera/tests/support/trials.h"

#include <algorithm>

namespace tessera {
namespace {

using namespace trial;
using test::on_ranks;

const Placement R = Replicate(), S0 = Shard(0);

// #194457: a gather merged over two axes lost rows where nested and flat chunks differ.
TEST(LayoutBugs, MergedGathersLoseNoRowOfUnevenNestedCuts) {
  for (const auto& [k1, k2] : {std::pair{2, 2}, {2, 3}, {3, 2}, {2, 4}, {4, 2}, {1, 5}, {5, 1}}) {
    on_ranks(k1 * k2, [k1, k2](World&) {
      const Mesh m = Mesh::make({{"a", k1}, {"b", k2}});
      for (int64_t n = 0; n <= 9; ++n) {
        const Tensor whole = numbers({n, 2});
        for (const auto& order : {std::vector<std::string>{"a", "b"}, {"b", "a"}}) {
          const Tensor x = distribute(whole, Layout::ordered(m, std::vector{S0, S0}, {order}));
          expect_same(full_tensor(x), whole, 0);
        }
      }
    });
  }
}

// #115310, #103306: uneven shards came back in a wrong size, or hung.
TEST(LayoutBugs, UnevenShardsMakeTheRoundTrip) {
  for (int k = 1; k <= 5; ++k) {
    on_ranks(k, [k](World&) {
      const Mesh m = Mesh::make({{"a", k}});
      for (int64_t n = 0; n <= 9; ++n) {
        for (const int dim : {0, 1}) {
          const Tensor whole = numbers(dim ? Shape{3, n} : Shape{n, 3});
          const Tensor x = distribute(whole, Layout::of(m, {Shard(dim)}));
          const Tensor r = redistribute(x, {R});
          expect_same(local(r), whole, 0);
          const Tensor back = redistribute(r, {Shard(dim)});
          expect_same(local(back), local(x), 0);
          expect_same(redistribute(x, {Shard(1 - dim)}), whole, 0);
        }
      }
    });
  }
}

// #144109: shards of any size were taken, and full_tensor was wrong.
TEST(LayoutBugs, FromLocalTakesPartsOfTheChunkRuleAlone) {
  on_ranks(2, [](World& world) {
    const Mesh m = Mesh::make({{"a", 2}});
    const Layout cut = Layout::of(m, {S0});
    const auto part = [&](int64_t first, int64_t second) {
      return numbers({world.rank() ? second : first, 2});
    };
    for (const auto& [a, b] : {std::pair{1, 3}, {2, 3}, {0, 1}, {4, 1}}) {
      const std::string text =
          error_of<LayoutError>([&, a = a, b = b] { (void)from_local(part(a, b), cut); });
      TESSERA_EXPECT_HOLDS(text, "chunk rule");
      TESSERA_EXPECT_HOLDS(text, "the part of rank ");
    }
    EXPECT_EQ(from_local(part(3, 2), cut).shape(), (Shape{5, 2}));
    EXPECT_EQ(from_local(part(1, 0), cut).shape(), (Shape{1, 2}));
    EXPECT_EQ(from_local(part(0, 0), cut).shape(), (Shape{0, 2}));
  });
}

// #172812: the global shape of a region's output was guessed from uneven parts.
TEST(LayoutBugs, RegionsStateTheGlobalShapeOfWhatTheyGive) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"a", 4}});
    const Layout cut = Layout::of(m, {S0});
    for (const int64_t n : {0, 1, 5, 6, 9}) {
      const Tensor whole = numbers({n, 3}), x = distribute(whole, cut);
      const auto twice = [](const std::vector<Tensor>& in) {
        return std::vector<Tensor>{in[0] * 2.0};
      };
      const auto region = [&](const Shape& global) {
        return local_region(twice, {{x, {AxisType::varying}}},
                            {{cut, global, {AxisType::varying}}})[0];
      };
      expect_same(region({n, 3}), whole * 2.0, 0);
      if (n == 5) {
        // 8 rows are 2 on each of 4 ranks; the last has 0 of 5 and the third 1.
        std::string text = "fits";
        try {
          (void)region({8, 3});
        } catch (const LayoutError& e) {
          text = e.what();
        }
        const std::string want = m.coordinate(0) < 2 ? "fits" : "gives this rank [2, 3]";
        TESSERA_EXPECT_HOLDS(text, want);
      }
    }
  });
}

// torchtitan #4593: a dim cut over tp, then over dp, got a wrong size: 5 over 2 as 6 or 4.
TEST(LayoutBugs, PartsOfPartsHaveTheSizesOfTheChunkRule) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Tensor whole = numbers({10, 2});
    const Layout layout = Layout::ordered(m, std::vector{S0, S0}, {{"tp", "dp"}});
    const Tensor x = distribute(whole, layout);
    EXPECT_EQ(local(x).size(0), m.coordinate(0) == 0 ? 3 : 2);
    const Tensor tp = redistribute(x, {R, S0});
    EXPECT_EQ(local(tp).size(0), 5);
    expect_same(tp, whole, 0);
    expect_same(redistribute(tp, layout), whole, 0);
  });
}

// #168134, #163843, #165533: nested cuts lost or misplaced elements.
TEST(LayoutBugs, PartsInTheOrderOfTheLayoutAreAllElementsOnce) {
  on_ranks(12, [](World&) {
    const Mesh m = Mesh::make({{"a", 2}, {"b", 3}, {"c", 2}});
    for (const AxisStates& states : all_layouts(m, 1, {})) {
      const Layout layout = Layout::intern(m, states);
      const AxisList axes = layout.axes_of(0);
      for (int64_t n = 0; n <= 13; ++n) {
        // Brute force: cut a list of numbers by torch.chunk's rule, axis by axis.
        for (int position = 0; position < m.size(); ++position) {
          std::vector<int64_t> mine(static_cast<size_t>(n));
          for (int64_t i = 0; i < n; ++i) mine[static_cast<size_t>(i)] = i;
          std::vector<int> at;
          for (int a = 0; a < 3; ++a) at.push_back(m.coordinate_at(position, a));
          for (const int a : axes) {
            const auto k = static_cast<size_t>(m.size(a)), step = (mine.size() + k - 1) / k;
            const size_t begin =
                std::min(mine.size(), static_cast<size_t>(at[static_cast<size_t>(a)]) * step);
            const size_t end = std::min(mine.size(), begin + step);
            mine = {mine.begin() + static_cast<std::ptrdiff_t>(begin),
                    mine.begin() + static_cast<std::ptrdiff_t>(end)};
          }
          const Piece::Range r = layout.range_at(at, {n}, 0);
          ASSERT_EQ(r.size, static_cast<int64_t>(mine.size()));
          ASSERT_EQ(r.global, n);
          if (!mine.empty()) {
            ASSERT_EQ(r.begin, mine[0]);
          }
        }
      }
    }
  });
}

// #129229, #129206: FSDP over TP gave back the rows in another order. #172924: a change of the
// order alone was taken for none.
TEST(LayoutBugs, TheOrderOfCutsIsPartOfTheLayout) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Tensor whole = numbers({8, 3});
    const Layout inner = Layout::ordered(m, std::vector{S0, S0}, {{"tp", "dp"}});
    const Layout outer = Layout::of(m, {S0, S0});
    EXPECT_NE(inner, outer);
    const Tensor x = distribute(whole, inner), y = distribute(whole, outer);
    expect_same(full_tensor(x), whole, 0);
    expect_same(full_tensor(y), whole, 0);
    const int64_t dp = m.coordinate(0), tp = m.coordinate(1);
    EXPECT_EQ(local(x).values()[0], whole.values()[static_cast<size_t>((4 * tp + 2 * dp) * 3)]);
    EXPECT_EQ(local(y).values()[0], whole.values()[static_cast<size_t>((4 * dp + 2 * tp) * 3)]);
    const CommTrace trace;
    const Tensor moved = redistribute(x, outer);
    EXPECT_GT(trace.count(), 0);
    expect_same(local(moved), local(y), 0);
    // An op on operands whose orders differ must not pair up rows that do not belong together.
    TESSERA_EXPECT_HOLDS(error_of<LayoutError>([&] { (void)add(x, y); }), "redistribute(input");
    const AutoRedistribute wish;
    expect_same(add(x, y), whole * 2.0, 0);
  });
}

// Found here by random programs: a slice is a view, and the reduction after it wrote the source.
TEST(LayoutBugs, RedistributionsLeaveTheirSourceAlone) {
  on_ranks(6, [](World&) {
    const Mesh m = Mesh::make({{"a", 3}, {"b", 1}, {"c", 2}});
    for (const Shape& shape : {Shape{1, 1}, Shape{2, 3}}) {
      const auto layouts = all_layouts(m, 2, {ReduceOp::sum});
      for (const AxisStates& states : layouts) {
        const Layout from = Layout::intern(m, states);
        double salt = 0;  // parts and terms unlike each other, equal where they are replicated
        for (int a = 0; a < 3; ++a)
          salt = salt * 7 + (from.placement(a) == R ? 0 : m.coordinate(a) + 1);
        const Tensor part = numbers(from.local_shape(shape), salt);
        const Tensor x = make_distributed(part, shape, from), before = copy(part),
                     want = full_tensor(x);
        for (const AxisStates& target : layouts) {
          expect_same(redistribute(x, Layout::intern(m, target)), want);
          expect_same(part, before, 0);
        }
      }
    }
  });
}

}  // namespace
}  // namespace tessera
