// SPDX-License-Identifier: Apache-2.0
// The plan of a redistribution: the moves from one layout to another. A pure function of the two
// layouts, so every rank has the same plan. The axes that shard a dim form a stack: only the
// innermost shard can be removed, a new one becomes innermost. Moves that shrink or keep the data
// come first (slice, reduce_scatter, all_to_all), then reductions, then gathers; adjacent moves of
// one kind run as one collective over the merged axes. Shard sizes follow the nested chunk rule, so
// merging is exact for any size; a flat split over the merged axes would not be.
#pragma once

#include "tessera/dist/layout.h"

#include <algorithm>

namespace tessera {

enum class Move : uint8_t {
  slice,       ///< replicate -> shard: keep the own shard
  zero,        ///< replicate -> partial: the first rank keeps the values, others hold zero (sum)
  pad,         ///< shard -> partial(sum): the shard, padded with zeros
  all_gather,  ///< shard -> replicate
  all_reduce,  ///< partial -> replicate
  reduce_scatter,  ///< partial -> shard
  all_to_all,      ///< shard -> shard of another dim
};
TESSERA_API std::string_view move_name(Move move);
/// Whether the move communicates.
constexpr bool communicates(Move move) { return move >= Move::all_gather; }

/// Whether the move needs explicit permission: it communicates, or pads with zeros.
constexpr bool asks(Move move) { return communicates(move) || move == Move::pad; }

struct RedistributeStep {
  Move move = Move::slice;
  AxisList axes;  ///< in the order of the shards, without axes of size 1
  int from_dim = -1, to_dim = -1;
  ReduceOp op = ReduceOp::sum;
  AxisStates before, after;
};

struct RedistributePlan {
  SmallVector<RedistributeStep, 3> steps;
  [[nodiscard]] bool communicates() const;
};

TESSERA_API RedistributePlan plan_redistribute(Mesh mesh, const AxisStates& from,
                                               const AxisStates& to);

/// Calls f with the coordinates of each member of the group of `axes`, in the group's order.
template <class F> void for_each_member(Mesh mesh, std::span<const int> axes, F&& f) {
  std::array<int, kMaxAxes> at{};
  std::copy(mesh.coordinates().begin(), mesh.coordinates().end(), at.begin());
  int members = 1;
  for (int a : axes) members *= mesh.size(a);
  for (int m = 0; m < members; ++m) {
    int rest = m;
    for (size_t i = axes.size(); i-- > 0;) {
      at[static_cast<size_t>(axes[i])] = rest % mesh.size(axes[i]);
      rest /= mesh.size(axes[i]);
    }
    f(std::span<const int>(at.data(), static_cast<size_t>(mesh.axes())));
  }
}

}  // namespace tessera
