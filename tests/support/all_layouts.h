// SPDX-License-Identifier: Apache-2.0
// For tests: every layout of a tensor on a mesh, in every order of cuts.
#pragma once

#include "tessera/dist/layout.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace tessera::trial {

/// All states with placements from R, Shard(0..rank-1) and the partials of `ops`; reductions that
/// do not commute are not mixed.
inline std::vector<AxisStates> all_layouts(Mesh mesh, int rank, const std::vector<ReduceOp>& ops) {
  std::vector<Placement> options{Replicate()};
  for (int d = 0; d < rank; ++d) options.push_back(Shard(d));
  for (ReduceOp op : ops) options.push_back(Partial(op));
  std::vector<AxisStates> all;
  AxisStates states{};
  const std::function<void(int)> order = [&](int dim) {
    if (dim == rank) {
      all.push_back(states);
      return;
    }
    std::vector<int> axes;
    for (int a = 0; a < mesh.axes(); ++a) {
      if (states[static_cast<size_t>(a)].placement == Shard(dim)) axes.push_back(a);
    }
    do {
      for (size_t i = 0; i < axes.size(); ++i)
        states[static_cast<size_t>(axes[i])].position = static_cast<int8_t>(i);
      order(dim + 1);
    } while (std::next_permutation(axes.begin(), axes.end()));
  };
  const std::function<void(int)> place = [&](int axis) {
    if (axis == mesh.axes()) {
      bool maxima = false, minima = false, sums = false;
      for (const AxisState& s : states) {
        if (s.placement.kind != Placement::Kind::partial) continue;
        maxima |= s.placement.op == ReduceOp::max;
        minima |= s.placement.op == ReduceOp::min;
        sums |= s.placement.op == ReduceOp::sum || s.placement.op == ReduceOp::avg;
      }
      if (maxima + minima + sums <= 1) order(0);
      return;
    }
    for (const Placement& p : options) {
      states[static_cast<size_t>(axis)] = {p, 0};
      place(axis + 1);
    }
    states[static_cast<size_t>(axis)] = {};
  };
  place(0);
  return all;
}

/// This rank among the terms that a partial tensor is made of, and how they make it up.
struct PartialTerm {
  int members = 1, own = 0;
  ReduceOp op = ReduceOp::sum;  ///< sum stands for averages too
  double averaged = 1;          ///< terms are this much larger than those of a sum
  explicit PartialTerm(Layout layout) {
    const Mesh mesh = layout.mesh();
    for (int a = 0; a < mesh.axes(); ++a) {
      const Placement& p = layout.placement(a);
      if (p.kind != Placement::Kind::partial) continue;
      own = own * mesh.size(a) + mesh.coordinate(a);
      members *= mesh.size(a);
      if (p.op == ReduceOp::avg) averaged *= mesh.size(a);
      else op = p.op;
    }
  }
};

/// Whether the exhaustive forms of tests run whole (TESSERA_EXHAUSTIVE=1) or a seeded tenth.
inline bool exhaustive() { return std::getenv("TESSERA_EXHAUSTIVE") != nullptr; }

}  // namespace tessera::trial
