// SPDX-License-Identifier: Apache-2.0
// The plan of a redistribution: which moves lead from one layout to another. A pure function of the
// two layouts, so every rank plans the same. The axes that cut a dim form a stack: only the
// innermost cut can be undone, a new one goes innermost. Moves that shrink or keep the data come
// first (slice, reduce_scatter, all_to_all), then reductions, then gathers; neighbouring moves of
// one kind run as one collective over the merged axes. Parts are counted by the nested chunk rule,
// so merging is exact for any size, where a flat cut of the merged axes would not be.
#pragma once

#include "tessera/dist/layout.h"

#include <algorithm>

namespace tessera {

enum class Move : uint8_t {
  slice,       ///< replicate -> shard: keep the own part
  zero,        ///< replicate -> partial: the first rank keeps the values, others hold zero (sum)
  pad,         ///< shard -> partial(sum): the part in a field of zeros
  all_gather,  ///< shard -> replicate
  all_reduce,  ///< partial -> replicate
  reduce_scatter,  ///< partial -> shard
  all_to_all,      ///< shard -> shard of another dim
};
TESSERA_API std::string_view move_name(Move move);
/// Whether ranks exchange data.
constexpr bool communicates(Move move) { return move >= Move::all_gather; }

/// Whether a move is made on request alone: it sends, or fills a field of zeros.
constexpr bool asks(Move move) { return communicates(move) || move == Move::pad; }

struct RedistributeStep {
  Move move = Move::slice;
  AxisList axes;  ///< in the order of the cut; size-1 axes are left out, they move nothing
  int from_dim = -1, to_dim = -1;
  ReduceOp op = ReduceOp::sum;
  AxisStates before, after;
};

struct RedistributePlan {
  SmallVector<RedistributeStep, 3> steps;
  [[nodiscard]] bool communicates() const;
  /// Elements that a rank receives when it holds a tensor of `numel` elements so, estimated for
  /// even parts; reductions count as much as what they bring.
  [[nodiscard]] double received(Mesh mesh, double numel) const;
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
