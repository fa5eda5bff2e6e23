// SPDX-License-Identifier: Apache-2.0
// Attention as graphs of cuDNN operations. cuDNN has no attention operation: its engines know the
// graphs of this very order by pattern.
#pragma once

#include "tessera/kernels/cudnn/graph_impl.h"

#include <compare>
#include <cstdint>

namespace tessera::cudnn {

/// Layouts of operands as (B, H, time, D), k and v with their own heads. A query sees the keys up
/// to its own place, or the last `window` of them; without `causal` all.
struct AttentionGraph {
  DataType type;
  Layout q, k, v, o;
  double scale = 1;
  bool causal = false;
  int64_t window = 0;  ///< 0: none; with causal alone
  auto operator<=>(const AttentionGraph&) const = default;
};

/// A plan, and the numbers of its tensors. NotSupported: cuDNN does not take the case.
struct AttentionPlan {
  Plan plan;
  int64_t q, k, v, o, lse;  ///< lse: (B, H, T) in f32, row-major
};
TESSERA_API AttentionPlan attention_plan(const Library& library, const Graph::Target& target,
                                         const AttentionGraph& c);

struct AttentionBackwardGraph : AttentionGraph {
  Layout dout, dq, dk, dv;
  /// The same bits on every run, since the scores' gradients are kept, of B H T S elements, for a
  /// product that gives dq; if not, dq is summed by atomics. cuDNN's notes of an engine do not tell
  /// the two apart, but their workspace does.
  bool deterministic = false;
  auto operator<=>(const AttentionBackwardGraph&) const = default;
};
struct AttentionBackwardPlan {
  Plan plan;
  int64_t q, k, v, o, lse, dout, dq, dk, dv;
  int64_t delta;  ///< scratch, (B, H, T) in f32
  int64_t sums;   ///< scratch, (B, H, T, D) in f32, the sums of dq; 0: none
};
TESSERA_API AttentionBackwardPlan attention_backward_plan(const Library& library,
                                                          const Graph::Target& target,
                                                          const AttentionBackwardGraph& c);

}  // namespace tessera::cudnn
