// SPDX-License-Identifier: Apache-2.0
// Finds the moves. Each one brings a stack of axes nearer to its target, so the search is a short
// loop.
#include "tessera/dist/redistribute/plan.h"

#include <algorithm>

namespace tessera {

std::string_view move_name(Move move) {
  constexpr std::string_view names[] = {"slice",      "zero",           "pad",       "all_gather",
                                        "all_reduce", "reduce_scatter", "all_to_all"};
  return names[static_cast<size_t>(move)];
}

bool RedistributePlan::communicates() const {
  return std::any_of(steps.begin(), steps.end(),
                     [](const RedistributeStep& s) { return tessera::communicates(s.move); });
}

namespace {

using Kind = Placement::Kind;

// The same data without the axes of size 1. They cut nothing, so no shard has to be joined to add
// or remove one outside of it.
AxisStates of_larger_axes(Mesh mesh, const AxisStates& states) {
  AxisStates larger{};
  for (int a = 0; a < mesh.axes(); ++a) {
    const AxisState& own = states[static_cast<size_t>(a)];
    if (mesh.size(a) == 1) continue;
    AxisState& s = larger[static_cast<size_t>(a)] = own;
    if (own.placement.kind != Kind::shard) continue;
    for (const int b : axes_of(states, own.placement.dim)) {
      if (b == a) break;
      s.position = static_cast<int8_t>(s.position - (mesh.size(b) == 1 ? 1 : 0));
    }
  }
  return larger;
}

class Search {
 public:
  Search(Mesh mesh, const AxisStates& from, const AxisStates& to)
      : mesh_(mesh), states_(of_larger_axes(mesh, from)), to_(of_larger_axes(mesh, to)) {
    for (int a = 0; a < mesh.axes(); ++a) {
      for (const AxisStates* s : {&states_, &to_}) {
        const Placement& p = (*s)[static_cast<size_t>(a)].placement;
        if (p.kind == Kind::shard) dims_ = std::max(dims_, p.dim + 1);
      }
    }
    for (int d = 0; d < dims_; ++d) {
      have_[static_cast<size_t>(d)] = axes_of(states_, d);
      want_[static_cast<size_t>(d)] = axes_of(to_, d);
    }
  }

  RedistributePlan run() {
    while (!(states_ == to_)) {
      if (!push() && !reduce() && !pop()) unreduce();
    }
    return std::move(plan_);
  }

 private:
  AxisState& state(int axis) { return states_[static_cast<size_t>(axis)]; }
  [[nodiscard]] const Placement& target(int axis) const {
    return to_[static_cast<size_t>(axis)].placement;
  }
  AxisList& have(int dim) { return have_[static_cast<size_t>(dim)]; }
  AxisList& want(int dim) { return want_[static_cast<size_t>(dim)]; }

  // Number of axes of `dim` that already match the target, from the outermost.
  size_t settled(int dim) {
    size_t n = 0;
    while (n < have(dim).size() && n < want(dim).size() && have(dim)[n] == want(dim)[n]) ++n;
    return n;
  }

  void emit(Move move, const AxisList& axes, int from_dim, int to_dim, ReduceOp op) {
    RedistributeStep step{move, axes, from_dim, to_dim, op, states_, {}};
    if (from_dim >= 0) have(from_dim).resize(have(from_dim).size() - axes.size());
    for (int a : axes) {
      state(a) = {};
      if (to_dim >= 0) {
        state(a) = {Shard(to_dim), static_cast<int8_t>(have(to_dim).size())};
        have(to_dim).push_back(a);
      } else if (move == Move::zero || move == Move::pad) {
        state(a) = to_[static_cast<size_t>(a)];
      }
    }
    step.after = states_;
    plan_.steps.push_back(std::move(step));
  }

  // Appends the next target axis to a dim whose current axes all match.
  bool push() {
    for (Move move : {Move::slice, Move::reduce_scatter, Move::all_to_all}) {
      for (int d = 0; d < dims_; ++d) {
        const size_t n = settled(d);
        if (n != have(d).size() || n == want(d).size()) continue;
        const int first = want(d)[n];
        const Placement p = state(first).placement;
        const Kind kind = move == Move::slice            ? Kind::replicate
                          : move == Move::reduce_scatter ? Kind::partial
                                                         : Kind::shard;
        if (p.kind != kind) continue;
        // As many of the next axes as have the same state.
        AxisList run;
        for (size_t i = n; i < want(d).size() && state(want(d)[i]).placement == p; ++i)
          run.push_back(want(d)[i]);
        if (move == Move::all_to_all) {
          const AxisList& stack = have(p.dim);
          while (!run.empty() && !std::equal(run.begin(), run.end(), stack.end() - run.size()))
            run.resize(run.size() - 1);
          if (run.empty()) continue;
        }
        emit(move, run, move == Move::all_to_all ? p.dim : -1, d, p.op);
        return true;
      }
    }
    return false;
  }

  // Reduces axes whose target is replicate; axes whose target is a shard wait for their dim.
  bool reduce() {
    AxisList run;
    ReduceOp op = ReduceOp::sum;
    for (int a = 0; a < mesh_.axes(); ++a) {
      const Placement& p = state(a).placement;
      if (p.kind != Kind::partial || p == target(a) || target(a).kind == Kind::shard) continue;
      if (run.empty()) op = p.op;
      if (p.op == op) run.push_back(a);
    }
    if (run.empty()) return false;
    emit(Move::all_reduce, run, -1, -1, op);
    return true;
  }

  // Removes the innermost axes of a dim: first where other axes wait for it, and first axes that
  // shard no dim in the target, before those that may still change dims by all_to_all.
  bool pop() {
    int best = -1, best_score = 0;
    for (int d = 0; d < dims_; ++d) {
      const size_t n = settled(d);
      if (n == have(d).size()) continue;
      const bool waited_for = want(d).size() > n;
      const bool moves_on = target(have(d).back()).kind == Kind::shard;
      const int score = 1 + (moves_on ? 2 : 0) + (waited_for ? 0 : 1);
      if (best < 0 || score < best_score) best = d, best_score = score;
    }
    if (best < 0) return false;
    const bool pads = target(have(best).back()) == Partial();
    AxisList run;
    for (size_t i = have(best).size(); i-- > settled(best);) {
      // Further axes are included, except those that may still move to another dim.
      const Placement& t = target(have(best)[i]);
      const bool may_move = t.kind == Kind::shard && t.dim != best;
      if (!run.empty() && (may_move || (t == Partial()) != pads)) break;
      run.push_back(have(best)[i]);
    }
    std::reverse(run.begin(), run.end());
    emit(pads ? Move::pad : Move::all_gather, run, best, -1, ReduceOp::sum);
    return true;
  }

  void unreduce() {
    AxisList run;
    for (int a = 0; a < mesh_.axes(); ++a) {
      if (!(state(a).placement == target(a)) && (run.empty() || target(a) == target(run[0])))
        run.push_back(a);
    }
    emit(Move::zero, run, -1, -1, target(run[0]).op);
  }

  Mesh mesh_;
  AxisStates states_, to_;
  int dims_ = 0;
  std::array<AxisList, kMaxRank> have_, want_;
  RedistributePlan plan_;
};

}  // namespace

RedistributePlan plan_redistribute(Mesh mesh, const AxisStates& from, const AxisStates& to) {
  return Search(mesh, from, to).run();
}

}  // namespace tessera
