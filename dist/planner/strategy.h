// SPDX-License-Identifier: Apache-2.0
// Chooses, from a sharding rule and the layouts of the inputs, layouts in which each rank can run
// the op on its own shard. A rule is about one mesh axis: on it everything is replicated, or one
// factor is sharded, or the inputs of one linearity are partial, or the one input of a monotone op
// is. The strategy of a call is one such choice per axis. Axes on which the inputs already match a
// choice keep it; the others get the cheapest, where a Partial output costs its later reduction,
// and what needs no permission precedes what does. The search starts from the best choice of each
// axis and changes one axis at a time, so it prices at most operands x axes x 4 strategies.
#pragma once

#include "tessera/core/op_row.h"
#include "tessera/dist/layout.h"
#include "tessera/dist/planner/cost.h"

#include <string>
#include <vector>

namespace tessera {

/// One choice for one mesh axis.
struct AxisChoice {
  enum class Kind : uint8_t { replicate, factor, linear, monotone };
  Kind kind = Kind::replicate;
  int index = -1;               ///< index of the factor or of the linearity
  ReduceOp op = ReduceOp::sum;  ///< reduction of the partial inputs
  bool operator==(const AxisChoice&) const = default;
};

struct Strategy {
  std::vector<AxisStates> operands;  ///< inputs, then outputs
  Picoseconds cost = 0;  ///< of redistributing the inputs, and of reducing Partial outputs
  bool asks = false;     ///< has a move that needs explicit permission: a collective, or padding
  int priced = 0;        ///< strategies that were priced to find this one
};

struct StrategyInput {
  const TensorMeta* meta = nullptr;  ///< global; null for an undefined input
  AxisStates states{};
  bool written = false;  ///< by an in-place op: it cannot be redistributed
};

/// The cheapest strategy. `outputs` are global. Throws LayoutError if there is none (a written
/// operand would have to be redistributed).
TESSERA_API Strategy choose_strategy(std::string_view op, const ShardingRule& rule, Mesh mesh,
                                     std::span<const StrategyInput> inputs,
                                     std::span<const TensorMeta> outputs, bool in_place,
                                     const MeshCosts& costs = {});

/// Every choice that the rule allows on an axis, for any inputs: for laws.
TESSERA_API std::vector<AxisChoice> axis_choices(const ShardingRule& rule,
                                                 std::span<const StrategyInput> inputs);
/// The placement of an operand under a choice.
TESSERA_API Placement placement_under(const AxisChoice& choice, const ShardingRule& rule,
                                      int operand);

}  // namespace tessera
