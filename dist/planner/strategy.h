// SPDX-License-Identifier: Apache-2.0
// Chooses, from a sharding rule and the layouts of the inputs, layouts in which each rank can run
// the op on its own shard. A rule is about one mesh axis: on it everything is replicated, or one
// factor is sharded, or the inputs of one linearity are partial, or the one input of a monotone op
// is. The strategy of a call is one such choice per axis. Axes on which the inputs already match a
// choice keep it; the others get the choice that receives the least data.
#pragma once

#include "tessera/core/op_row.h"
#include "tessera/dist/layout.h"

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
  double received = 0;               ///< bytes that this rank receives to redistribute its inputs
  bool asks = false;  ///< has a move that needs explicit permission: a collective, or padding
};

struct StrategyInput {
  const TensorMeta* meta = nullptr;  ///< global; null for an undefined input
  AxisStates states{};
  bool written = false;  ///< by an in-place op: it cannot be redistributed
};

/// The cheapest strategy. Throws LayoutError if there is none (a written operand would have to be
/// redistributed).
TESSERA_API Strategy choose_strategy(std::string_view op, const ShardingRule& rule, Mesh mesh,
                                     std::span<const StrategyInput> inputs, bool in_place);

/// Every choice that the rule allows on an axis, for any inputs: for laws.
TESSERA_API std::vector<AxisChoice> axis_choices(const ShardingRule& rule,
                                                 std::span<const StrategyInput> inputs);
/// The placement of an operand under a choice.
TESSERA_API Placement placement_under(const AxisChoice& choice, const ShardingRule& rule,
                                      int operand);

}  // namespace tessera
