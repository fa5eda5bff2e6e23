// SPDX-License-Identifier: Apache-2.0
// Plans without data: every pair of layouts is interpreted on sets. A rank's element holds a weight
// per source contribution; a right plan ends with each contribution counted once.
#include "tessera/dist/redistribute/plan.h"

#include "tessera/tests/support/all_layouts.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tessera {
namespace {

using test::on_ranks;

using trial::all_layouts;
using trial::exhaustive;
using Kind = Placement::Kind;
using Coordinates = std::array<int, kMaxAxes>;

bool joins_by_union(ReduceOp op) { return op == ReduceOp::max || op == ReduceOp::min; }

class Interpreter {
 public:
  Interpreter(Mesh mesh, const Shape& shape) : mesh_(mesh), shape_(shape) {
    for (int r = 0; r < mesh.size(); ++r) {
      Coordinates at{};
      for (int a = 0; a < mesh.axes(); ++a) at[static_cast<size_t>(a)] = mesh.coordinate_at(r, a);
      at_.push_back(at);
    }
  }

  // Fills the ranks as `states` say: contribution c of an element is that of the c-th member of the
  // partial axes.
  void fill(const AxisStates& states) {
    ranks_.assign(at_.size(), {});
    contributions_ = 1;
    for (int a = 0; a < mesh_.axes(); ++a) {
      if (kind(states, a) == Kind::partial) contributions_ *= mesh_.size(a);
    }
    truth_.assign(static_cast<size_t>(contributions_), 1.0);
    for (int a = 0; a < mesh_.axes(); ++a) {
      const Placement& p = states[static_cast<size_t>(a)].placement;
      if (p.kind == Kind::partial && p.op == ReduceOp::avg) {
        for (double& t : truth_) t /= mesh_.size(a);
      }
    }
    for (size_t r = 0; r < at_.size(); ++r) {
      Box& box = ranks_[r];
      box = boxed(states, r);
      int own = 0;
      for (int a = 0; a < mesh_.axes(); ++a) {
        if (kind(states, a) == Kind::partial)
          own = own * mesh_.size(a) + at_[r][static_cast<size_t>(a)];
      }
      for (size_t e = 0; e < static_cast<size_t>(box.numel()); ++e)
        box.weights[e * truth_.size() + static_cast<size_t>(own)] = 1;
    }
  }

  void run(const RedistributePlan& plan) {
    for (const RedistributeStep& step : plan.steps) {
      std::vector<Box> next;
      for (size_t r = 0; r < at_.size(); ++r) next.push_back(moved(step, r));
      ranks_ = std::move(next);
    }
  }

  // Whether the ranks together hold what `states` say.
  [[nodiscard]] bool right(const AxisStates& states) const {
    for (size_t r = 0; r < at_.size(); ++r) {
      const Box expected = boxed(states, r);
      if (!(expected.begin == ranks_[r].begin && expected.size == ranks_[r].size)) return false;
      for (size_t e = 0; e < static_cast<size_t>(expected.numel()); ++e) {
        for (size_t c = 0; c < truth_.size(); ++c) {
          double joined = 0;
          for (size_t q : partners(states, r)) {
            const double w = ranks_[q].weights[e * truth_.size() + c];
            joined = united(states) ? std::max(joined, w) : joined + w / averaged(states);
          }
          if (std::abs(joined - truth_[c]) > 1e-12) return false;
        }
      }
    }
    return true;
  }

 private:
  struct Box {
    Shape begin, size;
    std::vector<double> weights;  // element-major
    [[nodiscard]] int64_t numel() const { return size.numel(); }
  };
  static Kind kind(const AxisStates& s, int a) { return s[static_cast<size_t>(a)].placement.kind; }
  [[nodiscard]] bool united(const AxisStates& states) const {
    for (const AxisState& s : states) {
      if (s.placement.kind == Kind::partial && joins_by_union(s.placement.op)) return true;
    }
    return false;
  }
  [[nodiscard]] double averaged(const AxisStates& states) const {
    double n = 1;
    for (int a = 0; a < mesh_.axes(); ++a) {
      if (states[static_cast<size_t>(a)].placement == Partial(ReduceOp::avg)) n *= mesh_.size(a);
    }
    return n;
  }
  // The ranks that differ from r on the partial axes only.
  [[nodiscard]] std::vector<size_t> partners(const AxisStates& states, size_t r) const {
    AxisList axes;
    for (int a = 0; a < mesh_.axes(); ++a) {
      if (kind(states, a) == Kind::partial) axes.push_back(a);
    }
    return group(axes, r);
  }
  [[nodiscard]] std::vector<size_t> group(const AxisList& axes, size_t r) const {
    std::vector<size_t> members{r};
    for (int a : axes) {
      std::vector<size_t> wider;
      for (size_t m : members) {
        for (int i = 0; i < mesh_.size(a); ++i) {
          Coordinates at = at_[m];
          at[static_cast<size_t>(a)] = i;
          wider.push_back(static_cast<size_t>(std::find(at_.begin(), at_.end(), at) - at_.begin()));
        }
      }
      members = wider;
    }
    return members;
  }
  [[nodiscard]] Box boxed(const AxisStates& states, size_t r) const {
    Box box;
    for (int d = 0; d < shape_.rank(); ++d) {
      const Piece::Range range = range_of(mesh_, states, at_[r], shape_, d);
      box.begin.push_back(range.begin);
      box.size.push_back(range.size);
    }
    box.weights.assign(static_cast<size_t>(box.numel()) * truth_.size(), 0.0);
    return box;
  }
  // The weights of the element at a global place (two dims), null if the box lacks it.
  [[nodiscard]] const double* at(const Box& box, int64_t i, int64_t j) const {
    i -= box.begin[0], j -= box.begin[1];
    if (i < 0 || j < 0 || i >= box.size[0] || j >= box.size[1]) return nullptr;
    return box.weights.data() + static_cast<size_t>(i * box.size[1] + j) * truth_.size();
  }
  [[nodiscard]] Box moved(const RedistributeStep& step, size_t r) const {
    Box box = boxed(step.after, r);
    const bool alone =
        step.move == Move::slice || step.move == Move::pad || step.move == Move::zero;
    const auto members = alone ? std::vector<size_t>{r} : group(step.axes, r);
    const bool reduces = step.move == Move::all_reduce || step.move == Move::reduce_scatter;
    bool zeroed = step.move == Move::zero && step.op == ReduceOp::sum;
    if (zeroed) {
      zeroed = false;
      for (int a : step.axes) zeroed |= at_[r][static_cast<size_t>(a)] != 0;
    }
    for (int64_t i = 0; i < box.size[0]; ++i) {
      for (int64_t j = 0; j < box.size[1]; ++j) {
        double* to = box.weights.data() + static_cast<size_t>(i * box.size[1] + j) * truth_.size();
        int found = 0;
        for (size_t m : members) {
          const double* from = at(ranks_[m], box.begin[0] + i, box.begin[1] + j);
          if (!from || zeroed) continue;
          ++found;
          for (size_t c = 0; c < truth_.size(); ++c) {
            if (joins_by_union(step.op) && reduces) to[c] = std::max(to[c], from[c]);
            else
              to[c] += step.op == ReduceOp::avg && reduces
                           ? from[c] / static_cast<double>(members.size())
                           : from[c];
          }
        }
        // A gather finds an element once, a reduction on every member.
        const int expected = zeroed || step.move == Move::pad ? found
                             : reduces                        ? static_cast<int>(members.size())
                                                              : 1;
        if (found != expected) to[0] = -1e9;
      }
    }
    return box;
  }

  Mesh mesh_;
  Shape shape_;
  std::vector<Coordinates> at_;
  std::vector<Box> ranks_;
  std::vector<double> truth_;
  int contributions_ = 1;
};

struct Total {
  int64_t pairs = 0, plans = 0, wrong = 0, collectives = 0;
};

Total interpret_all(Mesh mesh, std::mt19937& random) {
  const auto layouts = all_layouts(mesh, 2, {ReduceOp::sum, ReduceOp::avg, ReduceOp::max});
  Total total;
  const std::vector<int64_t> sizes{0, 1, 2, 3, 5, 8, 9};
  for (const AxisStates& from : layouts) {
    for (const AxisStates& to : layouts) {
      if (!exhaustive() && random() % 10 != 0) continue;
      ++total.pairs;
      const RedistributePlan plan = plan_redistribute(mesh, from, to);
      for (size_t i = 0; i < sizes.size(); ++i) {
        Interpreter ranks(mesh, {sizes[i], sizes[(i * 3 + 2) % sizes.size()]});
        ranks.fill(from);
        ranks.run(plan);
        ++total.plans;
        total.wrong += !ranks.right(to);
      }
      for (const auto& s : plan.steps) total.collectives += communicates(s.move);
      if (total.wrong > 0) {
        ADD_FAILURE() << Layout::intern(mesh, from).text() << " -> "
                      << Layout::intern(mesh, to).placements_text();
        return total;
      }
    }
  }
  return total;
}

void check_mesh(const std::vector<MeshAxis>& axes) {
  int ranks = 1;
  for (const MeshAxis& a : axes) ranks *= a.size;
  on_ranks(ranks, [&](World& world) {
    const Mesh mesh = Mesh::make(axes);
    if (world.rank() != 0) return;
    const unsigned seed = std::random_device{}();
    std::mt19937 random(seed);
    const Total t = interpret_all(mesh, random);
    EXPECT_EQ(t.wrong, 0) << "seed " << seed;
    std::cout << mesh.text() << ": " << t.pairs << " pairs of layouts, " << t.plans
              << " plans interpreted, " << t.wrong << " wrong, " << t.collectives
              << " collectives; seed " << seed << '\n';
  });
}

TEST(RedistributePlan, EveryPairOn2x2x2) { check_mesh({{"a", 2}, {"b", 2}, {"c", 2}}); }
TEST(RedistributePlan, EveryPairOn2x4) { check_mesh({{"a", 2}, {"b", 4}}); }
TEST(RedistributePlan, EveryPairOn3x2) { check_mesh({{"a", 3}, {"b", 2}}); }
TEST(RedistributePlan, EveryPairWithUnitAxes) {
  check_mesh({{"a", 1}, {"b", 3}, {"c", 1}});
  check_mesh({{"a", 2}, {"b", 1}, {"c", 2}});
  check_mesh({{"a", 1}, {"b", 1}});
}

// What is sent for the common pairs; a change here changes what users pay.
TEST(RedistributePlan, SendsWhatIsPinned) {
  on_ranks(4, [](World& world) {
    const Mesh square = Mesh::make({{"dp", 2}, {"tp", 2}}),
               line = Mesh::make({{"dp", 1}, {"tp", 4}});
    if (world.rank() != 0) return;
    Mesh mesh = square;
    const auto moves = [&](std::vector<Placement> from, std::vector<Placement> to) {
      std::string text;
      const RedistributePlan plan =
          plan_redistribute(mesh, Layout::of(mesh, from).states(), Layout::of(mesh, to).states());
      for (const auto& s : plan.steps) {
        text += concat(text.empty() ? "" : " ", move_name(s.move), '(');
        for (size_t i = 0; i < s.axes.size(); ++i)
          text += concat(i ? "," : "", mesh.axis(s.axes[i]).name);
        text += ')';
      }
      return text;
    };
    const Placement R = Replicate(), P = Partial(), S0 = Shard(0), S1 = Shard(1);
    EXPECT_EQ(moves({R, R}, {R, R}), "");
    EXPECT_EQ(moves({P, R}, {R, R}), "all_reduce(dp)");
    EXPECT_EQ(moves({P, P}, {R, R}), "all_reduce(dp,tp)");
    EXPECT_EQ(moves({R, P}, {R, S0}), "reduce_scatter(tp)");
    EXPECT_EQ(moves({P, P}, {S0, S0}), "reduce_scatter(dp,tp)");
    EXPECT_EQ(moves({S0, R}, {R, R}), "all_gather(dp)");
    EXPECT_EQ(moves({S0, S0}, {R, R}), "all_gather(dp,tp)");
    EXPECT_EQ(moves({S0, S0}, {R, S0}), "all_gather(dp,tp) slice(tp)");
    EXPECT_EQ(moves({R, S0}, {R, S1}), "all_to_all(tp)");
    EXPECT_EQ(moves({S0, S0}, {S1, S1}), "all_to_all(dp,tp)");
    EXPECT_EQ(moves({S0, S1}, {S1, S0}), "all_gather(dp) all_to_all(tp) slice(dp)");
    EXPECT_EQ(moves({R, R}, {S0, S1}), "slice(dp) slice(tp)");
    EXPECT_EQ(moves({R, R}, {R, P}), "zero(tp)");
    EXPECT_EQ(moves({R, S0}, {R, P}), "pad(tp)");
    EXPECT_EQ(moves({P, S0}, {S0, R}), "all_gather(tp) reduce_scatter(dp)");
    EXPECT_EQ(moves({P, S0}, {R, R}), "all_reduce(dp) all_gather(tp)");
    // What an axis of size 1 says of the data costs nothing.
    mesh = line;
    EXPECT_EQ(moves({S0, S0}, {R, S0}), "");
    EXPECT_EQ(moves({R, S0}, {S0, S0}), "");
    EXPECT_EQ(moves({S0, S0}, {S1, S0}), "");
    EXPECT_EQ(moves({P, S0}, {S0, S0}), "");
    EXPECT_EQ(moves({S0, P}, {R, S0}), "reduce_scatter(tp)");
    EXPECT_EQ(moves({S0, S0}, {P, R}), "all_gather(tp)");
  });
}

}  // namespace
}  // namespace tessera
